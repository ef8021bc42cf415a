"""Times, counts and ratios as text."""

from __future__ import annotations


def short_time(seconds: float, decimals: int = 1) -> str:
    """Return a time as ``M:SS.s``, or ``H:MM:SS.s`` from an hour on."""
    unit = 10**decimals
    total, fraction = divmod(round(max(0.0, seconds) * unit), unit)
    minutes, rest = divmod(total, 60)
    text = f"{minutes // 60}:{minutes % 60:02d}:" if minutes >= 60 else f"{minutes}:"
    return f"{text}{rest:02d}" + (f".{fraction:0{decimals}d}" if decimals else "")


def si(number: float, unit: str = "") -> str:
    """Return a count with its SI prefix and two or three digits: ``9.6 M``, ``410 MMAC``."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999.7 M is shown as 1.0 G, not as 1000 M.
        if abs(number) >= 0.9995 * size:
            return f"{three_digits(number / size)} {prefix}{unit}".rstrip()
    return f"{number:.3g} {unit}".rstrip()


def three_digits(number: float) -> str:
    """Return ``9.6``, ``43.1``, ``410``: one decimal below a hundred, none from there on."""
    return f"{number:.1f}" if abs(number) < 99.95 else f"{number:.0f}"


def times(ratio: float) -> str:
    """Return a ratio as ``8.2x``, or ``43x`` from ten on."""
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def counted(number: int, noun: str) -> str:
    """Return ``1 error``, ``2 errors``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
