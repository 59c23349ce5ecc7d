"""Runs an Op on tensors: launches, products between them, and the checks of a result."""
