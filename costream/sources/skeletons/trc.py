"""Reading of TRC files: markers of optical motion capture."""

from __future__ import annotations

import numpy as np

from costream.core.errors import SourceError
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.table_rows import number
from costream.sources.skeletons.take import Take, marker_take, split_subjects
from costream.sources.skeletons.text_lines import decimal, parse_lines


def is_trc(source: SkeletonInput) -> bool:
    """Return whether this is a TRC file; of one whose names are not UTF-8, by its suffix."""
    if not source.is_text:
        return source.has_suffix(".trc")
    return source.first_line.startswith("PathFileType")


@skeleton_format("trc", sniff=is_trc, order=4)
def read_trc(source: SkeletonInput) -> Take:
    """Return the take of a TRC file: five lines of headings, then frame, time and x, y, z.

    The frame numbers count if the rate is given, else the times. Raises SourceError if the
    headings cannot be read.
    """
    text, rate_hz, where = iter(source.lines()), source.rate_hz, source.where
    head = [line.split("\t") for line, _ in zip(text, range(5), strict=False)]
    if len(head) < 5 or len(head[3]) < 3 or not head[3][0].strip().lower().startswith("frame"):
        raise SourceError("the headings of this TRC file are cut off or damaged", where=where)
    # A name stands above the first of its three columns.
    starts = [k for k, name in enumerate(head[3]) if k > 1 and name.strip()]
    labels = [head[3][k].strip() for k in starts]
    width = starts[-1] + 3 if starts else 0
    if not split_subjects(labels)[0]:
        raise SourceError("there are no markers in this TRC file", where=where)

    def parse(line: str) -> tuple[float, list[list[float]]]:
        cells = [cell.strip() for cell in line.split("\t")]
        time_s = decimal(cells[1]) if not rate_hz else (float(cells[0]) - 1) / rate_hz
        row = [number(cell) for cell in [*cells, *[""] * width][:width][2:]]
        return time_s, [row[k - 2 : k + 1] for k in starts]

    rows, bad = parse_lines(text, parse)
    if not rows:
        raise SourceError("there are no frames in this TRC file", where=where)
    times_s, places = zip(*rows, strict=True)
    rate = rate_hz or _stated_rate(head[1], head[2])
    return marker_take(labels, np.array(places, float), times_s, rate, bad=bad)


def _stated_rate(names: list[str], values: list[str]) -> float | None:
    """Return the rate in the headings; None if there is none."""
    for name, value in zip(names, values, strict=False):
        if name.strip() == "DataRate":
            try:
                rate = decimal(value.strip())
            except ValueError:
                return None
            return rate if 0 < rate < 1e6 else None
    return None
