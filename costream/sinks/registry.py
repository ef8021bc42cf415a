"""Registry of output formats: their sinks and files, and checks of existing outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from costream.errors import UsageError
from costream.sinks.atomic import AtomicFile, BinaryFile, StreamOutput, exists_error
from costream.sinks.base import Sink
from costream.sinks.coco import Coco
from costream.sinks.elan import Elan
from costream.sinks.filters import run_filter
from costream.sinks.json_document import JsonDocument
from costream.sinks.jsonl import JsonLines
from costream.sinks.labels import Audacity, Raven, Rttm
from costream.sinks.subtitles import subrip, webvtt
from costream.sinks.tables import ComputeTable, ObjectTable, PredictionTable, TimelineTable


@dataclass(frozen=True)
class Format:
    """One output format: its description, and a sink for each of its files."""

    description: str
    # File suffix -> sink factory, called with an Output (a BinaryFile if ``binary``).
    files: dict[str, Callable[[Any], Sink]]
    has_summary: bool = False  # the last 64 KiB of the file hold the summary record
    binary: bool = False  # files only, no standard output
    draws: tuple[int, int] | None = None  # width, height that frames are fitted into
    # Suffixes of files written only for runs that find objects (True), or only for others (False).
    only: dict[str, bool] = field(default_factory=dict)


def _overlay(out: BinaryFile) -> Sink:
    from costream.sinks.overlay import Overlay  # PyAV, which a help page does not need

    return Overlay(out)


FORMATS: dict[str, Format] = {
    "jsonl": Format("every record as it happens", {"jsonl": JsonLines}, has_summary=True),
    "json": Format("one document", {"json": JsonDocument}, has_summary=True),
    "csv": Format(
        "three tables",
        {
            "predictions.csv": PredictionTable,
            "objects.csv": ObjectTable,
            "timeline.csv": TimelineTable,
            "compute.csv": ComputeTable,
        },
        only={"predictions.csv": False, "objects.csv": True},
    ),
    "srt": Format("timeline as SubRip subtitles", {"srt": subrip}),
    "vtt": Format("timeline as WebVTT subtitles", {"vtt": webvtt}),
    "audacity": Format("timeline as an Audacity label track", {"audacity.txt": Audacity}),
    "raven": Format("timeline as a Raven Pro selection table", {"raven.txt": Raven}),
    "rttm": Format("timeline as NIST RTTM", {"rttm": Rttm}),
    "eaf": Format("timeline as ELAN annotations", {"eaf": Elan}),
    "coco": Format("boxes as COCO JSON", {"coco.json": Coco}, only={"coco.json": True}),
    "mp4": Format("annotated video", {"mp4": _overlay}, binary=True, draws=(960, 720)),
}


def parse_formats(values: Iterable[str]) -> tuple[str, ...]:
    """Return the formats named in ``values`` (each may be a comma list), once each.

    Raise UsageError for an unknown format.
    """
    names = [name.strip().lower() for value in values for name in value.split(",")]
    names = list(dict.fromkeys(name for name in names if name))
    for name in names:
        if name not in FORMATS:
            hint = f"choose from {', '.join(FORMATS)}"
            raise UsageError(f"there is no format {name!r}", where="--format", hint=hint)
    return tuple(names)


def paths_for(
    format: str, directory: Path, name: str, *, objects: bool | None = None
) -> list[Path]:
    """Return the files that ``format`` writes for the source ``name`` (``sub/clip.mp4``).

    ``objects``: whether the run finds objects; None: all files that are possible.
    """
    only = FORMATS[format].only
    suffixes = (
        s for s in FORMATS[format].files if objects is None or only.get(s, objects) == objects
    )
    return [directory / f"{name}.{suffix}" for suffix in suffixes]


def object_formats(formats: Iterable[str]) -> list[str]:
    """Return those of ``formats`` that write no file for a run without objects."""
    return [f for f in formats if not paths_for(f, Path(), "", objects=False)]


def check_outputs(
    formats: Sequence[str], directory: Path | None, name: str, *, overwrite: bool
) -> None:
    """Raise UsageError for outputs that cannot be written; called before a model is loaded.

    ``directory`` None means standard output, which takes a single text file.
    """
    if directory is None:
        binary = [f for f in formats if FORMATS[f].binary]
        if binary:
            raise UsageError(
                f"{binary[0]} is a binary format", where="-o -", hint="name a folder with -o"
            )
        if sum(len(FORMATS[f].files) for f in formats) > 1:
            hint = "name a folder with -o, or a single format other than csv"
            raise UsageError("standard output takes a single text file", where="-o -", hint=hint)
        return
    try:
        _check_folder(directory)
        for path in (path for f in formats for path in paths_for(f, directory, name)):
            if path.exists() and (path.is_dir() or not overwrite):
                raise exists_error(path)
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror})", where=directory) from error


def _check_folder(directory: Path) -> None:
    """Raise UsageError unless ``directory`` exists or can be created, and is writable."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not directory.is_dir():
        raise UsageError("is not a folder", where=directory, hint="name a folder with -o")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError("is write-protected", where=directory, hint="name another folder with -o")


def make_sinks(
    formats: Sequence[str],
    directory: Path | None,
    name: str,
    *,
    stream: TextIO | None = None,
    overwrite: bool = False,
) -> list[Sink]:
    """Return one unopened sink per file; without ``directory`` they write to ``stream``.

    Without either there are none. ``check_outputs`` reports in advance what would fail.
    """
    sinks: list[Sink] = []
    for format in formats:
        for suffix, make in FORMATS[format].files.items():
            if directory is not None:
                path = directory / f"{name}.{suffix}"
                kind = BinaryFile if FORMATS[format].binary else AtomicFile
                sink = make(kind(path, overwrite=overwrite))
            elif stream is not None:
                sink = make(StreamOutput(stream))
            else:
                continue
            objects = FORMATS[format].only.get(suffix)
            sinks.append(sink if objects is None else run_filter(sink, objects=objects))
    return sinks


def drawing_size(formats: Sequence[str]) -> tuple[int, int] | None:
    """Return the width and height that ``formats`` fit frames into; None: none of them draws."""
    return next((FORMATS[f].draws for f in formats if FORMATS[f].draws is not None), None)


def is_complete(formats: Sequence[str], directory: Path, name: str) -> bool:
    """Return whether all ``formats`` exist from a run that was not interrupted.

    Formats with a summary must have ``complete`` set; the others must exist.
    """
    return all(
        any(_is_whole(format, paths_for(format, directory, name, objects=o)) for o in (False, True))
        for format in formats
    )


def _is_whole(format: str, paths: Sequence[Path]) -> bool:
    checked = FORMATS[format].has_summary
    whole = all(path.is_file() and (not checked or _says_complete(path)) for path in paths)
    return whole and len(paths) > 0


def _says_complete(path: Path) -> bool:
    """Return whether the summary at the end of a jsonl or json file says complete."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16)))
        lines = file.read().decode("utf-8", "replace").split("\n")
    lines = [line for line in lines if line not in ("", "}")]
    try:
        summary = json.loads(lines[-1].removeprefix('"summary": '))
    except (ValueError, IndexError):
        return False
    return isinstance(summary, dict) and "exit" in summary and summary.get("complete") is True
