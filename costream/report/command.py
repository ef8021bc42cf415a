"""``costream report``: read results, write the report, list the skipped files."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from costream.core import formatting
from costream.core.errors import ExitCode, SourceError, UsageError, display_name, say
from costream.core.places import places_of
from costream.core.spelling import stored_path
from costream.report.digest import Digest
from costream.report.markup import Html
from costream.report.overview import MissingResult, Report, read_failures
from costream.report.page import page_foot, page_head
from costream.report.section import MOST_OPEN, Pages, Run, section
from costream.report.thumbnails import Thumbnails, find_media, take
from costream.sinks.atomic import AtomicFile, StreamOutput, TextOutput, check_folder, write_file
from costream.sinks.result_reader import NotAResultError, runs


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
            if path is None:
                maker.write(StreamOutput(sys.stdout))
            elif format == "html":
                maker.write(AtomicFile(path, overwrite=options.overwrite))
            else:
                from costream.report.png import draw

                write_file(path, draw(maker.report))
    for path in paths.values():
        if path is not None:
            formatting.print_path(path)
    return ExitCode.PARTIAL if maker.report.failed else ExitCode.OK


def _read(maker: ReportBuilder, *, quiet: bool) -> None:
    silent = True if quiet else None  # None: no bar if stderr is not a terminal
    with tqdm(unit="file", file=sys.stderr, disable=silent, leave=False) as bar:
        for done, total in maker.read():
            bar.total = total
            bar.update(done - bar.n)
    lines = [] if quiet else [f"skipped: {line}" for line in maker.report.skipped]
    for line in [*lines, *map(str, maker.report.failed)]:
        say(f"costream: {line}")


# If a run was written in several formats, the first of these is read. A .part file, left by a
# crash, is read only if there is nothing else.
SUFFIXES = (".jsonl", ".json", ".jsonl.part", ".json.part")
_OF_A_BATCH = Path(".costream", "records")  # where a batch keeps records that it does not write
_BOXES = (".coco.json", ".coco.json.part")  # not shown by reports


@dataclass(frozen=True)
class ResultFile:
    """A file that may hold results."""

    path: Path
    name: str  # path below the folder, "/" between the parts, without the suffix: "a/clip.mp4"


def find_results(argument: Path) -> list[ResultFile]:
    """Return the file itself, or the result files below a folder, sorted by name.

    Hidden files and folders are skipped, but for the records of a batch that wrote other formats;
    links to folders are not followed. Raise SourceError if it does not exist or contains none.
    """
    argument = Path(stored_path(os.fspath(argument)))
    where = display_name(os.fspath(argument))
    if argument.is_dir():
        found = list(_below(argument)) or _below(argument / _OF_A_BATCH)
        files = sorted(found, key=lambda f: f.name)
        if not files:
            hint = "results are .jsonl or .json files, as 'costream detect -o' writes them"
            raise SourceError("there are no results in this folder", where=where, hint=hint)
        return files
    if not argument.exists():
        raise SourceError("no such file or folder", where=where)
    if not argument.is_file():  # reading a pipe or a device may block forever
        raise SourceError("neither a file nor a folder", where=where)
    return [ResultFile(argument, without_suffix(argument.name))]


def without_suffix(name: str) -> str:
    """Return the name of a result file without its format suffix."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name


def _below(folder: Path) -> Iterator[ResultFile]:
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        best: dict[str, tuple[int, str]] = {}
        for name in files:
            stem = without_suffix(name)
            if name.startswith(".") or stem == name or name.endswith(_BOXES):
                continue
            if name == "summary.json" and "failures.csv" in files:  # the tables of a batch
                continue
            rank = SUFFIXES.index(name[len(stem) :])
            best[stem] = min(best.get(stem, (len(SUFFIXES), "")), (rank, name))
        for stem, (_, name) in best.items():
            path = Path(here, name)
            if path.is_file():
                yield ResultFile(path, (path.parent.relative_to(folder) / stem).as_posix())


# With more runs than this, each has its own page: the overview must still open.
MOST_ON_A_PAGE = 60
# The more runs are on a page, the fewer bins each has.
_BINS = ((1, 1200), (10, 600), (50, 300), (200, 160))
_FEWEST_BINS = 80
_MOST_BLOCKS_ALL = 20_000  # in the strips of an overview
_MOST_PICTURES = MOST_OPEN  # per run
_MOST_PICTURES_ALL = 600
_SPOOL_CHARS = 1 << 24
_WHOLE_LIST = 32  # up to this many labels all get a colour, even if they do not occur


class ReportBuilder:
    """Reader of results that stores their sections in a temporary file until the page is written.

    For many results, each section is a separate page, written at once.
    """

    def __init__(
        self, results: Sequence[Path], *, thumbnails: bool = True, beside: Pages | None = None
    ) -> None:
        """``beside``: the pages of many runs; None: all runs are on one page."""
        self._results = results
        self._thumbnails = thumbnails
        self._beside = beside
        self._several = False  # pages
        self._pictures = 0
        self._body = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by __exit__
            max_size=_SPOOL_CHARS, mode="w+", encoding="utf-8", errors="backslashreplace"
        )
        self.report = Report(_title(results))

    def __enter__(self) -> ReportBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self._body.close()

    def read(self) -> Iterator[tuple[int, int]]:
        """Read everything; yield (files done, total files) after each file.

        Raise SourceError if an argument does not exist, or there is nothing to show; UsageError
        if the pages of an earlier report must not be replaced.
        """
        files = [f for argument in self._results for f in self._find(argument)]
        self._several = self._beside is not None and len(files) > MOST_ON_A_PAGE
        if self._beside is not None and self._several:
            self._beside.check()
        blocks = max(8, _MOST_BLOCKS_ALL // max(1, len(files)))
        self.report.overview.most_blocks = min(blocks, self.report.overview.most_blocks)
        one_file = len(self._results) == 1 and not self._results[0].is_dir()
        for k, file in enumerate(files, 1):
            for run in self._runs(file, len(files)):
                href = f"#{run.anchor}"
                if self._beside is not None and self._several:
                    href = self._beside.href(run)
                self.report.overview.add(run, self.report.palette, href)
                if one_file and len(self.report.overview.rows) == 1:
                    self.report.only = run
                    continue
                if self.report.only is not None:  # one file, but several runs in it
                    self._put(self.report.only, alone=False)
                    self.report.only = None
                self._put(run, alone=False)
            yield k, len(files)
        if self.report.only is not None:
            self._put(self.report.only, alone=True)
        self._check(files)

    def write(self, out: TextOutput) -> None:
        """Write the page."""
        report = self.report
        title = report.only.title if report.only is not None else report.title
        out.open()
        out.write(page_head(f"{title} – costream report"))
        if report.only is None:
            out.write(report.overview.section(report.title, report.palette))
        self._body.seek(0)
        while text := self._body.read(1 << 16):
            out.write(text)
        out.write(page_foot())
        out.finish()
        if self._beside is not None:
            self._beside.remove_earlier()

    def _find(self, argument: Path) -> list[ResultFile]:
        files = find_results(argument)
        if argument.is_dir():
            self.report.overview.refused += read_failures(argument)
        if len(self._results) > 1 and argument.is_dir():
            files = [replace(f, name=f"{argument.name}/{f.name}") for f in files]
        return files

    def _runs(self, file: ResultFile, count: int) -> Iterator[Run]:
        """Yield the runs in a file; a file that cannot be read is reported, not raised."""
        together = 1 if self._several else count
        bins = next((n for most, n in _BINS if together <= most), _FEWEST_BINS)
        written = _written(file.path)
        try:
            for k, contents in enumerate(runs(file.path)):
                digest = Digest.of(contents, bins)
                title = file.name
                if digest.header is not None and digest.header.began is not None:
                    title = f"{file.name}, from {digest.header.began}"
                elif k and digest.header is not None:
                    title = f"{file.name}: {Path(digest.header.source).name}"
                labels = list(digest.labels)
                few = len(labels) <= _WHOLE_LIST
                shown = [label for label in labels if few or label in digest.stats]
                self.report.palette.add(labels, shown, digest.heads.backgrounds())
                anchor = f"r{len(self.report.overview.rows) + 1}"
                pictures = self._take(digest, file.path, count)
                yield Run(title, digest, written, anchor, pictures)
        except NotAResultError as error:
            self.report.skipped.append(str(error))
        except SourceError as error:
            self.report.failed.append(error)
            reason = str(error).removeprefix(f"{file.path}: ")
            self.report.overview.refused.append(MissingResult(file.name, reason))

    def _take(self, digest: Digest, result: Path, count: int) -> Thumbnails:
        if not self._thumbnails or not digest.segments:
            return Thumbnails()
        media = find_media(digest.header, result)
        if isinstance(media, str):
            return Thumbnails(note=media)
        most = min(_MOST_PICTURES, max(3, _MOST_PICTURES_ALL // count))
        if not self._several:
            most = min(most, _MOST_PICTURES_ALL - self._pictures)
        first = digest.segments[: max(0, most)]
        options = {} if digest.header is None else digest.header.options
        given, moments = options.get("input_fps"), sorted({s.start_s for s in first})
        input_hz = given if isinstance(given, (int, float)) and given > 0 else None
        stream = options.get("stream")
        taken = take(
            *(media, moments, places_of(options)),
            input_hz=input_hz,
            stream=stream if isinstance(stream, str) else None,
        )
        self._pictures += len(taken.pictures)
        if len(first) < len(digest.segments):
            note = f"Pictures are shown for the first {len(first)} segments. {taken.note}"
            return replace(taken, note=note.strip())
        return taken

    def _put(self, run: Run, *, alone: bool) -> None:
        if self._beside is not None and self._several:
            self._beside.put(run, self.report.palette)
            return
        self._body.write(section(run, self.report.palette, alone=alone) + Html("\n"))

    def _check(self, files: Sequence[ResultFile]) -> None:
        report = self.report
        if report.overview.rows:
            return
        if len(files) == 1 and report.failed:
            raise report.failed[0]
        where = ", ".join(os.fspath(path) for path in self._results)
        if report.failed or not report.skipped:
            raise SourceError("none of the results can be read", where=where)
        hint = "results are what 'costream detect -f jsonl' or '-f json' writes"
        raise SourceError("not a result of costream", where=where, hint=hint)


def _title(results: Sequence[Path]) -> str:
    names = [path.resolve().name or os.fspath(path) for path in results]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _written(path: Path) -> str:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        return "at an unknown time"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


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
