"""``python -m tools.bench.models``: Hugging Face's Llama and GPT-2 trained as they are, patched, and compiled.

Random weights from a config; every way starts from the same weights and sees the same sentences. The ways take turns,
step by step: whatever else the machine does slows all of them. Prints a Markdown table of step times and of how far the
loss curves are apart; 1 if a patched curve leaves the tolerance. The models come from the transformers package; without
it nothing is measured, and this says so.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch

import fusegen as fg

WARM_UP = 10
# Largest difference of two losses, relative: reorderings of float sums, which training amplifies step by step.
TOLERANCES = {"float32": 1e-3, "bfloat16": 2e-2}
# A patched curve may be so many times as far from eager's as eager's is from itself in a second run.
SPREADS = 4
WAYS = ("eager", "patched", "torch.compile", "patched, torch.compile")
AGAIN = "eager, again"


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
    """GPT-2: layer norms, GELU as tanh; without dropout, so that every way computes the same."""
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


def fresh(name: str, way: str, size: Size, options: Any) -> Any:
    """A model as a way has it, with the same weights for every way."""
    torch.manual_seed(0)
    model = MODELS[name](size).to(options.device, getattr(torch, options.dtype)).train()
    if "patched" in way:
        patched = fg.patch(model)
        if options.report and way == "patched":
            print(patched, file=sys.stderr)
    if "compile" in way:
        model = torch.compile(model)
    return model


def main() -> int:
    """Train each model each way; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS[:3], help="eager always runs")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--dtype", choices=TOLERANCES, default="bfloat16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--report", action="store_true", help="print what fg.patch swapped")
    options = parser.parse_args()
    try:
        import transformers
    except ImportError as error:
        print(f"skipped: the models are those of the transformers package, which cannot be imported ({error})")
        return 0
    size, tolerance = SIZES[options.size], TOLERANCES[options.dtype]
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, transformers {transformers.__version__}, {options.dtype}, {size}\n")
    print("| model | way | step, ms | eager / this | first loss | last loss | largest difference from eager |")
    print("|---|---|--:|--:|--:|--:|--:|", flush=True)
    failed = 0
    for name in options.models:
        torch._dynamo.reset()
        ways = ["eager", AGAIN, *(way for way in options.ways if way != "eager")]
        models = {way: Trained(fresh(name, way, size, options)) for way in ways}
        for step in range(options.steps):
            words = sentence(size, step, options.device)
            for way in random.Random(step).sample(ways, len(ways)):
                models[way].step(words, options.device)
        base, allowed = models["eager"], tolerance
        for way, found in models.items():
            apart = max(abs(a - b) / abs(b) for a, b in zip(found.losses, base.losses, strict=True))
            if way == AGAIN:  # some of torch's own kernels add in no fixed order
                allowed = max(tolerance, SPREADS * apart)
            failed += way == "patched" and not apart <= allowed
            times = f"{found.median:.2f} | {base.median / found.median:.2f}"
            cells = f"{times} | {found.losses[0]:.4f} | {found.losses[-1]:.4f} | {apart:.1e}"
            print(f"| {name} | {way} | {cells} |", flush=True)
    if failed:
        print("\na patched model's losses leave the tolerance", file=sys.stderr)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
