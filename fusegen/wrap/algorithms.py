"""Which of cuBLASLt's algorithms does a matrix product of halves, measured.

torch takes the one that the library's heuristic likes best, which is not always the fastest: on an H200 the plain
product fp16 8192 x 768 x 3072 takes 61 us, and 56 by the eighth that the heuristic offers; bf16 16384 x 1024 x 4096
takes 198 and 177 by the fifth. Which one that is depends on the exact sizes (how tiles fill the multiprocessors), so
large products are measured for theirs, beside torch's own routine, and remembered on disk. Of sizes that differ in
every call only the first few are: the others go torch's way.

The same is done for products with those epilogues that cuBLASLt has (``Library`` in wrap/backends).
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.launch.cache import default_cache
from fusegen.launch.memo import compiler_digest
from fusegen.launch.sealed import digest
from fusegen.wrap import cublaslt, cublaslt_api
from fusegen.wrap.closing import Closing
from fusegen.wrap.cublaslt import WORKSPACE, Algorithm, Ending, Planned
from fusegen.wrap.cublaslt_api import Epilogue
from fusegen.wrap.factors import Factors, Task
from fusegen.wrap.padding import ALIGNMENT, suits
from fusegen.wrap.products import Arranged
from fusegen.wrap.torch_step import TorchStep, View

HALVES = ("float16", "bfloat16")
# Which epilogue does what wrap/closing calls so.
EPILOGUES = {
    "relu": Epilogue.RELU_BIAS,
    "relu without bias": Epilogue.RELU,
    "gelu": Epilogue.GELU_BIAS,
    "gelu without bias": Epilogue.GELU,
    "gelu without bias, its argument kept": Epilogue.GELU_AUX,
    "gelu, its argument kept": Epilogue.GELU_AUX_BIAS,
}
BY_TORCH = "torch"
# Algorithms that are asked for, those that are measured again, and how often.
MOST_OFFERED, FINALISTS, ONCE, REPEATS = 8, 2, 2, 9
# What another algorithm has to gain to be taken: less is noise.
GAIN = 0.99
# Products alike but for their exact sizes that are measured in one process, and products that are planned at all.
MOST_ALIKE, MOST_PLANNED = 8, 256
# Operations, or bytes, of a product from which it takes an H200 10 us: below, algorithms differ by less than it takes
# to launch one.
LEAST_OPERATIONS, LEAST_BYTES = 2**33, 2**25


def is_considered(device: str) -> bool:
    """Whether tensors on ``device`` could go this way."""
    return device.startswith("cuda") and cublaslt.version() > 0


def is_worth(sizes: Sequence[int]) -> bool:
    """Whether a product of m, n and k (halves) is large enough for algorithms to differ."""
    m, n, k = sizes
    return min(sizes) > 0 and (2 * m * n * k >= LEAST_OPERATIONS or 2 * (m * k + k * n + m * n) >= LEAST_BYTES)


@dataclass(frozen=True)
class Choice:
    """What was measured of a product; empty where it was not.

    Args:
        times: microseconds by the place in what the library offers, from 1, and of torch's own routine.
        algorithm: None: torch's own routine, or no epilogue.
    """

    times: Mapping[str, float]
    algorithm: Algorithm | None

    def stored(self) -> bytes:
        """As it is remembered."""
        data, size = (self.algorithm.data.hex(), self.algorithm.workspace) if self.algorithm else ("", 0)
        return json.dumps([dict(self.times), data, size]).encode()

    @classmethod
    def read(cls, stored: bytes) -> Choice:
        """What ``stored`` gave."""
        times, data, size = json.loads(stored)
        return cls(times, Algorithm(bytes.fromhex(data), size) if data else None)

    def __str__(self) -> str:
        if not self.times:
            return "by torch: cuBLASLt has no algorithm for it"
        named = {way: way if way == BY_TORCH else f"cuBLASLt's algorithm {way}" for way in self.times}
        best = (
            BY_TORCH if self.algorithm is None else min((w for w in named if w != BY_TORCH), key=self.times.__getitem__)
        )
        return ", ".join(f"{name} {self.times[way]:.1f} us" for way, name in named.items()) + f"; best: {named[best]}"


_planned: dict[Task, Planned | None] = {}
_alike: Counter[Any] = Counter()
_settling = threading.RLock()


def planned(task: Task, given: Factors, by_torch: Callable[[Factors], None] | None = None) -> Planned | None:
    """The multiplication by the fastest algorithm, measured now if nobody has.

    None: torch's own routine is as fast; cuBLASLt does not do it; or it is not known yet and a CUDA graph is captured.

    Args:
        by_torch: what is to be beaten; None: there is no such routine.
    """
    if task not in _planned:
        import torch

        if torch.cuda.is_current_stream_capturing():
            return None
        with torch.cuda.device_of(given.out), _settling:
            if task not in _planned:
                _settle(task, given, by_torch)
    return _planned.get(task)


def is_settled(task: Task) -> bool:
    """Whether what ``planned`` says of it stays so."""
    return task in _planned


def _settle(task: Task, given: Factors, by_torch: Callable[[Factors], None] | None) -> None:
    import torch

    if len(_planned) >= MOST_PLANNED:
        forget()
    try:
        choice = _choice(_alone(task), given, by_torch)
        _planned[task] = None if choice.algorithm is None else Planned(task, choice.algorithm)
    except torch.cuda.OutOfMemoryError:  # no reason to fail; the next calls try again
        return
    except RuntimeError:  # torch's own routine does it, or another way
        _planned[task] = None


def forget() -> None:
    """All that has been planned; what was measured is remembered on disk."""
    _planned.clear()
    _alike.clear()


def _alone(task: Task) -> Task:
    """The same product where it is not added to what is there: one measurement is for both."""
    assert isinstance(task.epilogue, Ending)
    return replace(task, epilogue=replace(task.epilogue, adds=False))


def _choice(task: Task, given: Factors, by_torch: Callable[[Factors], None] | None) -> Choice:
    found = remembered(task)
    if found is not None:
        return found
    m, n, k = task.sizes
    rounded = (m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()
    bucket = replace(task, sizes=rounded, pitches=(0, 0), left=(0, task.left[1]), right=(0, task.right[1]))
    _alike[bucket] += 1
    if _alike[bucket] > MOST_ALIKE or not is_worth(task.sizes):
        return Choice({}, None if by_torch else Planned(task).algorithm)
    try:
        found = _measured(task, given, by_torch)
    except cublaslt_api.Unsupported:
        found = Choice({}, None)
    default_cache().put(_place(task), found.stored())
    return found


def remembered(task: Task) -> Choice | None:
    """What was measured of a product, here or in another process."""
    stored = default_cache().get(_place(_alone(task)))
    return None if stored is None else Choice.read(stored)


def _place(task: Task) -> str:
    import torch

    versions = str(torch.version.cuda), torch.__version__, str(cublaslt.version()), compiler_digest()
    return digest("algorithm", torch.cuda.get_device_name(task.device), *versions, repr(replace(task, device=0)))


def _measured(task: Task, given: Factors, by_torch: Callable[[Factors], None] | None) -> Choice:
    """Results go where the call's own do.

    Raises:
        Unsupported: there is no algorithm.
        OutOfMemoryError: there is no room for what a measurement takes.
    """
    import torch

    from fusegen.wrap.stopwatch import Stopwatch

    if task != _alone(task):  # what is added to stays as it is
        out = given.out
        given = replace(given, out=torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device=out.device))
    plan = Planned(_alone(task))
    ways: dict[str, Callable[[], Any]] = {} if by_torch is None else {BY_TORCH: partial(by_torch, given)}
    offered: dict[str, Algorithm] = {}
    for place, algorithm in enumerate(plan.offers(MOST_OFFERED), 1):
        way = partial(_run, plan, algorithm, given)
        try:
            way()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # not launched
            continue
        offered[str(place)] = algorithm
        ways[str(place)] = way
    if not offered:
        raise cublaslt_api.Unsupported("none of cuBLASLt's algorithms runs")
    first = Stopwatch(ONCE, warm_up=1).turns(ways)
    best = sorted(offered, key=lambda way: first[way])[:FINALISTS]
    times = Stopwatch(REPEATS).turns({way: ways[way] for way in (BY_TORCH, *best) if way in ways})
    fastest = min(best, key=lambda way: times[way])
    if by_torch is not None and not (
        times[fastest] < GAIN * times[BY_TORCH] and _is_alike(ways[BY_TORCH], ways[fastest], given.out)
    ):
        return Choice(times, None)
    return Choice(times, offered[fastest])


def _run(plan: Planned, algorithm: Algorithm, given: Factors) -> None:
    plan.use(algorithm)
    plan.run(given)


# Rows of a result that two ways are compared in, and by how much they may differ: rounding, and the order of sums.
_SAMPLED, _APART = 256, 0.02


def _is_alike(one: Callable[[], Any], other: Callable[[], Any], out: Any) -> bool:
    """Whether two ways give the same, but for rounding. NaN, which the caller's numbers may have, is no difference."""
    some = out[:: -(-len(out) // _SAMPLED)]
    one()
    expected = some.float()
    other()
    return not bool((some.float() - expected).norm() > _APART * expected.norm())


# -- a product alone, or with a bias -----------------------------------------------------------------------------------


def task_of(
    arranged: Arranged, dtype: DType, device: str, alignments: Sequence[int], bias: View | None, adds: bool
) -> Task | None:
    """What is planned for a product; None where torch's own routine does it in any case.

    Args:
        alignments: addresses of left, right, result and bias, modulo 16.
        bias: how it lies, if there is one.
        adds: whether it is added to the result.
    """
    views = arranged.views
    if dtype.name not in HALVES or any(len(view.shape) != 2 or view.copied for view in views):
        return None
    if not all(suits(view, dtype.size, a) for view, a in zip(views, alignments, strict=False)):
        return None
    if bias is not None and (adds or bias.strides != (1,) or (alignments[3] + bias.offset * dtype.size) % ALIGNMENT):
        return None
    (m, k), n = views[0].shape, views[1].shape[1]
    if not is_worth((m, n, k)):
        return None
    ending = Ending(Epilogue.DEFAULT if bias is None else Epilogue.BIAS, adds)
    return Task.of(ending, dtype.name, int(device.partition(":")[2] or 0), views[:2], views[2:])


def multiply(
    given: Factors, adds: bool = False, scale: float = 1.0, task: Task | None = None, workspace: int = WORKSPACE
) -> None:
    """``out = scale * left @ right``, plus the bias or what is there: by torch's routine or a faster algorithm.

    Args:
        task: what is planned for it; by default it is looked for, with at most ``workspace`` bytes besides.
    """
    if task is None and str(given.out.dtype).removeprefix("torch.") in HALVES and is_considered(given.out.device.type):
        (m, n), k = given.out.shape, given.left.shape[1]
        ending = Ending(Epilogue.DEFAULT if given.bias is None else Epilogue.BIAS, adds, workspace)
        task = Task.on(ending, given) if is_worth((m, n, k)) else None
    if task is not None:
        plan = planned(task, given, _by_torch)
        if plan is not None:
            plan.run(given, scale)
            return
    _by_torch(given, adds, scale)


def _by_torch(given: Factors, adds: bool = False, scale: float = 1.0) -> None:
    import torch

    left, right, out = given.left, given.right, given.out
    if given.bias is not None:
        torch.addmm(given.bias, left, right, out=out)
    elif adds or scale != 1.0:
        out.addmm_(left, right, beta=float(adds), alpha=scale)
    else:
        torch.mm(left, right, out=out)


def step(task: Task, names: Sequence[str], views: Sequence[View], dtype: DType) -> TorchStep | None:
    """The same for the native call path, of what is planned; None where nothing is."""
    import torch

    known = _planned.get(task)
    if known is None:
        return None
    with torch.cuda.device(task.device if torch.cuda.is_available() else -1):
        return Planned(task, known.algorithm).step(names, views, dtype)


# -- a product with an epilogue: what a Library has (wrap/backends) ----------------------------------------------------


def has(closing: Closing, dtype: str) -> bool:
    """Whether cuBLASLt has such an epilogue, for halves."""
    return dtype in HALVES and closing.title in EPILOGUES


def is_ready(closing: Closing, given: Factors) -> bool:
    """Whether it can run now. What is new is planned, but not while a CUDA graph is captured."""
    task = Task.on(Ending(EPILOGUES[closing.title]), given)
    return task is not None and planned(task, given) is not None


def run(closing: Closing, given: Factors) -> None:
    """Compute ``given.out`` and ``given.kept`` on torch's current stream, after ``is_ready``.

    Raises:
        RuntimeError: cuBLASLt does not launch it.
    """
    task = Task.on(Ending(EPILOGUES[closing.title]), given)
    assert task is not None
    (_planned.get(task) or Planned(task)).run(given)


def epilogue_step(closing: Closing, arranged: Arranged, dtype: DType, device: str) -> TorchStep | None:
    """The same for the native call path, after ``is_ready``; None where it has to go through Python."""
    result = arranged.views[2]
    index, ending = int(device.partition(":")[2] or 0), Ending(EPILOGUES[closing.title])
    task = Task.of(ending, dtype.name, index, arranged.views[:2], [result] * (1 + bool(closing.kept)))
    if task is None:
        return None
    more = [(closing.bias, View(result.shape[-1:], (1,), 0)), (closing.kept, result)]
    names = (*arranged.names, *(name for name, _ in more if name))
    return step(task, names, (*arranged.views, *(view for name, view in more if name)), dtype)
