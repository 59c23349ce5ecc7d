"""Templates, compiled: one environment of Jinja for all."""

from __future__ import annotations

from functools import cache
from typing import Any

from fusegen.generate.rendered import template_text
from fusegen.kernel_program.text import nested


def template(name: str) -> Any:
    """The template ``name``."""
    return environment().get_template(f"{name}.cu.j2")


@cache
def environment() -> Any:
    """What compiles templates."""
    import jinja2  # costs 50 ms, which a warm start does not need

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_text), trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    made.filters["nest"] = _nest
    return made


def _nest(text: str, columns: int) -> str:
    """Lines moved to the right, but those of the preprocessor."""
    return "\n".join(nested(text.rstrip("\n").split("\n"), columns))
