"""``costream report``: read results, write the report, list the skipped files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from costream.core import formatting
from costream.core.errors import ExitCode, UsageError, say
from costream.report.report_builder import ReportBuilder
from costream.report.result_files import without_suffix
from costream.report.run_pages import Pages
from costream.sinks.atomic import AtomicFile, StreamOutput, check_folder, write_file

FORMATS = ("html", "png")


def make_report(options: ReportOptions) -> ExitCode:
    """Write the report in every format asked for and print the names of the files.

    Return PARTIAL if some results could not be read; raise SourceError if none could.
    """
    paths = options.paths()
    if "png" in paths and find_spec("matplotlib") is None:
        hint = "pip install 'costream[report]', or leave png out of --format"
        raise UsageError("a PNG needs matplotlib, which is not installed", where="-f", hint=hint)
    page = paths.get("html")
    pages = None if page is None else Pages(page, overwrite=options.overwrite)
    with ReportBuilder(options.results, thumbnails=options.thumbnails, pages=pages) as builder:
        _read(builder, quiet=options.quiet)
        for format, path in paths.items():
            if path is None:
                builder.write(StreamOutput(sys.stdout))
            elif format == "html":
                builder.write(AtomicFile(path, overwrite=options.overwrite))
            else:
                from costream.report.png import draw

                write_file(path, draw(builder.report))
    for path in paths.values():
        if path is not None:
            formatting.print_path(path)
    return ExitCode.PARTIAL if builder.report.failed else ExitCode.OK


def _read(builder: ReportBuilder, *, quiet: bool) -> None:
    silent = True if quiet else None  # None: no bar if stderr is not a terminal
    with tqdm(unit="file", file=sys.stderr, disable=silent, leave=False) as bar:
        for done, total in builder.read():
            bar.total = total
            bar.update(done - bar.n)
    lines = [] if quiet else [f"skipped: {line}" for line in builder.report.skipped]
    for line in [*lines, *map(str, builder.report.failed)]:
        say(f"costream: {line}")


@dataclass(frozen=True)
class ReportOptions:
    """Validated options of the command line."""

    results: tuple[Path, ...]
    output: str | None  # a file, "-" for stdout, None: in the folder of the results
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
        check_folder(base.parent)
        if base.is_dir():
            raise UsageError("is a folder", where=base, hint="name a file with -o")
        paths: dict[str, Path | None] = {}
        for format in self.formats:
            path = base
            if base.suffix.lower() != f".{format}" and (self.output is None or self._several(base)):
                stem = base.stem if base.suffix.lower().lstrip(".") in FORMATS else base.name
                path = base.with_name(f"{stem}.{format}")
            if path.exists() and (path.is_dir() or not self.overwrite):
                raise UsageError("exists already", where=path, hint="use --overwrite")
            paths[format] = path
        return paths

    def _several(self, base: Path) -> bool:
        return len(self.formats) > 1 or base.suffix.lower().lstrip(".") in FORMATS

    def _beside(self) -> Path:
        first = self.results[0]
        if len(self.results) > 1:
            return Path("report.html")
        if first.is_dir():
            return first / "report.html"
        return first.with_name(without_suffix(first.name) + ".html")


def parse_formats(values: Iterable[str], output: str | None) -> tuple[str, ...]:
    """Return the formats, once each; default: by the suffix of ``output``, or html.

    Raise UsageError for an unknown format.
    """
    names = formatting.parse_formats(values, FORMATS)
    suffix = "" if output is None else os.path.splitext(output)[1].lower().lstrip(".")
    if not names and suffix not in ("", *FORMATS) and not os.path.isdir(str(output)):
        endings = " or ".join(f".{name}" for name in FORMATS)
        raise UsageError(f"the name must end in {endings}", where=f"-o {output}")
    return names or ((suffix,) if suffix in FORMATS else ("html",))
