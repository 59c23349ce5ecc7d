"""Functions of the device headers, each called by itself: states of reductions, vectors, segments, fast functions."""

from __future__ import annotations

import ctypes
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from fusegen.launch.emulator.kernel import EmulatedKernel
from tests.support.emulated import kernel, launch

pytestmark = pytest.mark.emulator
Array = Any


def device(source: str, barriers: bool = False) -> EmulatedKernel:
    return kernel(f'#include "fusegen.cuh"\n{source}', barriers)


# ---- states ------------------------------------------------------------------------------------------------------

# What a thread makes of n numbers: one by one; in two walks, also with a mean that is far off, which finish() mends;
# put together of pieces, some of them empty, one after the other or all at once.
STATES = """
template <typename S> __device__ void pieces(const REAL* x, int n, S& state) {
  for (int begin = 0; begin < n; begin += 7) {
    S part;
    for (int i = begin; i < begin + 7 && i < n; ++i) part.add(x[i]);
    S nothing;
    part.merge(nothing);
    state.merge(part);
  }
}
template <typename S> __device__ void at_once(const REAL* x, int n, S& state) {
  fg::Stored<S> stored[9];
  for (int part = 0; part < 9; ++part) {
    S own;
    for (int i = part; i < n && part < 8; i += 8) own.add(x[i]);
    stored[part].put(own);
  }
  state = fg::merged(stored, 9);
}
KERNEL(const REAL* x, REAL* y, int n, int way) {
  fg::STATE<REAL> state;
  if (way == 0) {
    for (int i = 0; i < n; ++i) state.add(x[i]);
  } else if (way < 4) {
    for (int i = 0; i < n && way < 3; ++i) state.see(x[i]);
    SAW;
    state.settle();
    for (int i = 0; i < n; ++i) way == 2 ? state.take_fast(x[i]) : state.take(x[i]);
    state.finish();
  } else if (way == 4) {
    pieces(x, n, state);
  } else {
    at_once(x, n, state);
  }
  y[0] = state.result();
  y[1] = state.partner();
}"""
SAW = {"Moments": "state.saw(n)", "SumExp": "if (way == 3) state.see(x[0])"}
EXAMPLES: dict[str, list[float]] = {
    "none": [], "one": [2.5], "equal": [3.0] * 20, "far from zero": [1e6 + i % 5 for i in range(40)],
    "mixed": [((37 * i) % 101) / 10 - 5 for i in range(61)], "opposite": [-2.0, 2.0] * 9, "rising": list(range(30)),
}  # fmt: skip


@pytest.mark.parametrize("real", ["double", "float"])
@pytest.mark.parametrize("state", SAW)
def test_states_however_elements_come(state: str, real: str) -> None:
    function = device(STATES.replace("REAL", real).replace("STATE", state).replace("SAW", SAW[state]))
    dtype, eps = (np.float64, 1e-14) if real == "double" else (np.float32, 2e-6)
    for what, numbers in EXAMPLES.items():
        given = np.array(numbers, dtype)
        exact = given.astype(np.float64)
        if state == "Moments":
            result, partner = float(((exact - exact.mean()) ** 2).sum()) if len(exact) else 0.0, float(exact.sum())
        else:
            top = float(exact.max()) if len(exact) else -np.inf
            result, partner = float(np.exp(exact - top).sum()) if len(exact) else 0.0, top
        for way in range(6):
            if (state, way) == ("SumExp", 3) or (not numbers and way == 3) or (what == "far from zero" and way == 3):
                continue  # the maximum must be seen; deviations from a mean of zero cancel
            if state == "SumExp" and way == 2 and real == "double":
                continue  # the fast text is float32's
            found = np.full(2, 77, dtype)
            launch(function, 1, 1, given, found, ctypes.c_int(len(numbers)), ctypes.c_int(way))
            name = f"{state}, {what}, way {way}: {found}, not {result, partner}"
            assert np.isclose(found[0], result, rtol=40 * eps, atol=eps), name
            assert found[1] == partner or np.isclose(found[1], partner, rtol=40 * eps, atol=eps), name


FIRST = """KERNEL(const float* x, int64_t* y, float* z, int n) {
  fg::FirstMaximum<float> most, most_merged;
  fg::FirstMinimum<float> least, least_merged;
  fg::Maximum<float> top;
  fg::Minimum<float> bottom;
  fg::Product<float> product;
  for (int k = 0; k < n; ++k) {
    const int i = (k * 7) % n;  // in any order
    most.add(x[i], i), least.add(x[i], i), top.add(x[i]), bottom.add(x[i]), product.add(x[i]);
    fg::FirstMaximum<float> a;
    a.add(x[i], i);
    most_merged.merge(a);
    fg::FirstMinimum<float> b;
    b.add(x[i], i);
    least_merged.merge(b);
  }
  y[0] = most.result(), y[1] = most_merged.result(), y[2] = least.result(), y[3] = least_merged.result();
  fg::Stored<fg::FirstMaximum<float>> stored[16];
  fg::Stored<fg::Product<float>> products[16];
  for (int i = 0; i < 16; ++i) {
    fg::FirstMaximum<float> a;
    fg::Product<float> b;
    if (i < n) a.add(x[i], i), b.add(x[i]);
    stored[i].put(a), products[i].put(b);
  }
  y[4] = fg::merged(stored, 16).result(), z[5] = fg::merged(products, 16).result();
  z[0] = top.result(), z[1] = bottom.result(), z[2] = product.result(), z[3] = most.value, z[4] = least.value;
}"""


@pytest.mark.parametrize("numbers", [
    [3.0, 1.0, 3.0, 1.0, 2.0], [1.0], [-1.0, -2.0, -2.0, -1.0, -3.0, -3.0], [2.0, np.nan, 1.0, np.nan, 5.0],
    [np.inf, -np.inf, 0.5, np.inf, -np.inf], [0.0] * 5, [-np.inf] * 3, [np.inf] * 4,
])  # fmt: skip
def test_extrema_and_where_they_stand_first(numbers: list[float]) -> None:
    x, y, z = np.array(numbers, np.float32), np.zeros(5, np.int64), np.zeros(6, np.float32)
    launch(device(FIRST), 1, 1, x, y, z, ctypes.c_int(len(x)))
    most, least = int(np.argmax(x)), int(np.argmin(x))  # NaN before all numbers, as here
    assert list(y) == [most, most, least, least, most]
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(z, [x.max(), x.min(), x.prod(), x.max(), x.min(), x.prod()], rtol=1e-6)


MERGED = """KERNEL(const REAL* x, REAL* y) {
  const int i = threadIdx.x;
  fg::Moments<REAL> moments;
  fg::SumExp<REAL> sum;
  fg::Maximum<REAL> top;
  for (int k = 0; k < 3; ++k) {
    if (i % 8 != 5) moments.add(x[3 * i + k]), sum.add(x[3 * i + k]), top.add(x[3 * i + k]);
  }
  const auto eight = fg::lanes_merge<8>(moments);
  const auto eight_sums = fg::lanes_merge<8>(sum);
  const auto eight_tops = fg::lanes_merge<8>(top);
  const auto all = fg::block_merge<64>(moments);
  const auto all_sums = fg::block_merge<64>(sum);
  REAL* own = y + 8 * i;
  own[0] = eight.result(), own[1] = eight.partner(), own[2] = eight_sums.result(), own[3] = eight_sums.partner();
  own[4] = eight_tops.result(), own[5] = all.result(), own[6] = all_sums.result(), own[7] = all_sums.partner();
}"""


@pytest.mark.parametrize(("real", "dtype", "rtol"), [("double", np.float64, 1e-12), ("float", np.float32, 1e-5)])
@pytest.mark.parametrize("offset", [0.0, 3e4])
def test_states_of_threads_merge(real: str, dtype: Any, rtol: float, offset: float) -> None:
    x = (np.random.default_rng(1).normal(size=(64, 3)) * 3 + offset).astype(dtype)
    found = np.zeros((64, 8), dtype)
    launch(device(MERGED.replace("REAL", real), True), 1, 64, x, found)
    exact, there = x.astype(np.float64), np.arange(64) % 8 != 5

    def of(rows: Array) -> tuple[float, float, float, float]:
        values = exact[rows][there[rows]]
        top = values.max()
        return ((values - values.mean()) ** 2).sum(), values.sum(), np.exp(values - top).sum(), top

    for group in range(8):
        rows = np.arange(8 * group, 8 * group + 8)
        deviation, total, sums, top = of(rows)
        for row in rows:
            np.testing.assert_allclose(found[row, :5], [deviation, total, sums, top, top], rtol=rtol)
    deviation, _, sums, top = of(np.arange(64))
    np.testing.assert_allclose(found[0, 5:], [deviation, sums, top], rtol=rtol)


# ---- vectors -----------------------------------------------------------------------------------------------------

VECTORS = """
template <int N> __device__ void go(const TYPE* x, TYPE* y, float* wide, int n) {
  for (int i = 0; i < n; i += N) {
    const auto values = fg::load<N>(x, i, n);
    fg::store<N>(y, i, n, values);
    fg::store_unaligned<N>(y + n + 1, i, n, fg::load_unaligned<N>(x, i, n));
    for (int k = 0; k < N; ++k) wide[i + k] = float(values[k]);
    if (i + N <= n && sizeof(TYPE) * N > 2) {  // single halves are loaded as what they are
      const auto raw = fg::load_raw<N>(x + i);
      const auto again = fg::widen(raw);
      for (int k = 0; k < N; ++k) wide[64 + i + k] = float(again[k]);
      for (int k = 0; k < N; ++k) wide[128 + i + k] = float(fg::load(x + i + k));
    }
  }
}
KERNEL(const TYPE* x, TYPE* y, float* wide, int n) {
  go<1>(x, y, wide, n);
  go<2>(x, y + 128, wide + 256, n);
  go<4>(x, y + 256, wide + 512, n);
  go<8>(x, y + 384, wide + 768, n);
}"""
TYPES = {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bf16": torch.bfloat16,
    "int8_t": torch.int8, "int32_t": torch.int32, "bool": torch.bool,
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n", [1, 29, 32])
def test_vectors_hold_what_was_there(name: str, n: int) -> None:
    function = device(VECTORS.replace("TYPE", name))
    x = (torch.arange(64) * 3 - 40).to(TYPES[name])
    size = x.element_size()
    written = np.full(512 * size, 0x5A, np.uint8)
    wide = np.full(1024, -7777, np.float32)
    given = x.view(torch.uint8).numpy() if size > 1 else x.to(torch.uint8 if name == "bool" else x.dtype).numpy()
    launch(function, 1, 1, given, written, wide, ctypes.c_int(n))
    exact = x.float().numpy()
    bytes_ = np.frombuffer(given.tobytes(), np.uint8)
    for way, vector in enumerate((1, 2, 4, 8)):
        seen, whole = wide[256 * way :], n // vector * vector
        over = -(-n // vector) * vector
        np.testing.assert_array_equal(seen[:over], [*exact[:n], *[0] * (over - n)])
        for place in (64, 128) if vector * size > 2 else ():
            np.testing.assert_array_equal(seen[place : place + whole], exact[:whole])
            assert (seen[place + whole : place + 64] == -7777).all()
        stored = written[128 * way * size :][: 128 * size]
        np.testing.assert_array_equal(stored[: n * size], bytes_[: n * size])
        assert (stored[n * size : (n + 1) * size] == 0x5A).all()
        np.testing.assert_array_equal(stored[(n + 1) * size : (2 * n + 1) * size], bytes_[: n * size])
        assert (stored[(2 * n + 1) * size :] == 0x5A).all()


ACROSS = """
template <int N> __device__ void go(const TYPE* x, float* y, int* z, int head, int n) {
  const TYPE* row = x + head;
  const int first = fg::to_aligned<N>(row), end = fg::last_vector_end<N>(first, n);
  z[0] = first, z[1] = end;
  for (int i = 0; i < 2 * N; ++i) z[2 + i] = fg::end_element(i, first, end, n);
  for (int i = 0; i + N <= n; ++i) {
    const auto values = fg::widen(fg::load_raw_across<N>(row, i, n));
    for (int k = 0; k < N; ++k) y[N * i + k] = float(values[k]);
  }
}
KERNEL(const TYPE* x, float* y, int* z, int head, int n) { go<WIDTH>(x, y, z, head, n); }"""


@pytest.mark.parametrize(
    ("name", "width"), [("float", 4), ("float", 8), ("bf16", 8), ("double", 2), ("double", 8), ("int8_t", 8)]
)
def test_rows_that_begin_anywhere(name: str, width: int) -> None:
    function = device(ACROSS.replace("TYPE", name).replace("WIDTH", str(width)))
    x = (torch.arange(80) - 40).to(TYPES[name])
    aligned = torch.zeros(80 + 16, dtype=x.dtype)
    start = (-aligned.data_ptr() // x.element_size()) % (16 // x.element_size())
    aligned[start : start + 80] = x
    given = aligned.view(torch.uint8).numpy()[start * x.element_size() :]
    for head in range(width):
        for n in (0, 1, width - 1, width, 2 * width + 1, 5 * width + 3):
            y, z = np.full(80 * width, -999, np.float32), np.full(2 + 2 * width, -999, np.int32)
            launch(function, 1, 1, given, y, z, ctypes.c_int(head), ctypes.c_int(n))
            row = x[head : head + n].float().numpy()
            first = -head % width
            end = n if n <= first else n - (n - first) % width
            assert (z[0], z[1]) == (first, end)
            single = [*range(min(first, n)), *range(end, n)] if n > first else list(range(n))
            assert sorted(i for i in z[2:] if i != -1) == single
            for i in range(n - width + 1):
                np.testing.assert_array_equal(y[width * i : width * (i + 1)], row[i : i + width])


SEGMENTS = """KERNEL(const float* parts, float* y, int* z, int size, int begin, int end, int count) {
  for (int segment = 0; segment < count; ++segment) {
    const auto part = fg::part_of_segment<4>(segment, size, begin, end);
    const float sum = fg::segment_sum<8>(parts, part);
    if (threadIdx.x == 0) y[segment] = sum, z[segment] = part.any();
  }
  if (threadIdx.x == 0) fg::store_share(y + 100, 10, 1, 4, 5.0f);
}"""


@pytest.mark.parametrize(("size", "begin", "end"), [(16, 0, 96), (8, 0, 64), (24, 48, 96), (24, 36, 84), (40, 20, 60)])
def test_sums_of_segments(size: int, begin: int, end: int) -> None:
    parts = np.arange(1, 25, dtype=np.float32) ** 2
    y, z = np.full(200, -1, np.float32), np.full(12, -1, np.int32)
    numbers = [ctypes.c_int(value) for value in (size, begin, end, 12)]
    launch(device(SEGMENTS, True), 1, 8, parts, y, z, *numbers)
    for segment in range(12):
        inside = [i for i in range((end - begin) // 4) if segment * size <= begin + 4 * i < (segment + 1) * size]
        assert (y[segment], z[segment]) == (sum(parts[i] for i in inside), bool(inside))
    assert [y[i] for i in (100, 110, 120, 130, 140)] == [-1, 5, 0, 0, -1]


# ---- fast functions, as far off as their comments say ------------------------------------------------------------


def doubled(function: Any) -> Any:
    return lambda x: function(x.double())


FAST: list[tuple[str, Any, float, float, float]] = [
    ("near_log1p(x[i])", doubled(torch.log1p), -0.1, 0.1, 1e-6),
    ("fast_log1p(x[i])", doubled(torch.log1p), 0, 1, 2**-16),
    ("fast_exp(x[i])", doubled(torch.exp), -20, 20, 4e-6),
    ("fast_exp_below(x[i])", doubled(torch.exp), -80, 70, 1.2e-5),
    ("fast_exp_from_top(x[i])", doubled(torch.exp), -80, 0, 1.2e-5),
    ("fast_exp2(x[i])", doubled(torch.exp2), -20, 20, 1e-6),
    ("fast_log(x[i])", doubled(torch.log), 0.01, 50, 2e-6),
    ("fast_log2(x[i])", doubled(torch.log2), 0.01, 50, 2e-6),
    ("fast_sigmoid(x[i])", doubled(torch.sigmoid), -80, 80, 1.2e-5),
    ("fast_softplus(x[i])", doubled(torch.nn.functional.softplus), -30, 30, 2.5e-5),
    ("fast_logsigmoid(x[i])", doubled(torch.nn.functional.logsigmoid), -30, 30, 2.5e-5),
    ("fast_tanh(x[i])", doubled(torch.tanh), -12, 12, 6e-6),
    ("fast_erfc(x[i])", doubled(torch.erfc), -4, 4, 2**-18),
    ("fast_erfc(x[i])", doubled(torch.erfc), -9, 8.8, 2**-16),
    ("fast_erfc(x[i])", doubled(torch.erfc), -1, 1, 2**-19),
    ("fast_ratio(x[i], 3.0f)", lambda x: x.double() / 3, -50, 50, 4e-7),
    ("exp_clamped(x[i])", lambda x: torch.exp(x.double().clamp(max=40)), -20, 90, 1e-6),
    ("fast_exp_clamped(x[i])", lambda x: torch.exp(x.double().clamp(max=40)), -20, 90, 1e-5),
    ("fast_sin(x[i])", doubled(torch.sin), -50, 50, 2**-18.9),
    ("fast_cos(x[i])", doubled(torch.cos), -50, 50, 2**-18.9),
    ("fast_tan(x[i])", doubled(torch.tan), -50, 50, 2**-18.5),
    ("fast_sin(x[i])", doubled(torch.sin), -1e6, 1e6, 2**-18.9),
    ("fast_tan(x[i])", doubled(torch.tan), -1e6, 1e6, 2**-18.5),
]  # fmt: skip
CALLS = "\n".join(f"if (which == {i}) y[i] = fg::{case[0]};" for i, case in enumerate(FAST))
ALL = f"KERNEL(const float* x, float* y, int n, int which) {{ for (int i = 0; i < n; ++i) {{ {CALLS} }} }}"


@pytest.mark.parametrize("which", range(len(FAST)))
def test_fast_functions_are_as_near_as_they_say(which: int) -> None:
    call, exact, low, high, off = FAST[which]
    x = torch.linspace(low, high, 4001)[1:-1].contiguous()
    y = np.zeros(len(x), np.float32)
    launch(device(ALL), 1, 1, x.numpy(), y, ctypes.c_int(len(x)), ctypes.c_int(which))
    wanted = exact(x)
    error = (torch.from_numpy(y).double() - wanted).abs() / wanted.abs().clamp(min=1e-38)
    assert float(error.max()) < off, f"{call} is {float(error.max())} off at {float(x[error.argmax()])}"


# ---- functions of C++ text, beside torch's ------------------------------------------------------------------------

SINGLE = {
    "sigmoid": torch.sigmoid, "softplus": torch.nn.functional.softplus, "logsigmoid": torch.nn.functional.logsigmoid,
    "digamma": torch.digamma, "sign": torch.sign, "abs": torch.abs,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "square": torch.square, "powi<1>": lambda x: x, "powi<5>": lambda x: x**5, "powi<6>": lambda x: x**6,
    "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    "exp_clamped": lambda x: torch.exp(x.clamp(max=40 if x.dtype is torch.float32 else 350)),
}  # fmt: skip
PAIRS = {
    "minimum": torch.minimum, "maximum": torch.maximum, "fmod": torch.fmod, "remainder": torch.remainder,
    "floor_divide": torch.floor_divide, "xlogy": torch.xlogy, "add_rn": torch.add, "sub_rn": torch.sub,
    "mul_rn": torch.mul, "div_rn": torch.div,
}  # fmt: skip
BODY = "KERNEL(const T* x, const T* z, T* y, int n, int which) {{ for (int i = 0; i < n; ++i) {{ {} }} }}"
TABLE = BODY.format(
    "\n".join(
        [f"if (which == {i}) y[i] = T(fg::{name}(x[i]));" for i, name in enumerate(SINGLE)]
        + [f"if (which == {len(SINGLE) + i}) y[i] = fg::{name}(x[i], z[i]);" for i, name in enumerate(PAIRS)]
    )
)  # fmt: skip
NUMBERS = [
    0.0, -0.0, 0.3, -0.3, 0.5, 1.0, -1.0, 1.5, 2.0, -2.5, 3.7, -4.2, 7.0, 9.99, 10.0, 12.5, -12.3, 33.0, 60.0, 1e3,
    float("inf"), -float("inf"), float("nan"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*SINGLE, *PAIRS])
def test_functions_of_floats_are_torchs(name: str, dtype: torch.dtype) -> None:
    real = "float" if dtype is torch.float32 else "double"
    pairs = [(a, b) for a in NUMBERS for b in (NUMBERS if name in PAIRS else [0.0])]
    x, z = (torch.tensor([pair[i] for pair in pairs], dtype=dtype) for i in (0, 1))
    y = torch.full_like(x, 77)
    which = ctypes.c_int([*SINGLE, *PAIRS].index(name))
    launch(
        device(TABLE.replace("T*", f"{real}*").replace("T(", f"{real}(")),
        1,
        1,
        x.numpy(),
        z.numpy(),
        y.numpy(),
        ctypes.c_int(len(x)),
        which,
    )
    with np.errstate(all="ignore"):
        wanted = SINGLE[name](x) if name in SINGLE else PAIRS[name](x, z)
    eps = 4e-6 if dtype is torch.float32 else 1e-13
    torch.testing.assert_close(y, wanted.to(dtype), rtol=eps, atol=eps, equal_nan=True)


POLYGAMMA = BODY.format(
    "y[i] = which == 1 ? fg::polygamma<1>(x[i]) : which == 2 ? fg::polygamma<2>(x[i]) : fg::polygamma<3>(x[i]);"
)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_polygamma_is_mpmaths(order: int) -> None:
    x = torch.tensor([a for a in NUMBERS if 0 < abs(a) < 100 and (a > 0 or a % 1)], dtype=torch.float64)
    y = torch.zeros_like(x)
    numbers = ctypes.c_int(len(x)), ctypes.c_int(order)
    launch(device(POLYGAMMA.replace("T*", "double*")), 1, 1, x.numpy(), x.numpy(), y.numpy(), *numbers)
    wanted = torch.tensor([float(mpmath.psi(order, a)) for a in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(y, wanted, rtol=1e-11, atol=0)


WHOLE = {
    "minimum": torch.minimum, "maximum": torch.maximum, "fmod": torch.fmod, "remainder": torch.remainder,
    "floor_divide": torch.floor_divide, "left_shift": torch.bitwise_left_shift, "int_pow": None,
    "right_shift": torch.bitwise_right_shift,
}  # fmt: skip
INTEGERS = BODY.format(
    "\n".join(
        [f"if (which == {i}) y[i] = fg::{name}(x[i], z[i]);" for i, name in enumerate(WHOLE)]
        + ["if (which == 8) y[i] = fg::abs(x[i]);", "if (which == 9) y[i] = fg::sign(x[i]);",
           "if (which == 10) y[i] = fg::bitwise_not(x[i]);", "if (which == 11) y[i] = fg::to_integer<T>(x[i]);"]
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"), [("int32_t", torch.int32), ("int8_t", torch.int8), ("int64_t", torch.int64)]
)
def test_functions_of_integers_are_torchs(name: str, dtype: torch.dtype) -> None:
    small = [0, 1, -1, 2, -2, 3, 5, -7, 8, 13, -100, 127, -128]
    large = [31, 32, 63, 64, -(2**31), 2**31 - 1, 12345] if dtype is not torch.int8 else [31]
    pairs = [(a, b) for a in small + large for b in small + large]
    x, z = (torch.tensor([pair[i] for pair in pairs], dtype=dtype) for i in (0, 1))
    bits = 8 * x.element_size()
    for which, function in enumerate([*WHOLE.values(), torch.abs, torch.sign, torch.bitwise_not, lambda x: x]):
        y = torch.full_like(x, 77)
        numbers = ctypes.c_int(len(x)), ctypes.c_int(which)
        launch(
            device(INTEGERS.replace("T*", f"{name}*").replace("<T>", f"<{name}>")),
            1,
            1,
            x.numpy(),
            z.numpy(),
            y.numpy(),
            *numbers,
        )
        kept = torch.ones_like(x, dtype=torch.bool)
        what = [*WHOLE, "abs", "sign", "not", "to_integer"][which]
        if what in ("fmod", "remainder", "floor_divide"):
            kept = z != 0
            assert (y[~kept] == 0).all()
        if function is None:
            wanted = torch.tensor([_power(a, b, bits) for a, b in pairs]).to(dtype)
        else:
            wanted = function(x[kept], z[kept]) if what in WHOLE else function(x[kept])
        torch.testing.assert_close(y[kept], wanted, msg=lambda m, w=what: f"{w}: {m}")


def _power(base: int, exponent: int, bits: int) -> int:
    """As the header says: integers wrap around; a negative power is 0, except of 1 and -1."""
    if exponent < 0:
        return base if base == -1 and exponent % 2 else 1 if base in (1, -1) else 0
    wrapped = pow(base, exponent, 2**bits)
    return wrapped - 2**bits if wrapped >= 2 ** (bits - 1) else wrapped
