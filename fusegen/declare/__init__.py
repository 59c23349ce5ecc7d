"""From a Python function to an Op: the table of scalar functions, the tracer, the declaration."""
