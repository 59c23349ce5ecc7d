"""``fg.patch(model)``: the modules that fusegen computes, swapped in an existing model, reported and restored.

A swapped module stays the same object with the same parameters, buffers, hooks, name and training flag; only its class
becomes the subclass whose forward is fused. So optimizers, ties, DDP, state dicts and checkpoints notice nothing.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import fusegen as fg

from .cells import CELLS
from .drop_ins import DROP_INS
from .known import NotRecognized, adopted, recognize
from .losses import fused_loss

Choice = str | type | Callable[[str, nn.Module], bool]
Choices = Choice | Iterable[Choice] | None

_SWAPS = DROP_INS | CELLS
# Classes whose op would call what torch calls already.
_WHY_NOT = dict.fromkeys(
    (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    "a product by itself is torch's own routine either way; ops fuse what stands around it",
)


@dataclass(frozen=True)
class Found:
    """One module of the model.

    Args:
        name: its path in the model; "" is the model itself.
        kind: the class that it had.
        computes: the op that computes it now; "" where it was left as it was.
        why: why it was left.
    """

    name: str
    kind: str
    computes: str = ""
    why: str = ""


@dataclass
class Patched:
    """What ``fg.patch`` did to a model: printable as a table, and a context manager that restores it at the end."""

    model: nn.Module
    found: list[Found] = field(default_factory=list)
    _classes: list[tuple[str, nn.Module, type[nn.Module], type[nn.Module]]] = field(default_factory=list)
    _losses: list[tuple[nn.Module, dict[str, Any], Any]] = field(default_factory=list)

    @property
    def swapped(self) -> dict[str, str]:
        """Of each swapped module, by its path, the op that computes it now."""
        return {found.name: found.computes for found in self.found if found.computes}

    @property
    def left(self) -> dict[str, str]:
        """Of each module that was left as it was, by its path, why. Containers are not listed."""
        return {found.name: found.why for found in self.found if not found.computes}

    def restore(self) -> nn.Module:
        """Give every swapped module its class back; return the model. A second call does nothing.

        Raises:
            DeclarationError: a module's class was changed since, as FSDP2 does; all others are restored.
        """
        for module, attributes, loss in self._losses:
            if module.__dict__.get("_loss_function") is loss:
                del module.__dict__["_loss_function"]
                module.__dict__.update(attributes)
        self._losses.clear()
        kept = []
        for name, module, before, after in self._classes:
            if type(module) is after:
                module.__class__ = before
            elif type(module) is not before:
                kept.append((name, module, before, after))
        self._classes = kept
        if kept:
            raise fg.DeclarationError(
                "fg.patch(model).restore()",
                given=", ".join(f"{name}: {type(module).__name__}" for name, module, *_ in kept),
                expected="the classes that fg.patch set", fix="undo what changed them, then restore again",
            )  # fmt: skip
        return self.model

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def __rich__(self) -> Table:
        title = f"{type(self.model).__name__}: {len(self.swapped)} of {len(self.found)} modules computed by fusegen"
        table = Table("class", "modules", "first", "computed by", "left because", title=title)
        groups = Counter((found.kind, found.computes, found.why) for found in self.found)
        first: dict[Any, str] = {}
        for found in self.found:
            first.setdefault((found.kind, found.computes, found.why), found.name or "(the model)")
        for key in sorted(groups, key=lambda key: (not key[1], key)):
            table.add_row(key[0], str(groups[key]), first[key], key[1], key[2])
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=140).print(self)
        return text.getvalue()


def patch(model: nn.Module, *, only: Choices = None, skip: Choices = None) -> Patched:
    """Compute by fusegen what it can of ``model``, in place; ``print`` the result to see what that is, and why.

    Swapped are modules of exactly those classes of torch.nn that ``fusegen.nn`` has; modules of other libraries that
    are recognized by what they compute: RMS norms, activations and gated MLPs as in Hugging Face's Llama, Gemma and
    GPT-2; and the loss function of transformers' language models. Other functions that a forward calls are out of
    reach. A second call swaps nothing more.

    Args:
        model: any module; its class may be swapped itself.
        only: which modules to consider: patterns of paths (``"*.mlp"``), classes, functions of (path, module), or
            several of these. None: all.
        skip: which to leave, likewise.

    Raises:
        DeclarationError: ``model`` is no module.
    """
    if not isinstance(model, nn.Module):
        raise fg.DeclarationError(
            "fg.patch(model)", given=f"a {type(model).__name__}", expected="a torch.nn.Module",
            fix="pass the model; ops themselves are in fg.ops",
        )  # fmt: skip
    patched = Patched(model)
    # What is tried out is tried out plainly, wherever the call stands.
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.random.fork_rng([]):
        for name, module in model.named_modules():
            found = _swap(name, module, patched, _chosen(only, name, module, True), _chosen(skip, name, module, False))
            if found is not None:
                patched.found.append(found)
            _swap_loss(name, module, patched, only, skip)
    return patched


def _chosen(choices: Choices, name: str, module: nn.Module, by_default: bool) -> bool:
    if choices is None:
        return by_default
    each = [choices] if isinstance(choices, str) or callable(choices) else list(choices)
    return any(
        fnmatchcase(name, choice) if isinstance(choice, str)
        else isinstance(module, choice) if isinstance(choice, type)
        else bool(choice(name, module))
        for choice in each
    )  # fmt: skip


def _swap(name: str, module: nn.Module, patched: Patched, only: bool, skip: bool) -> Found | None:
    """What became of the module; None for a container that says nothing by itself."""
    before = type(module)
    kind = before.__name__
    if "fusegen_base" in before.__dict__ or before.__module__ == "fusegen.nn.gated":
        return Found(name, kind, why="fusegen's already")
    if not only or skip:
        listed = before in _SWAPS or not list(module.children())
        return Found(name, kind, why="not chosen (only=, skip=)") if listed else None
    try:
        after, computes = _becomes(module)
    except NotRecognized as reason:
        return Found(name, kind, why=str(reason))
    if after is None:
        return None if list(module.children()) else Found(name, kind, why=_WHY_NOT.get(before, "no op for it"))
    if "forward" in module.__dict__:
        return Found(name, kind, why="its forward was replaced on the module itself")
    module.__class__ = after
    patched._classes.append((name, module, before, after))
    return Found(name, kind, computes)


def _swap_loss(name: str, module: nn.Module, patched: Patched, only: Choices, skip: Choices) -> None:
    """The same for the loss function that a model of transformers holds, as ``_loss_function``."""
    path = f"{name}.loss_function".lstrip(".")
    if not _chosen(only, path, module, True) or _chosen(skip, path, module, False):
        return
    try:
        loss = fused_loss(module)
    except NotRecognized as reason:
        patched.found.append(Found(path, "loss_function", why=str(reason)))
        return
    if loss is not None:
        before = {key: value for key, value in module.__dict__.items() if key == "_loss_function"}
        module.__dict__["_loss_function"] = loss
        patched._losses.append((module, before, loss))
        patched.found.append(Found(path, loss.__name__, "cross_entropy of float32 logits"))


def _becomes(module: nn.Module) -> tuple[type[nn.Module] | None, str]:
    """The class that takes the place of the module's, and what computes it.

    Raises:
        NotRecognized: there is none, though it looks as if there could be.
    """
    kind = type(module)
    if kind in _SWAPS:
        return _SWAPS[kind], f"fg.nn.{kind.__name__}"
    parent = next((base for base in kind.__mro__ if base in _SWAPS), None)
    if parent is not None:
        raise NotRecognized(f"a subclass of torch.nn.{parent.__name__}, which may compute something else")
    if kind.__module__.startswith("torch."):
        return None, ""
    name = recognize(module)
    if name is None:
        return None, ""
    return adopted(kind, name), name
