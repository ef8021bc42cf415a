"""Colours and patterns of labels in SVG."""

from __future__ import annotations

from costream.draw.palette import PATTERNS, Paint
from costream.report.markup import Html, join, tag


def swatch(paint: Paint) -> Html:
    """Return a small square of the label's colour and pattern."""
    return _swatch(block("0", "100%", "14", paint))


def plain_swatch(**fill: str) -> Html:
    """Return a small square with this ``fill`` or ``style``."""
    return _swatch(tag("rect", width="14", height="14", **fill))


def _swatch(inner: Html) -> Html:
    return tag("svg", inner, class_="swatch", width="14", height="14", aria_hidden="true")


def block(x: str, width: str, height: str, paint: Paint) -> Html:
    """Return a rectangle filled with a label's colour and pattern."""
    plain, *over = fills(paint)
    place = {"x": x, "width": width, "height": height}
    return join(
        tag("rect", **place, fill=plain, class_="block"),
        (tag("rect", **place, fill=fill) for fill in over),
    )


def fills(paint: Paint) -> list[str]:
    """Return the colour of a paint, and the pattern over it if it has one."""
    plain = paint.color or "var(--grey)"
    if not paint.pattern:
        return [plain]
    shade = "light" if paint.ink == "#ffffff" else "dark"
    return [plain, f"url(#{PATTERNS[paint.pattern]}-{shade})"]


def patterns() -> Html:
    """Return the patterns that the blocks of a page refer to."""
    dark, light = "rgba(0,0,0,.38)", "rgba(255,255,255,.5)"
    out = []
    for shade, color in (("dark", dark), ("light", light)):
        drawn = {
            "stripes": tag("path", d="M-2 2L2-2M0 8L8 0M6 10L10 6", stroke=color, stroke_width="2"),
            "dots": tag("circle", cx="4", cy="4", r="1.7", fill=color),
            "bars": tag("path", d="M2 0V8", stroke=color, stroke_width="2"),
        }
        out += [_pattern(f"{name}-{shade}", inner) for name, inner in drawn.items()]
    lines = tag("path", d="M-2 2L2-2M0 8L8 0M6 10L10 6", class_="hatch")
    out.append(_pattern("gap", lines))
    return tag("svg", tag("defs", out), width="0", height="0", class_="defs", aria_hidden="true")


def _pattern(identifier: str, inner: Html) -> Html:
    size = {"width": "8", "height": "8"}
    return tag("pattern", inner, id=identifier, patternUnits="userSpaceOnUse", **size)
