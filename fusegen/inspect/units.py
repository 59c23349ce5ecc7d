"""Bytes, times and counts as people read them: three digits and a unit."""

from __future__ import annotations


def size_text(size: float) -> str:
    """Bytes: ``11.4 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError


def time_text(microseconds: float) -> str:
    """Microseconds: ``5.34 µs``, from a thousand on ``1.2 ms``."""
    value, unit = (microseconds / 1000, "ms") if microseconds >= 999.5 else (microseconds, "µs")
    return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"


def count_text(count: float) -> str:
    """Operations: ``2.42 G``."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 999.5 or unit == "T":
            return f"{count:.0f} {unit}".strip() if not unit or count >= 99.95 else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError
