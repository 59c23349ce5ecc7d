"""What Dynamo traces when compiled code calls an op. Importing this imports Dynamo, so only Dynamo's traces do."""

from __future__ import annotations

from typing import Any

import torch

from fusegen.wrap import dispatch
from fusegen.wrap.dispatch import call

# Dynamo runs these as they are, with the kinds of the arguments, and takes the answers for constants.
for function in (dispatch.positional, dispatch.select, dispatch.says_tuple, dispatch.refuse):
    torch.compiler.assume_constant_result(function)


_REASON = (
    "fusegen: an op that goes a chunk of rows at a time (linear_cross_entropy) runs between two graphs. Leave out "
    "fullgraph=True, export with strict=False, or use fg.ops.cross_entropy(fg.ops.linear(...), ...), whose logits exist"
)


@torch.compiler.disable(reason=_REASON)  # type: ignore[untyped-decorator]
def outside(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The op called between two graphs."""
    return op(*args, **kwargs)


__all__ = ["call", "outside"]
