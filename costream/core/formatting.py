"""Formatting of numbers, times and names for display."""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Iterable, Sequence

from costream.core.errors import UsageError, printable
from costream.core.errors import clean as clean  # next to other ways to format text
from costream.core.records import (
    IMAGE_CLASSIFICATION,
    OBJECT_DETECTION,
    Compute,
    Header,
    Segment,
    Summary,
)
from costream.core.units import counted as counted
from costream.core.units import short_time as short_time
from costream.core.units import si as si
from costream.core.units import three_digits as three_digits
from costream.core.units import times as times

_MOST_NAMES = 12  # in one message
_OFTEN = 0.05  # share of the time; what is unfamiliar for less is not worth a line


def print_path(path: str | os.PathLike[str]) -> None:
    """Print a path on stdout: as it is for programs, without control characters on a terminal."""
    text = os.fspath(path)
    print(printable(text) if sys.stdout.isatty() else text)


def saving(macs: float, dense_macs: float) -> str:
    """Return the saving against the dense model: ``43x less``; '' if negligible or unknown."""
    if macs <= 0 or dense_macs < 1.05 * macs:
        return ""
    return f"{times(dense_macs / macs)} less"


def nothing_found(kind: str, task: str | None = None, *, persons: int | None = None) -> str:
    """Return the text for an empty timeline of a kind of source, by a model of a task.

    ``persons``: who were seen, if they are counted.
    """
    if task == OBJECT_DETECTION:
        return "Nothing was found."
    if persons:
        return f"No action is known of {counted(persons, 'person')}."
    if kind in ("audio", "text") or task == IMAGE_CLASSIFICATION:
        return "Nothing was recognised."
    return "No action was found."


def cost_line(summary: Summary, kind: str) -> str:
    """Return the line that ends a run: what was read, time, speed, losses."""
    kind = "skeletons" if kind == "skeleton" else kind
    speed = "" if summary.x_realtime is None else f" ({times(summary.x_realtime)} real time)"
    took = f" in {summary.wall_s:.1f} s" if math.isfinite(summary.wall_s) else ""
    read = f"text{took}" if kind == "text" else f"{summary.media_s:.1f} s of {kind}{took}{speed}"
    parts = [read]
    if summary.dropped:
        parts.append(f"{summary.dropped} dropped")
    if summary.drift_ppm is not None:
        parts.append(f"clock drift {summary.drift_ppm:+.0f} ppm")
    if summary.errors:
        parts.append(counted(summary.errors, "error"))
    if not summary.complete:
        parts.append("incomplete")
    return ", ".join(parts)


def network_saving(summary: Summary) -> str:
    """Return what the network saves without its frontend; '' if it has none, or that is unknown."""
    macs, dense = summary.network_macs, summary.network_dense_macs
    has_frontend = macs is not None and dense is not None and macs != summary.macs
    return saving(macs or 0, dense or 0) if has_frontend else ""


def saving_line(summary: Summary, *, exact: bool = True) -> str:
    """Return what continual inference did, in plain words; '' if it saved nothing, or unknown.

    ``exact``: whether all results equal those of recomputing the window.
    """
    macs, dense = summary.network_macs, summary.network_dense_macs
    if macs is None or dense is None:
        less = saving(summary.macs, summary.dense_macs)
        return less and f"{less} computation than processing every frame completely"
    if not saving(macs, dense):
        return ""
    if exact:
        return "the network computed each step once, with the same answer as recomputing its window"
    return "the network computed each step once; recomputing its window can give other answers"


def work_line(summary: Summary) -> str:
    """Return the work of a run: ``393 steps, 22.2 GMAC: 1.4x less, the network alone 64x less``."""
    less = saving(summary.macs, summary.dense_macs)
    network = network_saving(summary)
    alone = f"the network alone {network}" if network else ""
    saved = ", ".join(filter(None, [less, alone]))
    spent = f", {si(summary.macs, 'MAC')}" if summary.macs else ""
    return f"{counted(summary.steps, 'step')}{spent}" + (f": {saved}" if saved else "")


def shares_line(summary: Summary) -> str:
    """Return ``Time of the models: nanodet 62%, mn04 38%``; '' unless several have run."""
    shares = {name: share for name, share in (summary.shares or {}).items() if share >= 0.005}
    parts = [f"{clean(name)} {share:.0%}" for name, share in shares.items()]
    return f"Time of the models: {', '.join(parts)}" if len(parts) > 1 else ""


def closing_lines(header: Header, summary: Summary) -> list[str]:
    """Return the lines that end a run: sound that is missing, unfamiliar input, cost, saving."""
    sound = header.options.get("sound")
    lines = [f"sound: {clean(sound)}"] if isinstance(sound, str) else []
    # Within a budget some frames may stand for others.
    exact = header.options.get("exact", header.options.get("budget") is None)
    saved = saving_line(summary, exact=bool(exact))
    remarks = (
        persons_line(summary),
        unfamiliar_line(header, summary),
        cost_line(summary, header.kind),
        shares_line(summary),
        energy_line(summary),
        saved,
    )
    return [*lines, *filter(None, remarks)]


def persons_line(summary: Summary) -> str | None:
    """Return for how long persons were seen, and did something unknown; None without persons."""
    if not summary.persons or summary.persons_s is None:
        return None
    unknown_s = max(0.0, summary.persons_s - (summary.acting_s or 0.0))
    who = counted(summary.persons, "person")
    return f"{who} for {summary.persons_s:.1f} s, {unknown_s:.1f} s without a known action"


def energy_line(summary: Summary) -> str | None:
    """Return the energy of a run; None where it is not measured."""
    if summary.joules is None or not summary.steps:
        return None
    each = summary.joules / summary.steps
    return f"energy: {summary.joules:.3g} J, {each:.3g} J per step (everything on this machine)"


def unfamiliar_line(header: Header, summary: Summary) -> str | None:
    """Return for how long the input was unfamiliar; None if it was for ``_OFTEN`` at most.

    Of several models, those that measure familiarity are named.
    """
    if not summary.unfamiliar_s or summary.unfamiliar_s <= _OFTEN * summary.media_s:
        return None
    hint = header.options.get("unfamiliar")
    advice = clean(hint) if isinstance(hint, str) else "its predictions are unreliable"
    names = [clean(head.model) for head in header.heads or () if head.familiar is not None]
    to = f" to {' and '.join(names)}" if names else ""
    return f"unfamiliar{to} for {summary.unfamiliar_s:.1f} s of {summary.media_s:.1f} s: {advice}"


def share_of_dense(compute: Compute) -> float:
    """Return the cost of a step as a share of the dense model's; 1 if that is unknown."""
    return compute.macs / compute.dense_macs if compute.dense_macs > 0 else 1.0


def tokens_text(compute: Compute, most: int | None) -> str:
    """Return ``256 of 1020 tokens``; ``most``: tokens of a frame; '' without tokens."""
    if compute.tokens is None:
        return ""
    return f"{compute.tokens} tokens" if most is None else f"{compute.tokens} of {most} tokens"


def share_text(compute: Compute) -> str:
    """Return ``31 % of full cost``: the cost without continual computation."""
    return f"{100 * share_of_dense(compute):.0f} % of full cost"


def budget_text(compute: Compute) -> str:
    """Return ``budget 40 ms`` or ``budget 20 GMAC``; '' without a budget for a step."""
    if compute.budget_ms is not None:
        return f"budget {compute.budget_ms:.3g} ms"
    if compute.budget_macs is not None:
        return f"budget {compute.budget_macs / 1e9:.3g} GMAC"
    return ""


def listed(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Return names joined by commas, abbreviated after the first ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def suggest_names(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown name: similar names, or all."""
    names = list(names)
    close = difflib.get_close_matches(name, names, 3)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names)}"


def parse_formats(values: Iterable[str], formats: Iterable[str]) -> tuple[str, ...]:
    """Return the formats named in ``values`` (each may be a comma list), once each.

    Raises UsageError for a name that is not in ``formats``.
    """
    formats = list(formats)
    names = [name.strip().lower() for value in values for name in value.split(",")]
    names = list(dict.fromkeys(name for name in names if name))
    for name in names:
        if name not in formats:
            hint = f"choose from {', '.join(formats)}"
            raise UsageError(f"there is no format {name!r}", where="--format", hint=hint)
    return tuple(names)


def named(segment: Segment) -> str:
    """Return the label of a segment, with the number of the person if it is not the first."""
    if segment.person is None or segment.person == 1:
        return segment.label
    return f"{segment.label} (person {segment.person})"
