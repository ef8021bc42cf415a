"""Separate pages for the runs of a long report."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from costream.core.errors import UsageError
from costream.draw.palette import Palette
from costream.report.html_page import page_foot, page_head
from costream.report.markup import tag
from costream.report.section import Run, section
from costream.sinks.atomic import AtomicFile

_OURS = re.compile(r"r\d+\.html")


class Pages:
    """Separate pages for the runs of a long report, in ``report_files`` next to ``report.html``."""

    def __init__(self, report: Path, *, overwrite: bool) -> None:
        """``report``: the page that links to them."""
        self.report, self._overwrite = report, overwrite
        self._folder = report.with_name(f"{report.stem}_files")
        self._written: set[str] = set()

    def check(self) -> None:
        """Raise UsageError if pages of an earlier report exist and must not be replaced."""
        if not self._overwrite and any(self._earlier()):
            raise UsageError("exists already", where=self._folder, hint="use --overwrite")

    def href(self, run: Run) -> str:
        """Return the link to the page of a run."""
        return quote(f"{self._folder.name}/{run.anchor}.html")

    def put(self, run: Run, palette: Palette) -> None:
        """Write the page of a run."""
        path = self._folder / f"{run.anchor}.html"
        link = tag("a", "Back to the overview", href=quote(f"../{self.report.name}"))
        back = tag("p", link, class_="back")
        out = AtomicFile(path, overwrite=True)
        out.open()
        out.write(page_head(f"{run.title} – costream report"))
        out.write(back + section(run, palette, alone=True) + back)
        out.write(page_foot())
        out.finish()
        self._written.add(path.name)

    def remove_earlier(self) -> None:
        """Remove pages of the replaced report that this one does not have."""
        if not self._overwrite:
            return
        for path in self._earlier():
            if path.name not in self._written:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it is not there, or not empty
            self._folder.rmdir()

    def _earlier(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if _OURS.fullmatch(path.name)]
