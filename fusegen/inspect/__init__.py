"""What the compiler does with an op and what that should cost, for people to read."""
