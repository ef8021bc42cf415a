"""Timeline as a strip: segments with their labels, gaps and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from costream.core.formatting import counted, short_time
from costream.core.records import Segment
from costream.draw.palette import Paint, Palette
from costream.report.markup import Html, join, percent, tag
from costream.report.run_summary import RunSummary
from costream.report.swatches import block, fills
from costream.report.time_axis import TimeAxis

HEIGHT = 46
MOST_LINKS = 60  # more would be too many to step through with the Tab key
MOST_OUTLINED = 100  # with more, the lines between them would hide the segments
_LETTER = 7.6  # width of a letter, CSS pixels; generous
_WIDTHS = (300, 420, 560, 720, 900, 1200)  # widths of the strip that style.css knows (.w300 ...)


def strip(summary: RunSummary, palette: Palette, prefix: str, head: str | None) -> Html:
    """Return the strip of one head of a run; None: a single head.

    A segment links to the element ``prefix`` + "s" + its number.
    """
    axis = TimeAxis(*summary.span_s)
    links = 0 < len(summary.segments) <= MOST_LINKS
    if summary.segment_count > len(summary.segments):
        shown = join(_shares(summary, axis, palette, head))
    else:
        shown = join(
            _segment(segment, axis, palette, f"#{prefix}s{k + 1}", links)
            for k, segment in summary.timeline(head)
        )
    return tag(
        "svg",
        tag("rect", width="100%", height=str(HEIGHT), class_="ground"),
        axis.grid(),
        shown,
        _gaps(summary, axis),
        _faults(summary, axis),
        class_="strip" if summary.segment_count <= MOST_OUTLINED else "strip dense-strip",
        width="100%",
        height=str(HEIGHT),
        role="group" if links else "img",
        aria_label=describe(summary, head),
    )


def small_strip(summary: RunSummary, palette: Palette, most: int) -> Html:
    """Return the strips of a run for a cell of a table, each with ``most`` blocks or a few more."""
    return join(_small_strip(summary, palette, head, most) for head in summary.heads.names)


def _small_strip(summary: RunSummary, palette: Palette, head: str | None, most: int) -> Html:
    axis = TimeAxis(*summary.span_s)
    shares = [(axis.share(a), axis.share(b), label) for a, b, label in stretches(summary, head)]
    blocks: dict[Paint, list[Html]] = {}
    for start, end, label in outline(shares, most):
        place = {"x": f"{100 * start:.1f}%", "width": f"{max(0.3, 100 * (end - start)):.1f}%"}
        blocks.setdefault(palette.paint(label), []).append(tag("rect", **place))
    return tag(
        "svg",
        tag("rect", width="100%", class_="ground"),
        (tag("g", inner, fill=fill) for paint, inner in blocks.items() for fill in fills(paint)),
        _gaps(summary, axis, 16, most),
        class_="mini",
        width="100%",
        height="16",
        role="img",
        aria_label=describe(summary, head, most=6),
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


def bands(summary: RunSummary, label: str, axis: TimeAxis, paint: Paint) -> Html:
    """Return the segments of ``label`` as a thin line at the bottom of its curve."""
    if summary.segment_count > len(summary.segments):
        return Html("")
    segments = (s for s in summary.segments if s.label == label)
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


def describe(summary: RunSummary, head: str | None, most: int = 20) -> str:
    """Return the timeline of a head in words, for screen readers."""
    parts = [
        f"{s.label} {short_time(s.start_s)} to {short_time(s.end_s)}"
        for _, s in islice(summary.timeline(head), most)
    ]
    counts = (s.count for label, s in summary.stats.items() if summary.heads.owns(head, label))
    count = sum(counts)
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
        block(x, width, str(HEIGHT), paint),
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


def stretches(summary: RunSummary, head: str | None) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and label of the stretches of a head, merged if there are many."""
    if summary.segment_count <= 200:
        yield from ((s.start_s, s.end_s, s.label) for _, s in summary.timeline(head))
        return
    spans = summary.spans
    if spans is None:
        return
    names = list(summary.labels)
    start, last = 0, -1
    fullest = [int(k) for k in spans.fullest(summary.columns(head))]
    for k, column in enumerate([*fullest, -1]):
        if column != last:
            if last >= 0:
                begin_s = spans.start_s + start * spans.bin_s
                yield begin_s, spans.start_s + k * spans.bin_s, names[last]
            start, last = k, column


def _shares(
    summary: RunSummary, axis: TimeAxis, palette: Palette, head: str | None
) -> Iterator[Html]:
    """Yield blocks of the label that fills each bin most, for too many segments to draw."""
    for start_s, end_s, label in stretches(summary, head):
        x, width = axis.x(start_s), axis.width(start_s, end_s)
        yield block(x, width, str(HEIGHT), palette.paint(label))


def _gaps(
    summary: RunSummary, axis: TimeAxis, height: int = HEIGHT, most: int | None = None
) -> Html:
    return join(
        tag(
            "rect",
            tag("title", f"gap, {short_time(g.start_s)} to {short_time(g.end_s)}: {g.reason}"),
            x=axis.x(g.start_s),
            width=axis.width(g.start_s, g.end_s),
            height=str(height),
            fill="url(#gap)",
        )
        for g in summary.gaps[:most]
    )


def _faults(summary: RunSummary, axis: TimeAxis) -> Html:
    return join(
        tag(
            "svg",
            tag("title", f"error at {short_time(f.time_s)}: {f.message}"),
            tag("path", d="M-5 0H5L0 9Z", class_="fault"),
            x=percent(axis.share(f.time_s)),
            overflow="visible",
        )
        for f in summary.faults
        if f.time_s is not None
    )
