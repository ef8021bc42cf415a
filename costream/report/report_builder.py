"""Reader of results that writes the page of a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from costream.core.errors import SourceError
from costream.core.places import places_of
from costream.report.html_page import page_foot, page_head
from costream.report.markup import Html
from costream.report.overview import MissingResult, Report, read_failures
from costream.report.result_files import ResultFile, find_results
from costream.report.run_pages import Pages
from costream.report.run_summary import RunSummary
from costream.report.section import MOST_OPEN, Run, section
from costream.report.thumbnails import Thumbnails, find_media, take
from costream.report.watch_page import WatchEvents
from costream.sinks.atomic import TextOutput
from costream.sinks.result_reader import NotAResultError, runs

# With more runs than this, each has a separate page, so that the overview still opens.
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
        self, results: Sequence[Path], *, thumbnails: bool = True, pages: Pages | None = None
    ) -> None:
        """``pages``: the pages of many runs; None: all runs are on one page."""
        self._results = results
        self._thumbnails = thumbnails
        self._pages = pages
        self._several = False  # pages
        self._pictures = 0
        self._watch = WatchEvents(None if pages is None else pages.report)
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
        self._several = self._pages is not None and len(files) > MOST_ON_A_PAGE
        if self._pages is not None and self._several:
            self._pages.check()
        blocks = max(8, _MOST_BLOCKS_ALL // max(1, len(files)))
        self.report.overview.most_blocks = min(blocks, self.report.overview.most_blocks)
        one_file = len(self._results) == 1 and not self._results[0].is_dir()
        for k, file in enumerate(files, 1):
            for run in self._runs(file, len(files)):
                href = f"#{run.anchor}"
                if self._pages is not None and self._several:
                    href = self._pages.href(run)
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
        if self._watch.only:
            head, foot = self._watch.parts(title)
        else:
            head, foot = page_head(f"{title} – costream report"), page_foot()
        out.write(head)
        if report.only is None:
            out.write(report.overview.section(report.title, report.palette))
        self._body.seek(0)
        while text := self._body.read(1 << 16):
            out.write(text)
        out.write(foot)
        out.finish()
        if self._pages is not None:
            self._pages.remove_earlier()

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
                summary = RunSummary.of(self._watch.read(contents, file.path), bins)
                title = file.name
                if summary.header is not None and summary.header.began is not None:
                    title = f"{file.name}, from {summary.header.began}"
                elif k and summary.header is not None:
                    title = f"{file.name}: {Path(summary.header.source).name}"
                labels = list(summary.labels)
                show_all = len(labels) <= _WHOLE_LIST
                shown = [label for label in labels if show_all or label in summary.stats]
                self.report.palette.add(labels, shown, summary.heads.backgrounds())
                anchor = f"r{len(self.report.overview.rows) + 1}"
                pictures = self._take(summary, file.path, count)
                yield Run(title, summary, written, anchor, pictures)
        except NotAResultError as error:
            self.report.skipped.append(str(error))
        except SourceError as error:
            self.report.failed.append(error)
            reason = str(error).removeprefix(f"{file.path}: ")
            self.report.overview.refused.append(MissingResult(file.name, reason))

    def _take(self, summary: RunSummary, result: Path, count: int) -> Thumbnails:
        if not self._thumbnails or not summary.segments:
            return Thumbnails()
        media = find_media(summary.header, result)
        if isinstance(media, str):
            return Thumbnails(note=media)
        most = min(_MOST_PICTURES, max(3, _MOST_PICTURES_ALL // count))
        if not self._several:
            most = min(most, _MOST_PICTURES_ALL - self._pictures)
        first = summary.segments[: max(0, most)]
        options = {} if summary.header is None else summary.header.options
        input_fps, moments = options.get("input_fps"), sorted({s.start_s for s in first})
        input_hz = input_fps if isinstance(input_fps, (int, float)) and input_fps > 0 else None
        stream = options.get("stream")
        taken = take(
            *(media, moments, places_of(options)),
            input_hz=input_hz,
            stream=stream if isinstance(stream, str) else None,
        )
        self._pictures += len(taken.pictures)
        if len(first) < len(summary.segments):
            note = f"Pictures are shown for the first {len(first)} segments. {taken.note}"
            return replace(taken, note=note.strip())
        return taken

    def _put(self, run: Run, *, alone: bool) -> None:
        if self._pages is not None and self._several:
            self._pages.put(run, self.report.palette)
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
