"""Ops in autograd: the function that is recorded, gradients in place, gradients that are added up."""
