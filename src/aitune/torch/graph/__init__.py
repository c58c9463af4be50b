"""The nouns of a recorded call, values only: tree, dims, spec, signature, sample, graph, job."""
