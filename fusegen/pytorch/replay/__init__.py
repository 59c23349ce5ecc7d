"""Calls of plain tensors done again: who looks, what a call is told by, a planned run on other tensors."""
