"""``fg.patch``: what is swapped, what is left and why; nothing else of the model changes, and all of it comes back."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fusegen as fg

# -- a model whose parts have the names and the structure of Hugging Face's Llama, GPT-2 and Gemma -------------------


class LlamaRMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(states.dtype)


class OlmoRMSNorm(LlamaRMSNorm):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight * wide).to(states.dtype)


class T5LayerNorm(LlamaRMSNorm):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.to(torch.float32)
        wide = states * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide.to(self.weight.dtype) if self.weight.dtype is torch.bfloat16 else wide)


class GemmaRMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class InputScaledRMSNorm(GemmaRMSNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = (x.float() * (1.0 + self.weight.float())).type_as(x).float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class MeanNorm(LlamaRMSNorm):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return super().forward(states - states.mean(-1, keepdim=True))


class NewGELUActivation(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        cube = math.sqrt(2.0 / math.pi) * (input + 0.044715 * torch.pow(input, 3.0))
        return 0.5 * input * (1.0 + torch.tanh(cube))


class ClippedGELUActivation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x).clip(-10, 10)


class SiLUActivation(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.silu(input)


class LlamaMLP(nn.Module):
    def __init__(self, size: int, act_fn: nn.Module | None = None) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, 2 * size, bias=False)
        self.up_proj = nn.Linear(size, 2 * size, bias=False)
        self.down_proj = nn.Linear(2 * size, size, bias=False)
        self.act_fn = act_fn or SiLUActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class UngatedMLP(LlamaMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) + self.up_proj(x))


class GlmMLP(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(size, 4 * size, bias=False)
        self.down_proj = nn.Linear(2 * size, size, bias=False)
        self.activation_fn = SiLUActivation()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        gate, value = self.gate_up_proj(states).chunk(2, dim=-1)
        return self.down_proj(value * self.activation_fn(gate))


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = LlamaRMSNorm(size)
        self.mix = nn.Linear(size, size)
        self.ln = nn.LayerNorm(size)
        self.mlp = LlamaMLP(size)
        self.act = NewGELUActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        x = x + (self.mix(h) @ h.transpose(-1, -2)).softmax(-1) @ h
        return x + self.act(self.mlp(self.ln(x)))


class Transformer(nn.Module):
    def __init__(self, size: int = 8, words: int = 11) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.layers = nn.ModuleList(Layer(size) for _ in range(2))
        self.norm = self.layers[0].norm  # tied
        self.head = nn.Linear(size, words, bias=False)
        self.head.weight = self.embed.weight
        self.loss = nn.CrossEntropyLoss()

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        loss: torch.Tensor = self.loss(self.head(self.norm(x)).flatten(0, 1), targets.flatten())
        return loss


SWAPPED = {
    "layers.0.norm": "rms_norm, rounded before the weight",
    "layers.0.ln": "fg.nn.LayerNorm",
    "layers.0.mlp": "silu(gate) value",
    "layers.0.mlp.act_fn": "silu",
    "layers.0.act": "gelu, tanh",
    "layers.1.norm": "rms_norm, rounded before the weight",
    "layers.1.ln": "fg.nn.LayerNorm",
    "layers.1.mlp": "silu(gate) value",
    "layers.1.mlp.act_fn": "silu",
    "layers.1.act": "gelu, tanh",
    "loss": "fg.nn.CrossEntropyLoss",
}


def losses(model: nn.Module, steps: int = 5) -> list[float]:
    """The loss of each step of a training that depends on the model's weights alone."""
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        words = torch.randint(0, 11, (2, 5), generator=generator)
        loss = model(words, (words + 1) % 11)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def identities(model: nn.Module) -> list[Any]:
    parts = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(), *model.named_modules()]
    return [(name, id(part)) for name, part in parts] + [type(module) for module in model.modules()]


def test_a_transformer_trains_the_same() -> None:
    model = Transformer()
    other = copy.deepcopy(model)
    before = identities(model)
    patched = fg.patch(model)
    assert patched.swapped == SWAPPED
    assert identities(model)[: -len(list(model.modules()))] == before[: -len(list(model.modules()))]
    assert model.state_dict().keys() == other.state_dict().keys()
    assert isinstance(model.norm, LlamaRMSNorm) and repr(model) == repr(other)
    torch.testing.assert_close(losses(model), losses(other), rtol=1e-5, atol=1e-6)
    assert patched.restore() is model and identities(model) == before
    assert patched.restore() is model


def test_the_report() -> None:
    patched = fg.patch(Transformer())
    lines = str(patched).splitlines()
    assert lines[0].strip() == "Transformer: 11 of 21 modules computed by fusegen"
    rows = [[cell.strip() for cell in line.split("│")[1:6]] for line in lines]
    assert ["LlamaRMSNorm", "2", "layers.0.norm", "rms_norm, rounded before the weight", ""] in rows
    assert patched.left["layers.0.mix"].startswith("a product by itself is torch's own routine")
    assert patched.left["embed"] == "no op for it"


def test_twice_is_once() -> None:
    model = Transformer()
    first, second = fg.patch(model), fg.patch(model)
    assert second.swapped == {} and second.left["layers.0.ln"] == "fusegen's already"
    kinds = [type(module) for module in model.modules()]
    second.restore()
    assert [type(module) for module in model.modules()] == kinds
    first.restore()
    assert type(model.layers[0].ln) is nn.LayerNorm and type(model.norm) is LlamaRMSNorm


def test_as_a_context_manager_and_with_choices() -> None:
    model = Transformer()
    with fg.patch(model, only="*.ln") as patched:
        assert list(patched.swapped) == ["layers.0.ln", "layers.1.ln"] and type(model.loss) is nn.CrossEntropyLoss
        assert patched.left["loss"] == "not chosen (only=, skip=)"
    assert type(model.layers[0].ln) is nn.LayerNorm
    with fg.patch(model, only=[nn.LayerNorm, "loss"], skip=lambda name, module: name.startswith("layers.0")) as patched:
        assert list(patched.swapped) == ["layers.1.ln", "loss"]
    with pytest.raises(fg.DeclarationError, match=r"given:    a function"):
        fg.patch(losses)


def test_a_model_that_is_one_module_and_what_it_carries() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    calls: list[str] = []
    model[1].register_forward_hook(lambda *_: calls.append("hook"))
    single = model[1]
    with fg.patch(single) as patched:
        assert list(patched.swapped) == [""] and not single.training
        x = torch.randn(2, 4)
        torch.testing.assert_close(model(x), F.relu(model[0](x)))
    assert calls == ["hook"] and type(single) is nn.ReLU


def test_copies_and_pickles_of_a_patched_model() -> None:
    model = Transformer()
    fg.patch(model)
    words = torch.randint(0, 11, (2, 5))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
        assert other.norm is other.layers[0].norm and other.norm.weight is not model.norm.weight
        assert torch.equal(other(words, words), model(words, words))


# -- what is left ----------------------------------------------------------------------------------------------------


class OwnLayerNorm(nn.LayerNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


def replaced() -> nn.Module:
    module = nn.GELU()
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


class Dropped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(x), 0.5, self.training)


class DroppedMLP(Dropped, LlamaMLP): ...


class DroppedRMSNorm(Dropped, LlamaRMSNorm): ...


class TrainedReLU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(x, 0.1) if self.training else F.relu(x)


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a subclass": (lambda: OwnLayerNorm(4), "a subclass of torch.nn.LayerNorm"),
    "a subclass of ours": (lambda: fg.nn.AddLayerNorm(4), "fusegen's already"),
    "a replaced forward": (replaced, "its forward was replaced"),
    "another norm": (lambda: MeanNorm(4), "differs from every RMS norm"),
    "another order": (lambda: InputScaledRMSNorm(64), "differs from every RMS norm"),
    "another activation": (ClippedGELUActivation, "differs from every activation"),
    "another sum": (lambda: UngatedMLP(4), "differs from down_proj(silu(gate) value)"),
    "another gate": (lambda: LlamaMLP(4, nn.Tanh()), "differs from every activation"),
    "another sum in training": (lambda: DroppedMLP(4).eval(), "differs from down_proj(silu(gate) value)"),
    "another norm in training": (lambda: DroppedRMSNorm(4).eval(), "differs from every RMS norm"),
    "another activation in training": (lambda: TrainedReLU().eval(), "differs from every activation"),
    "no op": (lambda: nn.Dropout(), "no op for it"),
}


@pytest.mark.parametrize("what", LEFT)
def test_what_is_left_and_why(what: str) -> None:
    make, why = LEFT[what]
    module = make()
    kind = type(module)
    patched = fg.patch(module, only=lambda name, _: name == "")
    assert patched.swapped == {} and type(module) is kind
    assert why in patched.left[""]


def test_a_class_that_somebody_else_changed() -> None:
    model = nn.Sequential(nn.ReLU(), nn.GELU())
    patched = fg.patch(model)
    swapped = type(model[0])
    model[0].__class__ = type("ShardedReLU", (swapped,), {})
    with pytest.raises(fg.DeclarationError, match="0: ShardedReLU"):
        patched.restore()
    assert type(model[1]) is nn.GELU
    model[0].__class__ = swapped
    patched.restore()
    assert type(model[0]) is nn.ReLU


def test_trying_modules_out_depends_on_nothing_and_changes_nothing() -> None:
    model = Transformer()
    state = torch.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert fg.patch(model).swapped == SWAPPED
    assert torch.equal(torch.get_rng_state(), state)


# -- what recognized modules compute ---------------------------------------------------------------------------------


def both(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The module's answer by fusegen, and its own."""
    expected = module(x)
    with fg.patch(module) as patched:
        assert patched.swapped
        return module(x), expected


@pytest.mark.parametrize("kind", [LlamaRMSNorm, OlmoRMSNorm, GemmaRMSNorm])
def test_norms_round_where_their_class_does(kind: type[nn.Module]) -> None:
    module = kind(64).bfloat16()
    nn.init.normal_(module.weight)
    found, expected = both(module, torch.randn(32, 64, dtype=torch.bfloat16))
    assert (found != expected).float().mean() < 0.01


def test_mixed_dtypes_are_left_to_the_class() -> None:
    for kind in (LlamaRMSNorm, T5LayerNorm):
        for dtype in (torch.bfloat16, torch.float64):
            found, expected = both(kind(8), torch.randn(3, 8, dtype=dtype))
            assert found.dtype is expected.dtype and torch.equal(found, expected)


def test_gated_layers() -> None:
    x = torch.randn(3, 8)
    torch.testing.assert_close(*both(GlmMLP(8), x))
    torch.testing.assert_close(*both(LlamaMLP(8, nn.GELU("tanh")), x))
    module = LlamaMLP(8)
    fg.patch(module)
    calls: list[str] = []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda m, *_: calls.append(type(m).__name__))
    module(x)
    hook.remove()
    assert "SiLUActivation" in calls
    calls.clear()
    module.act_fn.register_forward_hook(lambda *_: calls.append("hook"))
    module(x)
    assert calls == ["hook"]


@pytest.mark.parametrize("kind", [LlamaMLP, GlmMLP])
def test_the_activation_of_a_gated_layer_that_was_patched_may_be_replaced(kind: Any) -> None:
    x, module, own = torch.randn(3, 8), kind(8), kind(8)
    own.load_state_dict(module.state_dict())
    fg.patch(module)
    name = "act_fn" if kind is LlamaMLP else "activation_fn"
    torch.testing.assert_close(module(x), own(x))
    for activation in (nn.ReLU(), nn.SiLU(), nn.RReLU().eval()):
        setattr(module, name, activation)
        setattr(own, name, activation)
        torch.testing.assert_close(module(x), own(x))
    getattr(module, name).forward = torch.square
    torch.testing.assert_close(module(x), own(x))


def ForCausalLMLoss(
    logits: Any, labels: Any, vocab_size: int, num_items_in_batch: Any = None, ignore_index: int = -100,
    shift_labels: Any = None, **others: Any,
) -> torch.Tensor:  # fmt: skip
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
    logits, words = logits.float().view(-1, vocab_size), shift_labels.view(-1)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = F.cross_entropy(logits, words, ignore_index=ignore_index, reduction=reduction)
    loss = loss if num_items_in_batch is None else loss / num_items_in_batch
    return loss * others.get("scale", 1)


class LlamaForCausalLM(nn.Module):
    @property
    def loss_function(self) -> Callable[..., torch.Tensor]:
        return self.__dict__.get("_loss_function", ForCausalLMLoss)


def test_the_loss_function_of_a_language_model() -> None:
    model = LlamaForCausalLM()
    logits = torch.randn(2, 5, 7, dtype=torch.bfloat16, requires_grad=True)
    words = torch.tensor([[1, 2, -100, 6, 3], [0, 5, 4, -100, 2]])
    calls: list[dict[str, Any]] = [{}, {"num_items_in_batch": 3}, {"shift_labels": words}, {"scale": 2}]
    with fg.patch(model) as patched:
        assert patched.swapped == {"loss_function": "cross_entropy of float32 logits"}
        assert fg.patch(model).swapped == {}
        loss: Any = model.loss_function
        for options in calls:
            loss.own = ForCausalLMLoss if "scale" in options else None  # nothing else may need it
            found = model.loss_function(logits=logits, labels=words, vocab_size=7, **options)
            expected = ForCausalLMLoss(logits, words, 7, **options)
            assert found.dtype is torch.float32
            torch.testing.assert_close(found, expected)
            gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
            torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-4)
        loaded = pickle.loads(pickle.dumps(model))
        assert loaded.loss_function.own is ForCausalLMLoss
    assert model.loss_function is ForCausalLMLoss and model.__dict__.keys() == LlamaForCausalLM().__dict__.keys()


# -- torch.compile and DDP -------------------------------------------------------------------------------------------


def test_compiled_models() -> None:
    model = Transformer()
    words = torch.randint(0, 11, (2, 5))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    expected = compiled(words, words)
    with fg.patch(compiled) as patched:
        assert {f"_orig_mod.{name}" for name in SWAPPED} == set(patched.swapped)
        torch.testing.assert_close(compiled(words, words), expected)
    torch.testing.assert_close(compiled(words, words), expected)


def test_distributed_data_parallel(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = Transformer()
        expected = losses(copy.deepcopy(model), 2)
        wrapped = nn.parallel.DistributedDataParallel(model)
        fg.patch(wrapped)
        torch.testing.assert_close(losses(wrapped, 2), expected, rtol=1e-5, atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()
