"""The nouns of a recorded call: tree, dims, spec, signature, sample, graph, job. Values only, nothing that runs a module."""
