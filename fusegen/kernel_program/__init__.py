"""Kernel programs: what a kernel does, as a small typed tree that is checked, run without a compiler, and printed."""
