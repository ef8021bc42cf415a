"""A real browser for pages: Chromium without a window."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium; on Debian: apt-get install chromium fonts-dejavu-core",
)

MEASURE = """<script>
const all = [...document.querySelectorAll("main *")];
const wide = all.filter(e => !e.closest(".scroll") && !e.closest("svg")
  && e.getBoundingClientRect().right > innerWidth + 1);
const size = [innerWidth, document.documentElement.scrollWidth, wide.length];
parent.postMessage(size.join(" "), "*");
</script>"""
FRAME = """<!DOCTYPE html><title>none</title>
<script>onmessage = event => { document.title = event.data; };</script>
<iframe src="copy.html" style="width:%dpx;height:900px;border:0"></iframe>"""


def browse(page: Path, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Open a page; what it logs to its console is in stderr."""
    return subprocess.run(
        [
            str(BROWSER),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                "--enable-logging=stderr",
                "--v=0",
            ),
            *arguments,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )


def console(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def fit(page: Path, width: int, folder: Path) -> tuple[int, int, int]:
    """Return the width of a page in a frame, that of its content, and how much is out of place.

    The page itself may run no script but its own: this is a copy that may. It lies in a frame,
    because a window is never narrower than 500 pixels.
    """
    copy, frame = folder / "copy.html", folder / "frame.html"
    frame.write_text(FRAME % width, "utf-8")
    policy = '<meta http-equiv="Content-Security-Policy"[^>]*>'
    content = re.sub(policy, "", page.read_text("utf-8"), count=1)
    copy.write_text(content + MEASURE, "utf-8")
    waiting = ("--virtual-time-budget=10000", "--window-size=1300,900")
    done = browse(frame, folder / "p", "--dump-dom", *waiting)
    found = re.search(r"<title>(\d+) (\d+) (\d+)<", done.stdout)
    assert found is not None, done.stdout[:500]
    inner, scroll, wide = map(int, found.groups())
    return inner, scroll, wide
