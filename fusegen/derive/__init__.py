"""Derivatives: sympy's partials of scalar expressions, adjoints of reductions, and the algebra that tidies both."""
