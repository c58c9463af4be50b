"""Each backend on the reference set, and the automatic choice among them, on a CUDA device."""
