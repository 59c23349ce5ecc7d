"""Functions of JAX's in declarations: of JAX where it is installed, and of modules that look like JAX's everywhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fusegen as fg
from fusegen.declare.value import Value

pytestmark = pytest.mark.emulator


def strict(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes arrays and numbers, and nothing else, as JAX's do."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for value in [*args, *kwargs.values()]:
            if any(isinstance(v, Value) for v in (value if isinstance(value, (list, tuple)) else [value])):
                raise TypeError(f"{name} requires ndarray or scalar arguments, got {type(value)}")
        return function(*args, **kwargs)

    call.__name__ = name
    return call


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def gelu(x: Any, approximate: bool = True) -> Any:
    assert approximate
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


LIKE_JAX: dict[str, dict[str, Callable[..., Any]]] = {
    "jax.numpy": {
        name: getattr(np, name)
        for name in (
            "exp", "sum", "mean", "where", "maximum", "zeros_like", "var", "einsum", "concatenate", "split", "clip",
            "expand_dims", "transpose", "reshape", "arange", "array", "ones", "linspace", "eye", "cumsum", "outer",
            "pad", "repeat", "sort", "power", "logaddexp", "tanh", "argmax", "take", "stack", "full", "zeros", "abs",
        )
    },
    "jax.numpy.linalg": {"norm": np.linalg.norm, "inv": np.linalg.inv},
    "jax.nn": {
        "softmax": softmax, "gelu": gelu, "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "one_hot": lambda x, n: np.eye(n, dtype=np.float32)[x], "leaky_relu": lambda x, s: np.where(x >= 0, x, s * x),
        "logsumexp": lambda x, axis: np.log(np.exp(x).sum(axis)), "tanh": np.tanh,
        "squareplus": lambda x, b=4: (x + np.sqrt(x * x + b)) / 2,
        "standardize": lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
        "glu": lambda x, axis=-1: x[..., :3] / (1 + np.exp(-x[..., 3:])),
    },
    "jax.lax": {
        "rsqrt": lambda x: 1 / np.sqrt(x), "stop_gradient": lambda x: x, "select": np.where, "scan": print,
        "clamp": lambda low, x, high: np.clip(x, low, high), "cumsum": lambda x, axis=0: np.cumsum(x, axis),
        "max": np.maximum, "integer_pow": lambda x, y: x**y,
    },
    "jax.scipy.special": {"expit": lambda x: 1 / (1 + np.exp(-x)), "xlogy": lambda x, y: x * np.log(y)},
}  # fmt: skip


@pytest.fixture(params=["installed", "look-alike"])
def jax(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "installed":
        found = pytest.importorskip("jax")
        pytest.importorskip("jax.scipy.special")
        with found.default_device(found.devices("cpu")[0]):
            yield found
        return
    made: dict[str, ModuleType] = {name: ModuleType(name) for name in ("jax", "jax.scipy", *LIKE_JAX)}
    for name, module in made.items():
        for function, own in LIKE_JAX.get(name, {}).items():
            setattr(module, function, strict(function, own))
        place, _, last = name.rpartition(".")
        if place:
            setattr(made[place], last, module)
        monkeypatch.setitem(sys.modules, name, module)
    made["jax"].core = SimpleNamespace(Tracer=())  # type: ignore[attr-defined]
    yield made["jax"]


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "elementwise": lambda jax, x: jax.numpy.exp(x) + jax.numpy.maximum(x, 0) * jax.nn.relu(x) - jax.lax.max(x, 0.5),
    "sums": lambda jax, x: jax.numpy.sum(x, axis=-1, keepdims=True) + jax.numpy.mean(x, axis=0) * x.sum(axis=0),
    "variance": lambda jax, x: (x - x.mean(-1, keepdims=True)) / jax.numpy.var(x, axis=-1, ddof=1, keepdims=True),
    "softmax": lambda jax, x: jax.nn.softmax(x, axis=-1) * jax.nn.gelu(x) + jax.nn.softmax(x, 0),
    "norm": lambda jax, x: x * jax.lax.rsqrt(jax.numpy.mean(x * x, -1, keepdims=True) + 1e-5) + jax.nn.standardize(x),
    "where": lambda jax, x: jax.numpy.where(x > 0, x, 0.0) + jax.lax.select(x > 0.5, x, -x) + jax.nn.leaky_relu(x, 0.2),
    "activations": lambda jax, x: jax.nn.sigmoid(x) * jax.nn.squareplus(x) + jax.scipy.special.expit(jax.nn.tanh(x)),
    "gate": lambda jax, x: jax.nn.glu(x) + jax.numpy.split(x, 2, axis=-1)[1],
    "product": lambda jax, x: jax.numpy.einsum("ij,kj->ik", x, x) + jax.numpy.linalg.norm(x, axis=-1),
    "beside": lambda jax, x: jax.numpy.concatenate([x, jax.numpy.zeros_like(x)], axis=1),
    "stacked": lambda jax, x: jax.numpy.stack([x, x * 2]).sum(0) + jax.numpy.full((6,), 2.0) + jax.numpy.zeros((4, 1)),
    "shapes": lambda jax, x: jax.numpy.transpose(jax.numpy.reshape(x, (6, 4))) + jax.numpy.expand_dims(x[0], 0),
    "bounds": lambda jax, x: jax.numpy.clip(x, -0.5, 0.5) + jax.lax.clamp(-1.0, x, 0.1) + jax.lax.integer_pow(x, 3),
    "made": lambda jax, x: (
        jax.numpy.arange(6) * x + jax.numpy.array([1.0, 2, 3, 4, 5, 6]) * jax.numpy.linspace(0.0, 1.0, 6)
    ),
    "made of ones": lambda jax, x: jax.numpy.ones((4, 6)) + x @ jax.numpy.eye(6, dtype="float32"),
    "scans": lambda jax, x: jax.numpy.cumsum(x, axis=1) + jax.lax.cumsum(x, axis=0),
    "one hot": lambda jax, x: jax.nn.one_hot(jax.numpy.argmax(x, -1), 6) + jax.numpy.outer(x[:, 0], x[0]),
    "padded": lambda jax, x: jax.numpy.pad(x, ((0, 0), (1, 1))) + jax.numpy.repeat(x, 2, axis=1)[:, :8],
    "numbers": lambda jax, x: jax.numpy.logaddexp(x, 0.0) + jax.numpy.power(jax.numpy.abs(x), 1.5),
    "logsumexp": lambda jax, x: jax.nn.logsumexp(x, axis=1) + jax.lax.stop_gradient(jax.numpy.tanh(x)).sum(axis=1),
}  # fmt: skip


def data() -> Any:
    return np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


@pytest.mark.parametrize("name", sorted(CASES))
def test_functions_of_jax_are_an_op_as_they_stand(jax: Any, name: str) -> None:
    case = CASES[name]
    op = fg.op(lambda x: case(jax, x), name="jaxs")
    expected = case(jax, jax.numpy.array(data()))
    np.testing.assert_allclose(op(data()), np.asarray(expected), rtol=2e-5, atol=2e-5)
    assert op.backward(data()).outputs[0].base == "d_x"


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a sort": (lambda jax, x: jax.numpy.sort(x), r"jax\.numpy\.sort of a symbolic tensor(.|\n)*outside the op"),
    "an inverse": (lambda jax, x: jax.numpy.linalg.inv(x), r"jax\.numpy\.linalg\.inv of(.|\n)*outside"),
    "a scan": (lambda jax, x: jax.lax.scan(len, x, x), r"jax\.lax\.scan of(.|\n)*a Python loop"),
    "an update": (lambda jax, x: x.at[0].set(1.0), r"\.at of a symbolic(.|\n)*x\.clone\(\)"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_said_is_refused_at_its_line(jax: Any, name: str) -> None:
    case, says = REFUSED[name]
    with pytest.raises(fg.DeclarationError, match=says) as caught:
        fg.op(lambda x: case(jax, x), name="jaxs").trace(data())
    assert f"test_jax_functions.py, line {case.__code__.co_firstlineno}" in str(caught.value)


def test_a_function_that_was_taken_out_of_its_module_before_is_refused(jax: Any) -> None:
    exp = jax.numpy.exp
    function: Any = lambda x: exp(x)  # noqa: E731
    with pytest.raises(fg.DeclarationError, match=r"under their modules' names: jnp\.exp\(x\)") as caught:
        fg.op(function, name="taken").trace(data())
    assert "test_jax_functions.py, line " in str(caught.value)


def test_jax_has_its_own_behind_a_declaration_and_in_other_threads(jax: Any) -> None:
    own, told = jax.numpy.exp, list[Any]()

    def elsewhere() -> None:
        told.append(np.asarray(jax.numpy.exp(jax.numpy.zeros((2,)))))

    def body(x: Any) -> Any:
        assert jax.numpy.exp is not own
        fg.op(lambda y: y + 1).trace(data())  # a trace within
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return jax.numpy.exp(x) * float(jax.numpy.exp(0.0))

    fg.op(body).trace(data())
    assert jax.numpy.exp is own and (told[0] == 1).all()
    with pytest.raises(fg.DeclarationError):
        fg.op(lambda x: jax.numpy.sort(x), name="sorted").trace(data())
    assert jax.numpy.exp is own


def test_tensors_of_jax_are_traced(jax: Any) -> None:
    if not hasattr(jax, "Array"):
        pytest.skip("looks like JAX, and has no arrays")
    assert "__global__" in fg.ops.softmax.emit(jax.numpy.ones((3, 4)), -1)
