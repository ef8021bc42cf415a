"""The page in a real browser: it opens from disk without one message on the console."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import av
import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(
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


def test_the_console_check_would_see_an_error(tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text("<!DOCTYPE html><script>console.error('seen')</script>")
    assert any("seen" in line for line in console(browse(broken, tmp_path / "p", "--dump-dom")))


def test_a_browser_has_nothing_to_complain_about(crowded, tmp_path):
    done = browse(crowded, tmp_path / "profile", "--dump-dom")
    assert console(done) == []
    before = len(re.findall("<article|<rect|<li|<path|<img", crowded.read_text("utf-8")))
    after = len(re.findall("<article|<rect|<li|<path|<img", done.stdout))
    assert after == before > 100, "the browser's own tree has every element that was written"
    assert "<parsererror" not in done.stdout


def test_nor_about_an_overview_and_the_pages_that_it_leads_to(many, tmp_path):
    for k, page in enumerate((many / "report.html", many / "report_files" / "r7.html")):
        done = browse(page, tmp_path / f"profile{k}", "--dump-dom")
        assert console(done) == []
        assert done.stdout.count("<rect") == page.read_text("utf-8").count("<rect") > 5


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_the_screen(crowded, tmp_path, width):
    # The page itself may run no script: this is a copy that may. It lies in a frame, because a
    # window is never narrower than 500 pixels.
    copy, frame = tmp_path / "copy.html", tmp_path / "frame.html"
    frame.write_text(FRAME % width, "utf-8")
    content = crowded.read_text("utf-8").replace("default-src 'none';", "")
    copy.write_text(content + MEASURE, "utf-8")
    waiting = ("--virtual-time-budget=10000", "--window-size=1300,900")
    done = browse(frame, tmp_path / "p", "--dump-dom", *waiting)
    inner, scroll, wide = map(int, re.search(r"<title>(\d+) (\d+) (\d+)<", done.stdout).groups())
    assert inner == width
    assert scroll == width, "nothing makes the page scroll sideways"
    assert wide == 0


def test_it_is_drawn_light_and_dark(crowded, tmp_path):
    seen = {}
    for scheme, flag in (("light", "1"), ("dark", "0")):
        shot = tmp_path / f"{scheme}.png"
        browse(
            crowded,
            tmp_path / scheme,
            f"--screenshot={shot}",
            "--window-size=800,600",
            f"--blink-settings=preferredColorScheme={flag}",
        )
        with av.open(str(shot)) as opened:
            rgb = next(opened.decode(video=0)).to_ndarray(format="rgb24")
        seen[scheme] = rgb[2, 2].mean()
        # Colours of the first labels are on the strip.
        assert (rgb == (0x6C, 0x72, 0xDC)).all(axis=-1).sum() > 50
    assert seen["light"] > 240
    assert seen["dark"] < 40
