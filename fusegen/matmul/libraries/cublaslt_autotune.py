"""Which of cuBLASLt's algorithms does a matrix product of halves, measured.

torch takes the one that the library's heuristic likes best, which is not always the fastest: on an H200 the plain
product fp16 8192 x 768 x 3072 takes 61 us, and 56 by the eighth that the heuristic offers; bf16 16384 x 1024 x 4096
takes 198 and 177 by the fifth. Which one that is depends on the exact sizes (how tiles fill the multiprocessors), so
large products are measured for theirs, beside torch's own routine, and remembered on disk. Of sizes that differ in
every call only the first few are: torch runs the others.

The same is done for products with those epilogues that cuBLASLt has (matmul/libraries/cublaslt_epilogues).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.launch.cache import default_cache
from fusegen.launch.checksummed import digest
from fusegen.launch.memo import compiler_digest
from fusegen.matmul.libraries import cublaslt, cublaslt_api
from fusegen.matmul.libraries.cublaslt import WORKSPACE, Algorithm, MatmulOptions, Planned
from fusegen.matmul.libraries.cublaslt_api import CublasLtEpilogue
from fusegen.matmul.padding import ALIGNMENT, suits
from fusegen.matmul.task import MEASURING, Factors, Task, TransientFailure
from fusegen.matmul.views import MatmulViews
from fusegen.plan import frameworks
from fusegen.plan.native_step import TorchStep, View

HALVES = ("float16", "bfloat16")
BY_TORCH = "torch"
# Algorithms that are asked for, those that are measured again, and how often.
MOST_OFFERED, FINALISTS, ONCE, REPEATS = 8, 2, 2, 9
# What another algorithm has to gain to be taken: less is noise.
GAIN = 0.99
# Products alike but for their exact sizes that are measured in one process, and products that are planned at a time.
MOST_ALIKE, MOST_PLANNED = 8, 256
# How often a product is tried to be measured where there is no memory for that, and bytes of a result that is measured
# in memory of its own, because the call adds to what is there.
MOST_TRIES, MOST_ELSEWHERE = 3, 2**28
# Operations, or bytes, of a product from which it takes an H200 10 us: below, algorithms differ by less than it takes
# to launch one.
LEAST_OPERATIONS, LEAST_BYTES = 2**33, 2**25


def is_considered(device: str) -> bool:
    """Whether cuBLASLt is a candidate for tensors on ``device``."""
    return device.startswith("cuda") and cublaslt.version() > 0


def is_wanted(dtype: str) -> bool:
    """Whether torch is not set to multiply in some way that cuBLASLt is not set to: with sums of halves, or leaving
    some multiprocessors to others."""
    settings = frameworks.torch().settings()
    return not (dtype == "float16" and settings.sums_of_halves) and settings.kept_free is None


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
        titles = {name: name if name == BY_TORCH else f"cuBLASLt's algorithm {name}" for name in self.times}
        best = BY_TORCH
        if self.algorithm is not None:
            best = min((name for name in titles if name != BY_TORCH), key=self.times.__getitem__)
        times = ", ".join(f"{title} {self.times[name]:.1f} us" for name, title in titles.items())
        return f"{times}; best: {titles[best]}"


Check = Callable[[Planned], bool]
Routine = Callable[[Factors], None]

_planned: dict[Task, Planned | None] = {}
_alike: Counter[Task] = Counter()
_tried: Counter[Task] = Counter()


def planned(
    task: Task, given: Factors, by_torch: Routine | None = None, check: Check | None = None
) -> Planned | None:  # fmt: skip
    """The multiplication by the fastest algorithm, measured now if nobody has.

    None: torch's own routine is as fast; cuBLASLt does not do it; or it is not known yet and a CUDA graph is captured.

    Args:
        by_torch: torch's routine, the baseline; None: there is no such routine.
        check: whether what was chosen computes what it is to, with tensors of these sizes.

    Raises:
        TransientFailure: there is no memory to find out.
    """
    if task not in _planned:
        import torch

        with torch.cuda.device_of(given.out):
            if torch.cuda.is_current_stream_capturing():
                return None
            with MEASURING:
                if task not in _planned:
                    _decide(task, given, by_torch, check)
    return _planned.get(task)


def is_decided(task: Task) -> bool:
    """Whether the answer of ``planned`` is final."""
    return task in _planned


def is_refused(task: Task) -> bool:
    """Whether it is decided that cuBLASLt does not do it."""
    return task in _planned and _planned[task] is None


def _decide(task: Task, given: Factors, by_torch: Routine | None, check: Check | None) -> None:
    import torch

    if len(_planned) >= MOST_PLANNED:
        _planned.clear()
    try:
        choice = _choice(task, given, by_torch)
        found = None if choice.algorithm is None else Planned(task, choice.algorithm)
        _planned[task] = found if found is None or check is None or check(found) else None
    except torch.cuda.OutOfMemoryError as error:
        _tried[task] += 1
        if _tried[task] < MOST_TRIES:
            raise TransientFailure(str(error)) from error
        _planned[task] = None  # trying takes the allocator's reserves each time
    except RuntimeError:  # torch's own routine does it, or another candidate
        _planned[task] = None


def forget() -> None:
    """All that this process has planned and counted; what was measured is remembered on disk."""
    for known in (_planned, _alike, _tried):
        known.clear()


def _alone(task: Task) -> Task:
    """The same product where it is not added to what is there: one measurement is for both."""
    assert isinstance(task.epilogue, MatmulOptions)
    return replace(task, epilogue=replace(task.epilogue, adds=False))


def _choice(task: Task, given: Factors, by_torch: Routine | None) -> Choice:
    alone = _alone(task)
    found = remembered(alone)
    if found is not None:
        return found
    m, n, k = task.sizes
    rounded = (m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()
    bucket = replace(alone, sizes=rounded, pitches=(0, 0), left=(0, task.left[1]), right=(0, task.right[1]))
    mine = given if task == alone else _elsewhere(given)
    if not is_worth(task.sizes) or _alike[bucket] >= MOST_ALIKE or mine is None:
        return Choice({}, None if by_torch else Planned(task).algorithm)
    try:
        found = _measured(alone, mine, by_torch)
    except cublaslt_api.Unsupported:
        found = Choice({}, None)
    _alike[bucket] += 1
    default_cache().put(_place(alone), found.stored())
    return found


def _elsewhere(given: Factors) -> Factors | None:
    """The same with a result of its own, for a call that adds to what is there; None where that takes too much."""
    out = given.out
    if out.numel() * out.element_size() > MOST_ELSEWHERE:
        return None
    return replace(given, out=room_like(out))


def room_like(tensor: Any) -> Any:
    """Memory that lies as a tensor does, which clones of sliced tensors do not."""
    import torch

    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def remembered(task: Task) -> Choice | None:
    """What was measured of a product, here or in another process."""
    stored = default_cache().get(_place(task))
    return None if stored is None else Choice.read(stored)


def _place(task: Task) -> str:
    import torch

    matmul, name = torch.backends.cuda.matmul, torch.cuda.get_device_name(task.device)
    reduced = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    settings = str(torch.backends.cuda.preferred_blas_library()), *map(str, reduced)
    versions = str(torch.version.cuda), torch.__version__, str(cublaslt.version()), compiler_digest()
    return digest("algorithm", name, *settings, *versions, repr(replace(task, device=0)))


def _measured(task: Task, given: Factors, by_torch: Routine | None) -> Choice:
    """Results are written where ``given`` says.

    Raises:
        Unsupported: there is no algorithm.
        OutOfMemoryError: there is no room for what a measurement takes.
        RuntimeError: none runs, for reasons that may pass.
    """
    import torch

    from fusegen.matmul.libraries.stopwatch import Stopwatch

    clock = Stopwatch(ONCE, warm_up=1, device=given.out.device)  # first: it takes most of the memory
    plan, failed = Planned(task), list[RuntimeError]()
    candidates: dict[str, Callable[[], Any]] = {} if by_torch is None else {BY_TORCH: partial(by_torch, given)}
    offered: dict[str, Algorithm] = {}
    for place, algorithm in enumerate(plan.offers(MOST_OFFERED), 1):
        candidate = partial(_run, plan, algorithm, given)
        try:
            candidate()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # not launched
            failed.append(error)
            continue
        offered[str(place)] = algorithm
        candidates[str(place)] = candidate
    if not offered:
        answers = cublaslt_api.Unsupported("none of cuBLASLt's algorithms runs")
        raise next((error for error in failed if not isinstance(error, cublaslt_api.Unsupported)), answers)
    first = clock.turns(candidates)
    del clock
    best = sorted(offered, key=lambda candidate: first[candidate])[:FINALISTS]
    times = Stopwatch(REPEATS, device=given.out.device).turns(
        {candidate: candidates[candidate] for candidate in (BY_TORCH, *best) if candidate in candidates}
    )
    fastest = min(best, key=lambda candidate: times[candidate])
    if by_torch is not None and not (
        times[fastest] < GAIN * times[BY_TORCH] and _is_close(candidates[BY_TORCH], candidates[fastest], given.out)
    ):
        return Choice(times, None)
    return Choice(times, offered[fastest])


def _run(plan: Planned, algorithm: Algorithm, given: Factors) -> None:
    plan.use(algorithm)
    plan.run(given)


# Rows of a result in which two candidates are compared, and by how much they may differ: they round differently, and
# add up in another order.
_SAMPLED, _APART = 256, 0.02


def _is_close(one: Callable[[], Any], other: Callable[[], Any], out: Any) -> bool:
    """Whether two candidates give the same, but for rounding."""
    some = sample(out)
    one()
    expected = some.float()
    other()
    return not differs(some, expected, _APART)


def sample(matrix: Any) -> Any:
    """Some of its rows, as a view."""
    return matrix[:: -(-len(matrix) // _SAMPLED)]


def differs(found: Any, expected: Any, most: float) -> bool:
    """Whether all in all one differs from the other by more than this share of it, or has NaN elsewhere."""
    apart = (found.float() - expected).nan_to_num(0.0, 0.0, 0.0).norm()
    is_far = bool(apart > most * expected.nan_to_num(0.0, 0.0, 0.0).norm())
    return is_far or not bool((found.isnan() == expected.isnan()).all())


# -- a product alone, or with a bias -----------------------------------------------------------------------------------


def task_of(
    matmul: MatmulViews, dtype: DType, device: str, alignments: Sequence[int], bias: View | None, adds: bool
) -> Task | None:
    """What is planned for a product; None where torch's own routine does it in any case.

    Args:
        alignments: addresses of left, right, result and bias, modulo 16.
        bias: how it lies, if there is one.
        adds: whether it is added to the result.
    """
    views = matmul.views
    if dtype.name not in HALVES or any(len(view.shape) != 2 or view.copied for view in views):
        return None
    if not all(suits(view, dtype.size, a) for view, a in zip(views, alignments, strict=False)):
        return None
    if bias is not None and (adds or bias.strides != (1,) or (alignments[3] + bias.offset * dtype.size) % ALIGNMENT):
        return None
    (m, k), n = views[0].shape, views[1].shape[1]
    if not is_worth((m, n, k)) or not is_wanted(dtype.name):
        return None
    options = MatmulOptions(CublasLtEpilogue.DEFAULT if bias is None else CublasLtEpilogue.BIAS, adds)
    return Task.of(options, dtype.name, int(device.partition(":")[2] or 0), views[:2], views[2:])


def multiply(
    given: Factors, adds: bool = False, scale: float = 1.0, task: Task | None = None, workspace: int = WORKSPACE
) -> None:
    """``out = scale * left @ right``, plus the bias or what is there: by torch's routine or a faster algorithm.

    Args:
        task: what is planned for it; by default it is looked for, with at most ``workspace`` bytes besides.
    """
    task = task or _task_on(given, adds, workspace)
    try:
        plan = None if task is None else planned(task, given, _by_torch)
    except TransientFailure:
        plan = None
    if plan is None:
        _by_torch(given, adds, scale)
    else:
        plan.run(given, scale)


def _task_on(given: Factors, adds: bool, workspace: int) -> Task | None:
    (m, n), k, dtype = given.out.shape, given.left.shape[1], str(given.out.dtype).removeprefix("torch.")
    if dtype not in HALVES or not is_considered(given.out.device.type) or not is_worth((m, n, k)):
        return None
    options = MatmulOptions(CublasLtEpilogue.DEFAULT if given.bias is None else CublasLtEpilogue.BIAS, adds, workspace)
    return Task.on(options, given) if is_wanted(dtype) else None


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
