"""Writes the README's table of speeds from samples/speeds.json: ``python samples/make_speeds.py``.

With ``--measure`` it first runs the benchmarks and stores what they print (some minutes).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from costream.core.processor import processor

SAMPLES = Path(__file__).resolve().parent
STORED, README = SAMPLES / "speeds.json", SAMPLES.parent / "README.md"
TABLE = re.compile(r"^\| one thread of .*\n(?:\|.*\n)+", re.MULTILINE)


class Speed(NamedTuple):
    """A row: the table that a command prints, and the ways in it that are compared."""

    work: str
    command: str
    table: int
    own: str
    others: tuple[tuple[str, str], ...]  # how a way's name begins -> what it is called
    tokens: int | None = None  # of the own way, where there are several


_STEPS, _PEER = "bench steps --rounds 10", ("continual-inference", "continual-inference")
_WINDOW, _CLIP = ("window", "window"), ("the clip", "clip")
SPEEDS = (
    Speed("block of a transformer, d=192, n=120", _STEPS, 0, "costream", (_WINDOW, _PEER)),
    Speed("two blocks", _STEPS, 1, "costream", (_WINDOW, _PEER)),
    Speed("block, d=1024, n=64", _STEPS, 2, "costream", (_WINDOW, _PEER)),
    Speed("CoST-GCN\\*, two persons", f"{_STEPS} -m costgcn-s1", 0, "costream", (_CLIP, _PEER)),
    Speed("CoX3D-S", f"{_STEPS} -m cox3d-s", 0, "costream", (_CLIP, _PEER)),
    Speed("0.25 s of sound", f"{_STEPS} -m cotrans", 0, "costream", (("the 7", "window"),)),
    Speed(
        "Eventful ViTDet, 256 of 1,764 tokens (3 of 12 blocks)",
        "bench steps --rounds 5 -m vitdet",
        0,
        "costream",
        (("dense float", "all tokens"), ("token-wise", "token-wise"), ("eventful", "as published")),
        256,
    ),
    Speed(
        "`detect`, 1 s of video",
        "bench stream samples/room.mp4",
        0,
        "costream",
        (("decode + resize", "decoding and resizing every frame"),),
    ),
)


def measure() -> dict[str, Any]:
    """Run each command; return what they print, and the processor."""
    tables = {}
    for command in dict.fromkeys(speed.command for speed in SPEEDS):
        line = [sys.executable, "-m", "costream", *command.split(), "--json"]
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, cwd=SAMPLES.parent)
        tables[command] = json.loads(done.stdout)
    return {"processor": processor(), "tables": tables}


def table(stored: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    lines = [
        f"| one thread of {stored['processor']} | a step | others, times as long |",
        "|---|---|---|",
    ]
    for speed in SPEEDS:
        rows = stored["tables"][speed.command][speed.table]["rows"]
        own = next(
            row
            for row in rows
            if row["way"] == speed.own and speed.tokens in (None, row.get("tokens"))
        )
        own_s = seconds(own)
        others = [
            (name, min(seconds(row) for row in rows if row["way"].startswith(start)))
            for start, name in speed.others
        ]
        beside = ", ".join(f"{name} {figures(other_s / own_s)}" for name, other_s in others)
        lines.append(f"| {speed.work} | {duration(own_s)} | {beside} |")
    return "\n".join(lines) + "\n"


def seconds(row: dict[str, Any]) -> float:
    """Return the seconds of a step, or of a second of video."""
    if "median us" in row:
        return row["median us"] / 1e6
    return row["median ms"] / 1e3 if "median ms" in row else 1 / row["x real time on one core"]


def duration(time_s: float) -> str:
    return f"{figures(1e6 * time_s)} us" if time_s < 1e-3 else f"{figures(1e3 * time_s)} ms"


def figures(value: float) -> str:
    """Return a positive number with two figures."""
    if value < 9.95:
        return f"{value:.2f}" if value < 0.995 else f"{value:.1f}"
    return f"{float(f'{value:.2g}'):,.0f}"


def main() -> None:
    if sys.argv[1:] == ["--measure"]:
        STORED.write_text(json.dumps(measure(), indent=1) + "\n", "utf-8")
    written = table(json.loads(STORED.read_text("utf-8")))
    README.write_text(TABLE.sub(lambda _: written, README.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
