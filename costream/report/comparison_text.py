"""The comparison of two runs as text."""

from __future__ import annotations

import json
from typing import Any

from costream.core.formatting import clean, counted, short_time, si, times
from costream.report.comparison import Agreement, Comparison, Difference

_SHOWN = 10  # differences shown per run; the longest


def describe(comparison: Comparison) -> str:
    """Return the lines of one run."""
    lines = [clean(comparison.name) + ("  the same" if comparison.equal else "")]
    settings = comparison.settings()
    lines += _columns([(key, _short(key, a), _short(key, b)) for key, a, b in settings])
    lines += _agreement_lines("steps", comparison.steps)
    scores = comparison.scores
    if scores.count and scores.most > 0:
        mean = scores.total / scores.count
        where = "" if scores.time_s is None else f" at {short_time(scores.time_s, 2)}"
        lines.append(
            f"  scores differ by {mean:.3g} on average, by {scores.most:.3g} at most"
            f"{where} ({clean(scores.label or '')})"
        )
    lines += _agreement_lines("timeline", comparison.timeline)
    for side, alone in (("A", comparison.only_a), ("B", comparison.only_b)):
        lines += [
            f"  only {side} covers {short_time(x, 2)} to {short_time(y, 2)}" for x, y in alone
        ]
    lines += _columns(
        [
            (key.replace("_", " "), _cost_lines(key, a), _cost_lines(key, b) + _ratio(key, a, b))
            for key, a, b in comparison.costs()
            if a != b
        ]
    )
    return "\n".join(lines)


def _agreement_lines(what: str, agreement: Agreement) -> list[str]:
    if agreement.ratio is None:
        return [f"  {what}: nothing to compare"]
    length = short_time(agreement.compared_s)
    over = {"steps": f"agree for {{}} of {length}", "timeline": f"agrees for {{}} of the {length}"}
    head = f"  {what} {over[what].format(share_text(agreement.ratio))}"
    head += " in which either has an event" if what == "timeline" else ""
    if not agreement.count:
        return [head]
    longest = sorted(agreement.differences, key=lambda d: d.start_s - d.end_s)[:_SHOWN]
    more = f", the {_SHOWN} longest of" if agreement.count > _SHOWN else ","
    lines = [f"{head}{more} {counted(agreement.count, 'difference')}:"]
    return lines + [_line(d) for d in sorted(longest, key=lambda d: d.start_s)]


def _line(difference: Difference) -> str:
    when = f"{short_time(difference.start_s, 2):>10} {short_time(difference.end_s, 2):>10}"
    length = f"{difference.end_s - difference.start_s:7.2f} s"
    labels = (difference.a, difference.b)
    sides = " | ".join("–" if label is None else clean(label) for label in labels)
    return f"  {when} {length}  {sides}"


def _columns(rows: list[tuple[str, str, str]]) -> list[str]:
    width = max((len(key) for key, *_ in rows), default=0)
    return [f"  {clean(key):<{width}}  {a} | {b}" for key, a, b in rows]


def share_text(ratio: float) -> str:
    """Return a share in per cent, "100 %" only if it is exactly 1."""
    return "100 %" if ratio >= 1 else f"{min(99.9, 100 * ratio):.1f} %"


def _short(key: str, value: Any) -> str:
    if key == "weights_sha256" and isinstance(value, str):
        return value[:12] or "–"
    if value is None:
        return "–"
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _cost_lines(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if key.endswith("macs_per_step"):
        return si(value, "MAC")
    if key == "x_realtime":
        return times(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value).lower()


def _ratio(key: str, a: Any, b: Any) -> str:
    if key not in ("macs_per_step", "dense_macs_per_step", "ms_per_step") or not a or not b:
        return ""
    return f" ({times(b / a)} more)" if b > a else f" ({times(a / b)} less)"
