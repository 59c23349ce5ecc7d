"""From an Op to kernels: which statements share a pass over memory, and how each pass walks it."""
