"""Kernels on the CPU: the same CUDA, compiled by a C++ compiler."""
