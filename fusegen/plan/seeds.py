"""Seeds of random ops: one for each call, from the generator of the framework that the call's tensors are of."""

from __future__ import annotations

import sys
from typing import Any

from fusegen.core.errors import DeclarationError
from fusegen.declare.op import SEED, is_symbolic


def seeded(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The named arguments of a call, with a seed where there is none.

    Raises:
        DeclarationError: the call's tensors are of a framework without a generator of its own.
    """
    if kwargs.get(SEED) is not None or is_symbolic(args, kwargs):
        return kwargs
    found = seeded_by_torch(args, kwargs) if "torch" in sys.modules else kwargs
    return found if SEED in found else {**kwargs, SEED: _others(op, (*args, *kwargs.values()))}


def seeded_by_torch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same of a call with torch's tensors; unchanged of any other. Dynamo traces this."""
    import torch

    if kwargs.get(SEED) is None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                return {**kwargs, SEED: _torchs(value)}
    return kwargs


def _torchs(like: Any) -> Any:
    """A seed from torch's generator of the device of a tensor. All shards of a distributed one have the same."""
    import torch

    seed = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=like.device)
    mesh = getattr(like, "device_mesh", None)
    if mesh is None:
        return seed
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(seed, mesh, [Replicate()] * mesh.ndim)


def _others(op: str, values: tuple[Any, ...]) -> Any:
    for name in ("numpy", "cupy"):
        library = sys.modules.get(name)
        if library is not None and any(isinstance(value, library.ndarray) for value in values):
            return library.asarray(library.random.randint(-(2**63), 2**63 - 1, dtype=library.int64))
    arrays = [value for value in values if hasattr(value, "__dlpack__")]
    if not arrays:
        return None  # nothing that an op could be called with: the call says so
    raise DeclarationError(
        f"{op}, argument {SEED}", given=f"none, beside a {type(arrays[0]).__module__}.{type(arrays[0]).__qualname__}",
        expected="a seed: this library has no random state of its own",
        fix="pass seed=, an int, for example one that is drawn with jax.random",
    )  # fmt: skip
