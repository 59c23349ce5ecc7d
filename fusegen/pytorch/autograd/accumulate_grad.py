"""Gradients that are matrix products, added to ``.grad`` by the routine that multiplies (``fg.accumulate_grad``).

Torch's engine adds a leaf's gradient to its ``.grad`` in a pass of its own, which reads both and writes one. Where that
addition is all that becomes of the gradient, the product does it (beta = 1), and autograd is handed none. Whether that
is so, the engine's graph knows: native/fusegen_native_leaf.h asks it, hence the native call path must be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fusegen.native import module as native
from fusegen.plan import frameworks
from fusegen.run.runner import Runner


@contextmanager
def accumulate_grad() -> Iterator[None]:
    """Inside, backwards add gradients that are matrix products to the ``.grad`` that is there without another pass.

        optimizer.zero_grad()  # .grad is None: the first backward makes it
        for batch in batches:
            loss = model(batch) / len(batches)
            with fg.accumulate_grad():
                loss.backward()
        optimizer.step()

    It concerns a leaf (a parameter) whose gradient in an op's backward is a matrix product and nothing more, as that of
    a linear layer's weight is, and whose ``.grad`` exists, is dense, and has the leaf's shape and dtype. All others'
    gradients take torch's way, and so do these where somebody is to see them: with hooks on the leaf or on its node of
    the graph (DDP, FSDP, optimizers that step in the backward), in ``torch.autograd.grad``, with ``create_graph=True``,
    on another stream than the leaf's, in compiled code, and without the native call path (``fusegen doctor``).

    ``.grad += product`` is rounded once rather than twice, so in half types the sums differ in their last bits, and are
    closer to the exact ones. What counts is where the backward is called, not the forward; it holds for backwards that
    the calling thread begins. Of CPU tensors: no two threads may run backwards into one leaf at the same time.
    """
    module = native.awaited()
    if module is None:
        yield
        return
    before = module.accumulate(True)
    try:
        yield
    finally:
        module.accumulate(before)


def accumulate_into(node: Any, needed: Sequence[bool], read: Sequence[Any]) -> list[Any]:
    """For each argument of a node the ``.grad`` that its gradient may be added to, or None; empty if there is none.

    Args:
        node: of the graph; its next functions are those that the gradients go to.
        needed: whether they are asked for.
        read: tensors, or None, that the backward reads.
    """
    module = native.state.module  # which is loaded where somebody accumulates
    if module is None or not module.is_accumulating():
        return []
    nodes = [function if asked else None for (function, _), asked in zip(node.next_functions, needed, strict=True)]
    found: list[Any] = module.accumulate_into(nodes, list(read))
    return found


def run_adding(
    runner: Runner, names: Sequence[str], values: Mapping[str, Any], scalars: Mapping[str, Any],
    added: Mapping[str, Any],
) -> list[Any]:  # fmt: skip
    """Results of a backward. Those among ``added`` that products alone make are added there; for these it has None.

    Args:
        names: of the results, in order.
    """
    from fusegen.run.chain import ChainRunner

    onto = runner.chain.summable.intersection(added) if isinstance(runner, ChainRunner) else frozenset()
    if not onto:
        return runner(values, scalars, frameworks.torch())
    assert isinstance(runner, ChainRunner)
    out = [added[name] if name in onto else None for name in names]
    results = runner.adding(onto)(values, scalars, frameworks.torch(), out)
    return [None if name in onto else result for name, result in zip(names, results, strict=True)]
