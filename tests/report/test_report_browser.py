"""Report in a real browser: no messages on the console, fit to the screen."""

from __future__ import annotations

import re

import av
import pytest

from kit.browser import browse, console, fit, needs_browser

pytestmark = needs_browser


def test_the_console_check_would_see_an_error(tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text("<!DOCTYPE html><script>console.error('seen')</script>")
    assert any("seen" in line for line in console(browse(broken, tmp_path / "p", "--dump-dom")))


@pytest.mark.long
def test_a_browser_has_nothing_to_complain_about(crowded, tmp_path):
    done = browse(crowded, tmp_path / "profile", "--dump-dom")
    assert console(done) == []
    before = len(re.findall("<article|<rect|<li|<path|<img", crowded.read_text("utf-8")))
    after = len(re.findall("<article|<rect|<li|<path|<img", done.stdout))
    assert after == before > 100, "the browser's own tree has every element that was written"
    assert "<parsererror" not in done.stdout


@pytest.mark.long
def test_nor_about_an_overview_and_the_pages_that_it_leads_to(many, tmp_path):
    for k, page in enumerate((many / "report.html", many / "report_files" / "r7.html")):
        done = browse(page, tmp_path / f"profile{k}", "--dump-dom")
        assert console(done) == []
        assert done.stdout.count("<rect") == page.read_text("utf-8").count("<rect") > 5


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_the_screen(crowded, tmp_path, width):
    inner, scroll, wide = fit(crowded, width, tmp_path)
    assert inner == width
    assert scroll == width, "nothing makes the page scroll sideways"
    assert wide == 0


@pytest.mark.long
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
