"""Timeline as a strip: segments with their labels, gaps and errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from costream.core.formatting import counted, short_time
from costream.core.records import Segment
from costream.draw.palette import PATTERNS, Paint, Palette
from costream.report.digest import Digest
from costream.report.markup import Html, join, percent, tag

HEIGHT = 46
MOST_LINKS = 60  # more would be too many to step through with the Tab key
MOST_OUTLINED = 100  # with more, the lines between them would hide the segments
_LETTER = 7.6  # width of a letter, CSS pixels; generous
_WIDTHS = (300, 420, 560, 720, 900, 1200)  # widths of the strip that style.css knows (.w300 ...)


def strip(digest: Digest, palette: Palette, prefix: str, head: str | None) -> Html:
    """Return the strip of one head of a run; None: a single head.

    A segment links to the element ``prefix`` + "s" + its number.
    """
    axis = TimeAxis(*digest.span_s)
    links = 0 < len(digest.segments) <= MOST_LINKS
    if digest.segment_count > len(digest.segments):
        shown = join(_shares(digest, axis, palette, head))
    else:
        shown = join(
            _segment(segment, axis, palette, f"#{prefix}s{k + 1}", links)
            for k, segment in digest.timeline(head)
        )
    return tag(
        "svg",
        tag("rect", width="100%", height=str(HEIGHT), class_="ground"),
        axis.grid(),
        shown,
        _gaps(digest, axis),
        _faults(digest, axis),
        class_="strip" if digest.segment_count <= MOST_OUTLINED else "strip dense-strip",
        width="100%",
        height=str(HEIGHT),
        role="group" if links else "img",
        aria_label=describe(digest, head),
    )


def small_strip(digest: Digest, palette: Palette, most: int) -> Html:
    """Return the strips of a run for a cell of a table, each with ``most`` blocks or a few more."""
    return join(_small_strip(digest, palette, head, most) for head in digest.heads.names)


def _small_strip(digest: Digest, palette: Palette, head: str | None, most: int) -> Html:
    axis = TimeAxis(*digest.span_s)
    shares = [(axis.share(a), axis.share(b), label) for a, b, label in stretches(digest, head)]
    blocks: dict[Paint, list[Html]] = {}
    for start, end, label in outline(shares, most):
        place = {"x": f"{100 * start:.1f}%", "width": f"{max(0.3, 100 * (end - start)):.1f}%"}
        blocks.setdefault(palette.paint(label), []).append(tag("rect", **place))
    return tag(
        "svg",
        tag("rect", width="100%", class_="ground"),
        (tag("g", inner, fill=fill) for paint, inner in blocks.items() for fill in _fills(paint)),
        _gaps(digest, axis, 16, most),
        class_="mini",
        width="100%",
        height="16",
        role="img",
        aria_label=describe(digest, head, most=6),
    )


def outline(
    pieces: Sequence[tuple[float, float, str]], most: int
) -> list[tuple[float, float, str]]:
    """Return stretches of the unit length, in order, reduced to at most ``most``.

    If there are more, the length is cut into equal parts, each with the label that fills it most.
    """
    if len(pieces) <= most:
        return list(pieces)
    filled: list[dict[str, float]] = [{} for _ in range(most)]
    for start, end, label in pieces:
        first, last = (min(most - 1, int(most * share)) for share in (start, end))
        for k in range(first, last + 1):
            inside = min(end, (k + 1) / most) - max(start, k / most)
            filled[k][label] = filled[k].get(label, 0.0) + inside
    out: list[tuple[float, float, str]] = []
    for k, inside_of in enumerate(filled):
        label = max(inside_of, key=lambda label: inside_of[label], default="")
        if inside_of.get(label, 0.0) * 2 * most < 1:  # less than half of it
            continue
        if out and out[-1][2] == label and out[-1][1] == k / most:
            out[-1] = (out[-1][0], (k + 1) / most, label)
        else:
            out.append((k / most, (k + 1) / most, label))
    return out


def bands(digest: Digest, label: str, axis: TimeAxis, paint: Paint) -> Html:
    """Return the segments of ``label`` as a thin line at the bottom of its curve."""
    if digest.segment_count > len(digest.segments):
        return Html("")
    segments = (s for s in digest.segments if s.label == label)
    blocks = (
        tag(
            "rect",
            x=axis.x(s.start_s),
            width=axis.width(s.start_s, s.end_s),
            y="100%",
            height="5",
            transform="translate(0 -5)",
            fill=paint.color or "var(--grey)",
        )
        for s in segments
    )
    return join(blocks)


def swatch(paint: Paint) -> Html:
    """Return a small square of the label's colour and pattern."""
    return _swatch(_block("0", "100%", "14", paint))


def plain_swatch(**fill: str) -> Html:
    """Return a small square with this ``fill`` or ``style``."""
    return _swatch(tag("rect", width="14", height="14", **fill))


def _swatch(inner: Html) -> Html:
    return tag("svg", inner, class_="swatch", width="14", height="14", aria_hidden="true")


def describe(digest: Digest, head: str | None, most: int = 20) -> str:
    """Return the timeline of a head in words, for screen readers."""
    parts = [
        f"{s.label} {short_time(s.start_s)} to {short_time(s.end_s)}"
        for _, s in islice(digest.timeline(head), most)
    ]
    own = (s.count for label, s in digest.stats.items() if digest.heads.owns(head, label))
    count = sum(own)
    more = [f"and {count - len(parts)} more"] if count > len(parts) and parts else []
    begin = f"Timeline{'' if head is None else f' of {head}'}: {counted(count, 'segment')}"
    return f"{begin}: {', '.join(parts + more)}" if parts else begin


def _segment(segment: Segment, axis: TimeAxis, palette: Palette, href: str, link: bool) -> Html:
    paint = palette.paint(segment.label)
    x, width = axis.x(segment.start_s), axis.width(segment.start_s, segment.end_s)
    share = axis.share(segment.end_s) - axis.share(segment.start_s)
    when = f"{short_time(segment.start_s)} to {short_time(segment.end_s)}"
    words = f"{segment.label}, {when}, score {segment.score:.2f}"
    inner = join(
        tag("title", words),
        _block(x, width, str(HEIGHT), paint),
        _caption(segment.label, x, width, share, paint),
    )
    if link:
        return tag("a", inner, href=href, aria_label=words)
    return tag("a", inner, href=href, tabindex="-1")


def _caption(label: str, x: str, width: str, share: float, paint: Paint) -> Html | None:
    """Return the label, which is visible if the strip is wide enough for it."""
    needed = (len(label) * _LETTER + 12) / max(share, 1e-9)
    at_least = next((w for w in _WIDTHS if w >= needed), None)
    if at_least is None:
        return None
    letters = tag("text", label, x="7", y=str(HEIGHT // 2 + 5), fill=paint.ink)
    around = f"w{at_least}"
    if paint.pattern:  # letters on a pattern are hard to read
        size = {"width": round(len(label) * _LETTER + 8), "height": 20}
        letters = join(tag("rect", x="3", y="13", rx="3", fill=paint.color, **size), letters)
    return tag("svg", letters, x=x, width=width, height=str(HEIGHT), class_=around)


def _block(x: str, width: str, height: str, paint: Paint) -> Html:
    plain, *over = _fills(paint)
    place = {"x": x, "width": width, "height": height}
    return join(
        tag("rect", **place, fill=plain, class_="block"),
        (tag("rect", **place, fill=fill) for fill in over),
    )


def _fills(paint: Paint) -> list[str]:
    """Return the colour of a paint, and the pattern over it if it has one."""
    plain = paint.color or "var(--grey)"
    if not paint.pattern:
        return [plain]
    shade = "light" if paint.ink == "#ffffff" else "dark"
    return [plain, f"url(#{PATTERNS[paint.pattern]}-{shade})"]


def stretches(digest: Digest, head: str | None) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and label of the stretches of a head, merged if there are many."""
    if digest.segment_count <= 200:
        yield from ((s.start_s, s.end_s, s.label) for _, s in digest.timeline(head))
        return
    spans = digest.spans
    if spans is None:
        return
    names = list(digest.labels)
    start, last = 0, -1
    fullest = [int(k) for k in spans.fullest(digest.columns(head))]
    for k, column in enumerate([*fullest, -1]):
        if column != last:
            if last >= 0:
                begin_s = spans.start_s + start * spans.bin_s
                yield begin_s, spans.start_s + k * spans.bin_s, names[last]
            start, last = k, column


def _shares(digest: Digest, axis: TimeAxis, palette: Palette, head: str | None) -> Iterator[Html]:
    """Yield blocks of the label that fills each bin most, for too many segments to draw."""
    for start_s, end_s, label in stretches(digest, head):
        x, width = axis.x(start_s), axis.width(start_s, end_s)
        yield _block(x, width, str(HEIGHT), palette.paint(label))


def _gaps(digest: Digest, axis: TimeAxis, height: int = HEIGHT, most: int | None = None) -> Html:
    return join(
        tag(
            "rect",
            tag("title", f"gap, {short_time(g.start_s)} to {short_time(g.end_s)}: {g.reason}"),
            x=axis.x(g.start_s),
            width=axis.width(g.start_s, g.end_s),
            height=str(height),
            fill="url(#gap)",
        )
        for g in digest.gaps[:most]
    )


def _faults(digest: Digest, axis: TimeAxis) -> Html:
    return join(
        tag(
            "svg",
            tag("title", f"error at {short_time(f.time_s)}: {f.message}"),
            tag("path", d="M-5 0H5L0 9Z", class_="fault"),
            x=percent(axis.share(f.time_s)),
            overflow="visible",
        )
        for f in digest.faults
        if f.time_s is not None
    )


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


_STEPS_S = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400),
)
_TICKS = 7


@dataclass(frozen=True)
class TimeAxis:
    """Axis of media time from left to right."""

    start_s: float
    end_s: float

    def share(self, time_s: float) -> float:
        """Return the position of a time: 0 at the left end, 1 at the right."""
        place = (time_s - self.start_s) / (self.end_s - self.start_s)
        return min(1.0, max(0.0, place))

    def x(self, time_s: float) -> str:
        """Return the position of a time in per cent."""
        return percent(self.share(time_s))

    def width(self, start_s: float, end_s: float) -> str:
        """Return the width of an interval in per cent."""
        return percent(max(0.0, self.share(end_s) - self.share(start_s)))

    def ticks(self) -> list[float]:
        """Return round times, eight at most."""
        length_s = self.end_s - self.start_s
        step_s = next((s for s in _STEPS_S if length_s / s <= _TICKS), None)
        if step_s is None:
            step_s = 86400.0 * math.ceil(length_s / 86400 / _TICKS)
        first = math.ceil(self.start_s / step_s - 1e-9)
        last = math.floor(self.end_s / step_s + 1e-9)
        return [k * step_s for k in range(first, last + 1)]

    def label(self, time_s: float) -> str:
        """Return a time with as many digits as the ticks need."""
        length_s = self.end_s - self.start_s
        return short_time(time_s, 0 if length_s >= _TICKS else 2)

    def grid(self) -> Html:
        """Return thin vertical lines at the ticks, over the full height."""
        lines = (
            tag("line", x1=self.x(t), x2=self.x(t), y1="0", y2="100%", class_="grid")
            for t in self.ticks()
        )
        return join(lines)

    def scale(self) -> Html:
        """Return the line of tick labels."""
        marks = []
        for time_s in self.ticks():
            share = self.share(time_s)
            anchor = "start" if share < 0.03 else "end" if share > 0.97 else "middle"
            marks.append(
                tag("text", self.label(time_s), x=percent(share), y="13", text_anchor=anchor)
            )
        return tag(
            "svg", join(marks), class_="scale", width="100%", height="18", aria_hidden="true"
        )


def round_up(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is not below ``value``."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(k * unit for k in (1, 2, 5, 10) if k * unit >= value * (1 - 1e-9))
