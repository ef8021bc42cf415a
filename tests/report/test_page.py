"""Page of a report: content, escaping and size."""

from __future__ import annotations

import base64
import io
import json
import re
from datetime import datetime, timezone
from urllib.parse import unquote

import av
import numpy as np
import pytest

from costream.__main__ import main
from costream.core.records import Segment, StageTimes
from costream.report.markup import Html, tag, text
from costream.sinks.result_reader import read_results
from costream.sinks.rotation import Rotation
from kit.media import make_video, read_number
from kit.pages import Page


def report(*args):
    assert main(["report", *map(str, args)]) == 0


def page_of(path, *options):
    report(path, *options)
    return Page(path.with_suffix(".html"))


def test_text_is_escaped_and_harmless():
    assert text("<b> & \"x\" 'y'") == "&lt;b&gt; &amp; &quot;x&quot; &#x27;y&#x27;"
    assert text("a\nb\x00\u202e\x1b[0m") == "a b\ufffd\ufffd\ufffd[0m"
    assert text("日本語 👩\u200d💻 عربي") == "日本語 👩\u200d💻 عربي"
    assert tag("p", "<i>", Html("<b></b>"), title='"') == '<p title="&quot;">&lt;i&gt;<b></b></p>'
    assert tag("a", None, hidden=True, id=None, class_="c", aria_label="l") == (
        '<a hidden class="c" aria-label="l"></a>'
    )


def test_the_page_says_what_the_run_was_and_stands_alone(result):
    page = page_of(result(seconds=60.0, gap=(20.0, 31.5), fault_s=10.0))
    said = " ".join(word.strip() for word in page.words)
    for expected in (
        "clip.mp4",
        "Source clips/gone.mp4",
        "Model cooadtr",
        "Weights abababababab",
        "by costream 0.1.0",
        "20x real time",
        "43.5 MMAC",
        "1.5x less than recomputing the window (66.7 MMAC)",
        "complete 1 gap, 3 errors",
        "11.5 s: no data for 11.500 s",
        "1 packet could not be decoded",
        "The source (clips/gone.mp4) no longer exists",
    ):
        assert expected in said
    assert page.count("script") == 0
    for attribute in ("href", "src"):
        for value in page.values(attribute):
            assert value.startswith(("#", "data:")), value
    assert "@import" not in page.source
    assert set(re.findall(r"url\(([^)]*)\)", page.source)) <= {
        *(f"#{p}-{s}" for p in ("stripes", "dots", "bars") for s in ("dark", "light")),
        "#gap",
    }
    assert "default-src 'none'" in page.source
    assert not any(name.startswith("on") for _, found in page.tags for name in found)
    # Pictures of content have words.
    for name, found in page.tags:
        if name == "svg" and found.get("role") == "img":
            assert found["aria-label"]
        if name == "img":
            assert found["alt"]
    assert page.count("h1") == 1
    assert ("html", {"lang": "en"}) in page.tags
    assert {"th"} == {t for t, a in page.tags if "scope" in a}


def test_every_segment_is_on_the_timeline_and_in_the_list(result):
    path = result(seconds=50.0)
    segments = [r for r in read_results(path) if isinstance(r, Segment)]
    page = page_of(path)
    blocks = [a for t, a in page.tags if t == "a" and (a.get("href") or "").startswith("#r1s")]
    assert [a["href"] for a in blocks] == [f"#r1s{k}" for k in range(1, len(segments) + 1)]
    for segment, block in zip(segments, blocks, strict=True):
        assert (block["aria-label"] or "").startswith(f"{segment.label}, ")
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {a["href"].removeprefix("#") for a in blocks} <= set(ids)
    rects = [a for t, a in page.tags if t == "rect" and a.get("class") == "block"]
    strip = [a for a in rects if a["height"] == "46"]
    assert len(strip) == len(segments)
    for segment, rect in zip(segments, strip, strict=True):
        assert float(rect["x"].rstrip("%")) == pytest.approx(2 * segment.start_s, abs=1e-3)
        length = segment.end_s - segment.start_s
        assert float(rect["width"].rstrip("%")) == pytest.approx(2 * length, abs=1e-3)


AWKWARD = (
    "none",
    "<script>alert(1)</script>",
    "\"'&<>",
    "--></style><img src=x onerror=alert(1)>",
    "line\nbreak\tand \x00\x1b[31m",
    "日本語の行動",
    "عربي",
    "\u202egnp.exe",
    "${7*7} {{x}} $x^2$ %s",
    "x" * 300,
)


# What cannot be shown as it is, and how it is shown.
BROKEN = {AWKWARD[4]: "line break and \ufffd\ufffd[31m", AWKWARD[7]: "\ufffdgnp.exe"}


def test_awkward_names_stay_text(result):
    name = 'sub & <b>/it\'s "böse" 日本語.mp4'
    path = result(
        name,
        labels=AWKWARD,
        source="rtsp://***@h/<i>?token=***",
        fault_s=1.0,
        fault="<script>boom</script>",
        model="<model>",
        seconds=90.0,
    )
    report(path)
    said = Page(path.with_name(path.name.removesuffix(".jsonl") + ".html")).text
    for label in AWKWARD[1:]:
        assert BROKEN.get(label, label) in said, label
    folder = path.parents[2]
    report(folder)
    page = Page(folder / "report.html")
    assert page.count("script") == page.count("img") == page.count("b") == page.count("i") == 0
    assert page.count("style") == 1
    assert 'sub & <b>/it\'s "böse" 日本語.mp4' in page.text
    said = page.text
    assert "<script>boom</script>" in said
    assert "rtsp://***@h/<i>?token=***" in said
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", page.source)


def test_thumbnails_show_the_source_at_the_starts_of_segments(result, tmp_path):
    video = make_video(tmp_path / "numbers.mp4", 500, size=(240, 160))
    path = result("numbers.mp4", source=str(video))
    page = page_of(path)
    starts = [r.start_s for r in read_results(path) if isinstance(r, Segment)]
    pictures = [a["src"] for t, a in page.tags if t == "img"]
    assert len(pictures) == len(starts) > 2
    for start_s, url in zip(starts, pictures, strict=True):
        head, data = unquote(url).split(",", 1)
        assert head == "data:image/jpeg;base64"
        with av.open(io.BytesIO(base64.b64decode(data)), format="mjpeg") as opened:
            rgb = next(opened.decode(video=0)).to_ndarray(format="rgb24")
        assert rgb.shape[:2] == (160, 240)
        # A frame that no other is made from may be left out: one or two later.
        assert 0 <= read_number(np.asarray(rgb)) - start_s * 25 <= 3


def test_the_source_is_also_found_next_to_the_results(result, tmp_path):
    path = result("numbers.mp4", source="elsewhere/numbers.mp4")
    make_video(path.parent / "numbers.mp4", 500)
    assert page_of(path).count("img") > 2


def test_pages_without_pictures_say_why_unless_asked_for(result, tmp_path):
    source = tmp_path / "clip.mp4"
    source.write_text("gone bad")
    page = page_of(result(source=str(source)))
    assert page.count("img") == 0
    assert "There are no pictures" in page.text
    assert "The source holds features" in page_of(result("b.mp4", kind="features")).text
    page = page_of(result("c.mp4"), "--no-thumbnails")
    assert page.count("img") == 0
    assert "no pictures" not in page.text


def test_a_short_source_gives_the_pictures_it_has(result, tmp_path):
    video = make_video(tmp_path / "short.mp4", 200)
    page = page_of(result(source=str(video)))
    assert 0 < page.count("img") < page.count("li")
    assert "could not be read from the source" in page.text


@pytest.mark.long
def test_ten_minutes_with_pictures_stay_below_two_megabytes(result, tmp_path):
    # noise is the largest picture there is
    def noise(k, size):
        return np.random.default_rng(k).integers(0, 255, (size[1], size[0], 3)).astype(np.uint8)

    coded = {"rate": 1, "size": (240, 180), "codec": "mpeg4", "keyframe_every": 2}
    video = make_video(tmp_path / "noise.mp4", 300, pattern=noise, **coded)
    path = result(seconds=600.0, source=str(video), scores=True)
    page = page_of(path)
    assert page.count("img") == 60
    assert path.with_suffix(".html").stat().st_size < 2_000_000


@pytest.mark.long
def test_an_hour_stays_below_three_megabytes(result):
    path = result(seconds=3600.0, segment_s=(0.5, 3.0))
    page = page_of(path)
    assert path.with_suffix(".html").stat().st_size < 3_000_000
    assert page.count("li") > 1000


@pytest.mark.long
def test_more_segments_than_can_be_listed_are_still_drawn_and_counted(result):
    path = result(seconds=1500.0, segment_s=(0.25, 0.5))
    segments = [r for r in read_results(path) if isinstance(r, Segment)]
    assert len(segments) > 2000
    page = page_of(path)
    assert f"{len(segments) - 2000:,} later segments are not listed" in page.text
    assert f"{len(segments):,}" in page.text
    strip = [
        float(a["x"].rstrip("%"))
        for t, a in page.tags
        if t == "rect" and "x" in a and a.get("height") == "46"
    ]
    assert max(strip) > 98, "the strip goes to the end"


def test_batches_without_times_have_no_times(result):
    page = page_of(result(ms=StageTimes(*[float("nan")] * 4)))
    assert "Cost a step" in page.text
    assert "Time a step" not in page.text
    assert "ms a step" not in page.text
    document = page_of(result("b.mp4", formats="json"))
    assert "43.5 MMAC" in document.text
    assert "network" in document.text


def test_a_run_that_was_killed_is_shown_as_far_as_it_goes(result, tmp_path):
    whole = result(seconds=60.0)
    data = whole.read_bytes()
    path = tmp_path / "clip.mp4.jsonl.part"
    path.write_bytes(data[: len(data) // 2])
    report(path)
    page = Page(tmp_path / "clip.mp4.html")
    assert "truncated" in page.text
    assert "unreadable: not a JSON object" in page.text
    stopped = page_of(result("stopped.mp4", complete=False))
    assert "incomplete" in stopped.text
    assert "stopped by Ctrl-C" in stopped.text


@pytest.mark.parametrize("kept", ["header", "prediction", "segment", "compute", "summary"])
def test_a_file_of_one_type_of_record_is_shown(result, kept):
    path = result(gap=(5.0, 8.0), fault_s=1.0)
    lines = [ln for ln in path.read_text("utf-8").splitlines() if json.loads(ln)["type"] == kept]
    path.write_text("\n".join(lines), "utf-8")
    assert page_of(path).count("article") == 1


def test_a_folder_has_an_overview_with_links(result, tmp_path):
    for k in range(5):
        result(f"day{k % 2}/clip{k}.mp4", seed=k, seconds=10.0 + k)
    report(tmp_path / "out")
    page = Page(tmp_path / "out" / "report.html")
    assert page.count("article") == 5
    links = [a["href"] for t, a in page.tags if t == "a" and re.fullmatch(r"#r\d+", a["href"])]
    assert links == ["#r1", "#r2", "#r3", "#r4", "#r5"]
    assert set(links) <= {f"#{i}" for i in page.values("id")}
    for expected in ("day0/clip0.mp4", "day1/clip3.mp4", "5 runs of cooadtr", "all complete"):
        assert expected in page.text
    assert "1:00" in page.text, "10 + 11 + 12 + 13 + 14 s"


def test_the_runs_of_a_watch_are_shown_one_by_one(watched, tmp_path):
    path = watched(runs=3, killed=True)
    page = page_of(path)
    assert page.count("article") == 3
    for began in ("04:00", "05:00", "06:00"):
        assert f"cam, from 2026-11-22T{began}:00.000Z" in page.text
    figures = page.text.partition("Figures of the runs")[2].partition('{"live"')[0]
    assert figures.count("walk>=0.8 for 2s") == 6
    assert figures.count("cam-3.mp4") == 3
    assert page.text.count("unreadable: not a JSON object") == 1
    assert "The source is live" in page.text


def test_the_report_of_a_watch_begins_with_its_events_at_times_of_day(watched, tmp_path):
    watched(runs=2)
    (tmp_path / "log" / "cam-3.mp4").write_bytes(b"clip")
    report(tmp_path / "log", "-o", str(tmp_path / "report.html"))
    page = Page(tmp_path / "report.html")
    data = json.loads(page.source.partition('id="data">')[2].partition("</script>")[0])
    alerts = [event for event in data["events"] if event["kind"] == "alert"]
    begun = datetime(2026, 11, 22, 4, tzinfo=timezone.utc).timestamp()
    assert [a["start"] - begun for a in alerts] == [3.5, 4.5, 3603.5, 3604.5]
    assert [a.get("clip") for a in alerts] == ["log/cam-3.mp4", None, "log/cam-3.mp4", None]
    assert {event["feed"] for event in data["events"]} == {"cam"}
    assert sum(event["kind"] == "gap" for event in data["events"]) == 2


def test_a_watch_that_was_stopped_has_ended(watched):
    path = watched()
    written = path.read_text("utf-8")
    assert '"complete": true, "exit": 0' in written
    stopped = written.replace('"complete": true, "exit": 0', '"complete": false, "exit": 130')
    path.write_text(stopped, "utf-8")
    page = page_of(path)
    assert "stopped by Ctrl-C" in page.text
    assert "incomplete" not in page.text


def test_each_part_of_a_watch_is_shown(watched, tmp_path):
    watched(runs=2, rotation=Rotation(size=15_000))
    names = sorted(path.name for path in (tmp_path / "log").glob("*.jsonl"))
    assert len(names) > 4
    report(tmp_path / "log")
    page = Page(tmp_path / "log" / "report.html")
    assert page.count("article") >= len(names)
    for name in names:
        assert f"{name.removesuffix('.jsonl')}, from 2026-11-22T" in page.text
    assert "unfinished" in page.text
    assert "truncated" not in page.text


def test_a_batch_has_its_failures(result, tmp_path):
    result()
    table = 'name,status,exit,reason\nbad.mp4,failed,4,"no, <moov>"\npart.mp4,partial,3,cut\n'
    (tmp_path / "out" / "failures.csv").write_text(table, "utf-8")
    report(tmp_path / "out")
    page = Page(tmp_path / "out" / "report.html")
    assert "bad.mp4" in page.text
    assert "no, <moov>" in page.text
    assert "part.mp4" not in page.text, "what was read of it has its own section"
