"""Ops as torch sees them: autograd, its dispatcher and compiler, and calls that are known already."""
