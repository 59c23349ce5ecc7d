"""What a kernel calls the things it reads, so that no argument's name collides with the kernel's own."""

from __future__ import annotations

import re

from fusegen.core.lets import ascii_name, is_reserved, safe_name
from fusegen.fuse.kernel import Kernel

# Names made from those of tensors and axes: x_ptr, x_v, x_stride1, j0, n1, D2.
_MADE = re.compile(r"[jnD]\d+|.*_(v|at|ptr|tile|part|chains|partial|row|next|element|state|stride\d+)")


def local_names(kernel: Kernel) -> dict[str, str]:
    """For arguments that cannot keep their name as a variable of the kernel, the name they get there."""
    own = [thing.name for thing in (*kernel.operands, *kernel.scalars)]
    others = [item.name for item in kernel.items]
    found: dict[str, str] = {}
    for name in own:
        if name.startswith("@"):  # a position along an axis
            found[name] = safe_name(name.removeprefix("@"), {*own, *others, *found.values()})
        elif is_reserved(name) or _MADE.fullmatch(name) or not name.isascii():
            base = safe_name(name, ())
            found[name] = safe_name(base if base != name else f"{name}_value", {*own, *others, *found.values()})
    return found


def stem(name: str) -> str:
    """The start of names made from ``name``; a position's @ is none of C's."""
    return ascii_name(name.replace("@", "the_"))


def pointer_name(name: str) -> str:
    """``x_ptr``."""
    return f"{stem(name)}_ptr"
