"""Options of ``costream report``, and the output files that follow from them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from costream.errors import UsageError
from costream.report.finding import without_suffix

FORMATS = ("html", "png")


@dataclass(frozen=True)
class ReportOptions:
    """Validated options of the command line."""

    results: tuple[Path, ...]
    output: str | None  # a file, "-" for stdout, None: beside the results
    formats: tuple[str, ...]
    thumbnails: bool
    overwrite: bool
    quiet: bool

    def paths(self) -> dict[str, Path | None]:
        """Return the file of each format, None for stdout.

        Raise UsageError if one exists and must not be replaced, or for two formats on stdout.
        """
        if self.output == "-":
            if self.formats != ("html",):
                raise UsageError("standard output takes only html", where="-o -")
            return {"html": None}
        base = Path(self.output) if self.output is not None else self._beside()
        if base.is_dir():
            raise UsageError("is a folder", where=base, hint="name a file with -o")
        found: dict[str, Path | None] = {}
        for format in self.formats:
            path = base
            if base.suffix.lower() != f".{format}" and (self.output is None or self._several(base)):
                path = base.with_name(f"{_stem(base)}.{format}")
            if path.exists() and (path.is_dir() or not self.overwrite):
                raise UsageError("exists already", where=path, hint="use --overwrite")
            found[format] = path
        return found

    def _several(self, base: Path) -> bool:
        return len(self.formats) > 1 or base.suffix.lower().lstrip(".") in FORMATS

    def _beside(self) -> Path:
        first = self.results[0]
        if len(self.results) > 1:
            return Path("report.html")
        if first.is_dir():
            return first / "report.html"
        return first.with_name(without_suffix(first.name) + ".html")


def _stem(path: Path) -> str:
    return path.stem if path.suffix.lower().lstrip(".") in FORMATS else path.name


def parse_formats(values: Iterable[str], output: str | None) -> tuple[str, ...]:
    """Return the formats, once each; default: by the suffix of ``output``, or html.

    Raise UsageError for an unknown format.
    """
    names = [name.strip().lower() for value in values for name in value.split(",")]
    names = list(dict.fromkeys(name for name in names if name))
    for name in names:
        if name not in FORMATS:
            hint = f"choose from {', '.join(FORMATS)}"
            raise UsageError(f"there is no format {name!r}", where="--format", hint=hint)
    if not names and output is not None:
        ending = os.path.splitext(output)[1].lower().lstrip(".")
        names = [ending] if ending in FORMATS else []
    return tuple(names) or ("html",)
