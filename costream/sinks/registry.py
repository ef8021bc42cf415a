"""Output formats: their files, their sinks, and checks of existing outputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from costream.core import formatting
from costream.core.errors import UsageError
from costream.sinks.atomic import (
    REPLACE,
    AtomicFile,
    BinaryFile,
    StreamOutput,
    check_folder,
    exists_error,
)
from costream.sinks.base import OUTPUT_FILES, Sink
from costream.sinks.filters import RunFilter


@dataclass(frozen=True)
class Format:
    """An output format: the keywords of ``@output_file`` for the suffix of each of its files."""

    files: dict[str, Mapping[str, Any]]

    @property
    def about(self) -> str:
        """Description in a few words."""
        return next(str(info["about"]) for info in self.files.values() if "about" in info)

    @property
    def has_summary(self) -> bool:
        """Whether its files end with the summary record."""
        return all(info.get("has_summary") for info in self.files.values())

    @property
    def joins(self) -> bool:
        """Whether results of several sources can follow one another on standard output."""
        return all(info.get("joins") for info in self.files.values())

    @property
    def binary(self) -> bool:
        """Whether it is written to files only."""
        return any(info.get("binary") for info in self.files.values())


class Formats(Mapping[str, Format]):
    """All formats by name, in the order of lists; nothing is imported for them."""

    def __getitem__(self, name: str) -> Format:
        files = {s: e.info for s, e in OUTPUT_FILES.entries().items()}
        files_of_format = {s: info for s, info in files.items() if info.get("format", s) == name}
        if not files_of_format:
            raise KeyError(name)
        return Format(files_of_format)

    def __iter__(self) -> Iterator[str]:
        entries = OUTPUT_FILES.entries().values()
        return iter(dict.fromkeys(e.info.get("format", e.name) for e in entries))

    def __len__(self) -> int:
        return len(list(iter(self)))


FORMATS = Formats()


def parse_formats(values: Iterable[str]) -> tuple[str, ...]:
    """Return the formats named in ``values``, see ``formatting.parse_formats``."""
    return formatting.parse_formats(values, FORMATS)


def paths_for(
    format: str, directory: Path, name: str, *, objects: bool | None = None
) -> list[Path]:
    """Return the files that ``format`` writes for the source ``name`` (``sub/clip.mp4``).

    ``objects``: whether the run finds objects; None: all files that are possible.
    """
    return [
        directory / f"{_storable(name)}.{suffix}"
        for suffix, info in FORMATS[format].files.items()
        if objects is None or info.get("objects", objects) == objects
    ]


def _storable(name: str) -> str:
    """Return the name of a source, with ``_`` for characters that file names here cannot hold.

    In the locale C, for example, names are ASCII only.
    """
    encoding = sys.getfilesystemencoding()
    return "".join(
        c if c.encode(encoding, "ignore") or "\ud800" <= c < "\ue000" else "_" for c in name
    )


def object_formats(formats: Iterable[str]) -> list[str]:
    """Return the ``formats`` that write no file for a run without objects."""
    return [f for f in formats if not paths_for(f, Path(), "", objects=False)]


# File endings that are not taken for the name of a folder after -o.
_FILES = {
    *(".xlsx", ".xls", ".ods", ".tsv", ".parquet", ".feather", ".pdf", ".png", ".jpg", ".jpeg"),
    *(".html", ".htm", ".md", ".txt", ".log", ".xml", ".yaml", ".yml", ".toml", ".zip", ".npz"),
    *(".npy", ".avi", ".mov", ".mkv", ".webm", ".gif", ".mp3", ".wav", ".docx", ".db", ".sqlite"),
}


def check_outputs(
    formats: Sequence[str],
    directory: Path | None,
    name: str,
    *,
    overwrite: bool,
    hint: str = REPLACE,
) -> None:
    """Raise UsageError for outputs that cannot be written; called before a model is loaded.

    ``directory`` None means standard output, which takes a single text file. ``hint``: how an
    existing file is replaced.
    """
    if directory is None:
        where, folder = f"-f {','.join(formats)}", "name a folder with -o"
        binary = [f for f in formats if FORMATS[f].binary]
        if binary:
            raise UsageError(f"{binary[0]} is a binary format", where=where, hint=folder)
        if sum(len(FORMATS[f].files) for f in formats) > 1:
            what = "these are several files, and standard output takes one"
            raise UsageError(what, where=where, hint=folder)
        return
    if directory.suffix.lower() in _FILES and not directory.is_dir():
        hint = f"name a folder, and formats with -f: {', '.join(FORMATS)}"
        raise UsageError("no file of this kind is written", where=f"-o {directory}", hint=hint)
    try:
        check_folder(directory)
        for path in (path for f in formats for path in paths_for(f, directory, name)):
            if path.exists() and (path.is_dir() or not overwrite):
                raise exists_error(path, hint)
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror})", where=directory) from error


def make_sinks(
    formats: Sequence[str],
    directory: Path | None,
    name: str,
    *,
    stream: TextIO | None = None,
    named: str | None = None,
    overwrite: bool = False,
) -> list[Sink]:
    """Return one unopened sink per file; without ``directory`` they write to ``stream``.

    Without either there are none. ``check_outputs`` reports in advance what would fail.
    ``named``: the source, where several share the stream.
    """
    sinks: list[Sink] = []
    together: list[AtomicFile] = []
    for format in formats:
        for suffix, info in FORMATS[format].files.items():
            make = OUTPUT_FILES.load(suffix)
            if directory is not None:
                kind = BinaryFile if info.get("binary") else AtomicFile
                path = directory / f"{_storable(name)}.{suffix}"
                sink = make(kind(path, overwrite=overwrite, together=together))
            elif stream is not None:
                lead = f"{named}\t" if named and info.get("joins") == "named" else ""
                sink = make(StreamOutput(stream, lead))
            else:
                continue
            objects = info.get("objects")
            sinks.append(sink if objects is None else RunFilter(sink, objects=objects))
    return sinks


def drawing_size(formats: Sequence[str]) -> tuple[int, int] | None:
    """Return the width and height that ``formats`` fit frames into; None: no format draws."""
    infos = (info for f in formats for info in FORMATS[f].files.values())
    return next((info["draws"] for info in infos if "draws" in info), None)


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
    is_finished = all(path.is_file() and (not checked or _says_complete(path)) for path in paths)
    return is_finished and len(paths) > 0


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
