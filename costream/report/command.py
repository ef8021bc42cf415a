"""``costream report``: read results, write the report, list the skipped files."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click
from tqdm import tqdm

from costream.errors import ExitCode, OutputError, UsageError
from costream.report.making import ReportBuilder
from costream.report.options import ReportOptions
from costream.report.pages import Pages
from costream.sinks.atomic import AtomicFile, StreamOutput, TextOutput, part_path


def make_report(options: ReportOptions) -> ExitCode:
    """Write the report in every format asked for and print the names of the files.

    Return PARTIAL if some results could not be read; raise SourceError if none could.
    """
    paths = options.paths()
    if "png" in paths and find_spec("matplotlib") is None:
        hint = "pip install 'costream[report]', or leave png out of --format"
        raise UsageError("a PNG needs matplotlib, which is not installed", where="-f", hint=hint)
    page = paths.get("html")
    beside = None if page is None else Pages(page, overwrite=options.overwrite)
    with ReportBuilder(options.results, thumbnails=options.thumbnails, beside=beside) as maker:
        _read(maker, quiet=options.quiet)
        for format, path in paths.items():
            if format == "html":
                maker.write(_output(path, overwrite=options.overwrite))
            elif path is not None:
                from costream.report.png import draw

                _write_bytes(path, draw(maker.report))
    for path in paths.values():
        if path is not None:
            click.echo(os.fspath(path))
    return ExitCode.PARTIAL if maker.report.failed else ExitCode.OK


def _read(maker: ReportBuilder, *, quiet: bool) -> None:
    silent = True if quiet else None  # None: no bar if stderr is not a terminal
    with tqdm(unit="file", file=sys.stderr, disable=silent, leave=False) as bar:
        for done, total in maker.read():
            bar.total = total
            bar.update(done - bar.n)
    lines = [] if quiet else [f"skipped: {line}" for line in maker.report.skipped]
    for line in [*lines, *map(str, maker.report.failed)]:
        click.echo(f"costream: {line}", err=True)


def _output(path: Path | None, *, overwrite: bool) -> TextOutput:
    return StreamOutput(sys.stdout) if path is None else AtomicFile(path, overwrite=overwrite)


def _write_bytes(path: Path, data: bytes) -> None:
    part = part_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write ({error.strerror})", where=path) from error
