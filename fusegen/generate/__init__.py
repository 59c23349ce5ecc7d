"""From a scheduled kernel to CUDA text."""
