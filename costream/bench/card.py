"""The speed of this machine in one table: the rows of the manual, to be compared and shared."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial

import torch

from costream.bench.audio import sound_steps_table
from costream.bench.encoders import CONFIGS, steps_table
from costream.bench.eventful import object_steps_table
from costream.bench.skeletons import skeleton_steps_table
from costream.bench.video3d import video_steps_table
from costream.core.commit import code_version
from costream.core.processor import processor
from costream.core.tables import Cell, Table

COLUMNS = ("work", "time", "relative to its limit, or to others")
_MINUTES = 2
_WINDOWS = ("window, scaled_dot_product_attention", "window, matmul and softmax")


def card_table(rounds: int, threads: int, tell: Callable[[str], object]) -> Table:
    """Return the card of this machine: a row for each table of ``bench steps`` in the manual.

    ``rounds``: of turns of each method; the network of ViTDet takes a fifth of them. ``tell`` gets
    a line that says how long it takes, and one for each row that is finished.
    """
    makers: list[Callable[[], tuple[Cell, ...]]] = [
        *(partial(_encoder, k, rounds, threads) for k in range(len(CONFIGS))),
        lambda: skeleton_row(skeleton_steps_table("costgcn-s1", rounds, threads)),
        lambda: video_row(video_steps_table("cox3d-s", rounds, threads)),
        lambda: sound_row(sound_steps_table("cotrans", rounds, threads)),
        lambda: picture_row(object_steps_table("vitdet", max(3, rounds // 5), threads)),
    ]
    began_s, rows = time.monotonic(), list[tuple[Cell, ...]]()
    tell(f"{len(makers)} rows, about {_MINUTES} minutes: other programs make the figures worse")
    for make in makers:
        rows.append(make())
        tell(f"{len(rows)} of {len(makers)}: {', '.join(map(str, rows[-1]))}")
    notes = (
        f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        f"costream {code_version()}, torch {torch.__version__}, {threads} thread(s), medians of"
        f" {rounds} alternating rounds, random weights",
        f"took {time.monotonic() - began_s:.0f} s; load of the machine at the end: {_load()} (this"
        " program alone: 1)",
    )
    return Table(f"card: {processor()}", COLUMNS, tuple(rows), notes)


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, its notes below it."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    text = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    return "\n\n".join([text, *table.notes])


def encoder_row(table: Table) -> tuple[Cell, ...]:
    """Return the row of an encoder: its step, the bound and the windows."""
    times = _medians(table)
    own, bound = times["costream"], times["bound: weights times one row"]
    window = min(times[name] for name in _WINDOWS)
    ratios = f"{own / bound:.2f} of its weights times one row; {own / window:.2f} of the window"
    return f"encoder {table.title}", _time(own), ratios


def skeleton_row(table: Table) -> tuple[Cell, ...]:
    """Return the row of a skeleton network with all of its persons."""
    times = _medians(table)
    own, bound = times["costream"], next(t for n, t in times.items() if n.startswith("bound"))
    clip = times["the clip recomputed"] / own
    ratios = f"{own / bound:.2f} of its products; clip {clip:.0f}x slower"
    return f"{table.title}, two persons", _time(own), ratios


def video_row(table: Table) -> tuple[Cell, ...]:
    """Return the row of a 3D network."""
    times = _medians(table)
    own = times["costream"]
    return table.title, _time(own), f"clip {times['the clip recomputed'] / own:.1f}x slower"


def sound_row(table: Table) -> tuple[Cell, ...]:
    """Return the row of a hop of sound."""
    (_, own), (_, window), (_, context), *_ = _medians(table).items()
    ratios = f"window {window / own:.1f}x slower, everything that a token depends on"
    return "hop of sound", _time(own), f"{ratios} {context / own:.1f}x"


def picture_row(table: Table) -> tuple[Cell, ...]:
    """Return the row of ViTDet's backbone with its smallest number of tokens."""
    names = table.columns.index("way"), table.columns.index("tokens"), _median(table)
    dense, *rows = ([row[k] for k in names] for row in table.rows)
    _, tokens, own = next(row for row in rows if row[0] == "costream")
    name = f"Eventful ViTDet, {tokens} of {dense[1]} tokens"
    return name, _time(1e3 * float(own)), f"{float(own) / float(dense[2]):.2f} of dense"  # type: ignore[arg-type]


def _encoder(number: int, rounds: int, threads: int) -> tuple[Cell, ...]:
    return encoder_row(steps_table(CONFIGS[number], rounds, threads, windows=1))


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def _median(table: Table) -> int:
    return next(k for k, name in enumerate(table.columns) if name.startswith("median"))


def _medians(table: Table) -> dict[str, float]:
    """Return the median of each way; the first of those with one name."""
    column, medians = _median(table), dict[str, float]()
    for row in table.rows:
        if row[column] is not None:
            medians.setdefault(str(row[0]), float(row[column]))  # type: ignore[arg-type]
    return medians


def _time(us: float) -> str:
    return f"{us:.0f} us" if us < 1000 else f"{us / 1000:.3g} ms"
