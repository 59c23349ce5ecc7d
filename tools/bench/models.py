"""``python -m tools.bench.models``: Hugging Face's Llama and GPT-2 trained as they are, patched, and compiled.

Random weights from a config; every variant starts from the same weights and sees the same sentences. They take turns,
step by step: whatever else the machine does slows all of them. Prints a Markdown table of step times and of how far the
loss curves are apart; 1 if a patched curve is further from eager's than rounding explains: eager trains three times
more from weights of which half are the neighbouring numbers. The models come from the transformers package; without it
nothing is measured, and this says so.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import fusegen as fg

WARM_UP = 10
# A patched curve may be so many times as far from eager's as the furthest two of eager's own runs are from each other.
# These are the same but for rounding: their four curves have six distances, of which a seventh is seldom the largest.
MARGIN = 1.25
NUDGES = 3
DTYPES = ("float32", "bfloat16")
CONFIGURATIONS = ("eager", "patched", "torch.compile", "patched, torch.compile")
NUDGED = tuple(f"eager, nudged {i + 1}" for i in range(NUDGES))


@dataclass(frozen=True)
class Size:
    """How large a model and its batches are."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int


SIZES = {
    "tiny": Size(2, 64, 4, 128, 2, 16),
    "small": Size(12, 768, 12, 32000, 8, 1024),
    "large": Size(8, 4096, 32, 32000, 4, 2048),
}


def llama(size: Size) -> Any:
    """Llama: RMS norms, gated MLPs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size.vocabulary, hidden_size=size.width, intermediate_size=size.width * 43 // 16,
            num_hidden_layers=size.layers, num_attention_heads=size.heads, max_position_embeddings=size.length,
            use_cache=False, bos_token_id=0, eos_token_id=1, pad_token_id=None,
        )
    )  # fmt: skip


def gpt2(size: Size) -> Any:
    """GPT-2: layer norms, GELU as tanh; without dropout, so that every variant computes the same."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size.vocabulary, n_embd=size.width, n_layer=size.layers, n_head=size.heads,
            n_positions=size.length, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
            eos_token_id=1,
        )
    )  # fmt: skip


MODELS = {"Llama": llama, "GPT-2": gpt2}


def sentence(size: Size, step: int, device: str) -> torch.Tensor:
    """A batch of arithmetic progressions, which a model can learn."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, size.vocabulary, (size.batch, 1), generator=generator)
    stride = torch.randint(1, 8, (size.batch, 1), generator=generator)
    return ((start + stride * torch.arange(size.length)) % size.vocabulary).to(device)


@dataclass
class Trained:
    """A model in training: the loss of every step, and its milliseconds."""

    model: Any
    losses: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, words: torch.Tensor, device: str) -> None:
        """One more."""
        _wait(device)
        start = time.perf_counter()
        loss = self.model(input_ids=words, labels=words).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        _wait(device)
        self.times.append(1e3 * (time.perf_counter() - start))
        self.losses.append(float(loss.detach()))

    @property
    def median(self) -> float:
        """Of a step's milliseconds, after the first ones."""
        return statistics.median(self.times[min(WARM_UP, len(self.times) - 1) :])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def fresh(name: str, variant: str, size: Size, options: Any) -> Any:
    """A model as a variant has it, with the same weights for every variant."""
    torch.manual_seed(0)
    model = MODELS[name](size).to(options.device, getattr(torch, options.dtype)).train()
    if variant in NUDGED:
        nudge(model, NUDGED.index(variant))
    if "patched" in variant:
        patched = fg.patch(model)
        if options.report and variant == "patched":
            print(patched, file=sys.stderr)
    if "compile" in variant:
        model = torch.compile(model)
    return model


def nudge(model: torch.nn.Module, seed: int) -> None:
    """Move half of all weights to a neighbouring number, as rounding does with all that is computed of them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            steps = torch.randint(-1, 3, weight.shape, generator=generator).clamp(max=1) * torch.finfo(weight.dtype).eps
            weight.mul_((1 + steps).to(weight.device, weight.dtype))


def apart(curve: Sequence[float], base: Sequence[float]) -> float:
    """How far two loss curves are from each other, relative: the root of the mean square over the steps."""
    return math.sqrt(statistics.fmean(((a - b) / b) ** 2 for a, b in zip(curve, base, strict=True)))


def allowed(curves: Mapping[str, Sequence[float]]) -> float:
    """How far from eager's a curve may be whose numbers are rounded otherwise."""
    own = [curves[variant] for variant in ("eager", *NUDGED)]
    return MARGIN * max(apart(a, b) for a, b in itertools.combinations(own, 2))


def main() -> int:
    """Train each model as each variant; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--configurations", nargs="+", choices=CONFIGURATIONS, default=CONFIGURATIONS[:3], help="eager always runs"
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--report", action="store_true", help="print what fg.patch swapped")
    options = parser.parse_args()
    try:
        import transformers
    except ImportError as error:
        print(f"skipped: the models are those of the transformers package, which cannot be imported ({error})")
        return 0
    size = SIZES[options.size]
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, transformers {transformers.__version__}, {options.dtype}, {size}\n")
    print("| model | variant | step, ms | eager / this | first loss | last loss | difference from eager |")
    print("|---|---|--:|--:|--:|--:|--:|", flush=True)
    failed = 0
    for name in options.models:
        torch._dynamo.reset()
        variants = ["eager", *NUDGED, *(variant for variant in options.configurations if variant != "eager")]
        models = {variant: Trained(fresh(name, variant, size, options)) for variant in variants}
        for step in range(options.steps):
            words = sentence(size, step, options.device)
            for variant in random.Random(step).sample(variants, len(variants)):
                models[variant].step(words, options.device)
        base, curves = models["eager"], {variant: found.losses for variant, found in models.items()}
        for variant, found in models.items():
            distance = apart(found.losses, base.losses)
            failed += variant == "patched" and not distance <= allowed(curves)
            times = f"{found.median:.2f} | {base.median / found.median:.2f}"
            cells = f"{times} | {found.losses[0]:.4f} | {found.losses[-1]:.4f} | {distance:.1e}"
            print(f"| {name} | {variant} | {cells} |", flush=True)
        print(f"\n{name}: {allowed(curves):.1e} is what rounding explains\n", file=sys.stderr)
    if failed:
        print("\na patched model's losses are further from eager's than rounding explains", file=sys.stderr)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
