"""Ops over meshes of processes: which dimensions may be cut, what each process computes, what it sends where."""
