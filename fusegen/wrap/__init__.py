"""The doors: torch and other tensors, the meaning of an op in eager torch, the terminal."""
