"""The CUDA templates, one per kernel shape, and the headers that generated code includes."""
