"""One op beside what else people would call: torch, torch.compile, JAX, Liger, QuACK."""
