"""What Dynamo traces when compiled code calls an op. Importing this imports Dynamo, so only Dynamo's traces do."""

from __future__ import annotations

import functools
from typing import Any

import torch

from fusegen.core.errors import warn
from fusegen.pytorch.library import dispatch, torch_names
from fusegen.pytorch.library.dispatch import call

# Dynamo runs these as they are, with the kinds of the arguments, and takes the answers for constants.
for function in (dispatch.positional, dispatch.select, dispatch.says_tuple, dispatch.refuse):
    torch.compiler.assume_constant_result(function)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def one_graph(name: str) -> bool:
    """Whether a break of the graph is an error: ``fullgraph=True``, strict export. Then ``name`` keeps its logits. Of a
    torch that does not say so it is taken for no."""
    if torch_names.missing(torch_names.GRAPHS):
        return False
    from torch._dynamo.symbolic_convert import InstructionTranslator

    translator = InstructionTranslator.current_tx()
    asked = bool(translator.one_graph or translator.error_on_graph_break)
    if asked and not torch.compiler.is_exporting():  # what is exported runs as eager code does
        _tell(name)
    return asked


@functools.cache
def _tell(name: str) -> None:
    warn(
        f"{name} is part of a whole graph (fullgraph=True), where the logits of all rows are in memory; without "
        "fullgraph=True it runs between two graphs, a chunk of rows at a time, in a tenth of that memory"
    )


_REASON = "fusegen: an op that goes a chunk of rows at a time (linear_cross_entropy) runs between two graphs"


@torch.compiler.disable(reason=_REASON)  # type: ignore[untyped-decorator]
def outside(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The op called between two graphs."""
    return op(*args, **kwargs)


__all__ = ["call", "one_graph", "outside"]
