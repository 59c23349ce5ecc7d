"""Ops in torch.library: schemas, fake kernels, derivatives and vmap for torch.compile, export and DTensor."""
