"""Formats of timelines: media, channels, and names and times that a format cannot hold."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.records import Segment
from costream.sinks.registry import make_sinks, paths_for
from costream.sinks.stored_timelines import Timelines


def written(run: Any, folder: Path, format: str, *segments: Segment, **about: Any) -> str:
    """Write segments as the file of ``x`` and return its text."""
    (sink,) = make_sinks([format], folder, "x", overwrite=True)
    sink.open(replace(run.header, **about))
    for segment in segments:
        sink.write(segment)
    sink.close(run.summary)
    return paths_for(format, folder, "x")[0].read_text("utf-8")


# --- ELAN -------------------------------------------------------------------------------------


def eaf(run: Any, folder: Path, *segments: Segment, **about: Any) -> ElementTree.Element:
    return ElementTree.fromstring(written(run, folder, "eaf", *segments, **about))


def media(root: ElementTree.Element) -> dict[str, str]:
    (descriptor,) = root.iter("MEDIA_DESCRIPTOR")
    return descriptor.attrib


def test_a_file_is_found_from_where_the_result_lies(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in put" / "ä  & 'b'.wav"
    source.parent.mkdir()
    source.touch()
    found = media(eaf(run, tmp_path / "out" / "sub", source=str(source), kind="audio"))
    assert found["MEDIA_URL"] == f"file://{source.as_posix()}"
    assert found["MIME_TYPE"] == "audio/x-wav"
    assert found["RELATIVE_MEDIA_URL"] == "../../in put/ä  & 'b'.wav"
    monkeypatch.chdir(source.parent)
    beside = media(eaf(run, Path(), source=source.name, kind="audio"))
    assert beside == {**found, "RELATIVE_MEDIA_URL": "./ä  & 'b'.wav"}


@pytest.mark.parametrize(
    ("name", "kind", "mime"),
    [
        ("a.MP4", "video", "video/mp4"),
        ("a.mp4", "audio", "video/mp4"),
        ("a.flac", "audio", "audio/*"),
    ],
)
def test_kinds_of_media(name: str, kind: str, mime: str, run: Any, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    root = eaf(run, tmp_path, source=str(tmp_path / name), kind=kind)
    assert media(root)["MIME_TYPE"] == mime


@pytest.mark.parametrize(
    ("source", "kind"),
    [("mic", "audio"), ("rtsp://host/a.mp4", "video"), ("a" * 300, "video"), ("{}", "skeleton")],
)
def test_what_is_not_a_media_file_has_no_descriptor(
    source: str, kind: str, run: Any, tmp_path: Path
) -> None:
    file = tmp_path / "joints.csv"
    file.touch()
    root = eaf(run, tmp_path, source=source.format(file), kind=kind)
    assert not list(root.iter("MEDIA_DESCRIPTOR"))
    assert root[0].attrib["TIME_UNITS"] == "milliseconds"


def test_names_that_xml_cannot_hold(run: Any, tmp_path: Path) -> None:
    label = "a\x00b\x1b[31m\tc <&\"'> ]]>\n日本"
    root = eaf(run, tmp_path, Segment(0.0, 1.0, label, 0.5), model='<"&>')
    assert [e.text for e in root.iter("ANNOTATION_VALUE")] == ["a�b�[31m c <&\"'> ]]> 日本"]
    assert [e.attrib["TIER_ID"] for e in root.iter("TIER")] == ['<"&>']


def test_an_annotation_takes_a_millisecond_at_least(run: Any, tmp_path: Path) -> None:
    segments = (Segment(-0.5, 0.0, "a", 0.5), Segment(7.0001, 7.0002, "b", 0.5))
    root = eaf(run, tmp_path, *segments)
    times = [int(e.attrib["TIME_VALUE"]) for e in root.iter("TIME_SLOT")]
    assert times == [0, 1, 7000, 7001]


def test_heads_without_a_segment_have_a_tier(run_of_heads: Any, tmp_path: Path) -> None:
    root = eaf(run_of_heads, tmp_path)
    assert [e.attrib["TIER_ID"] for e in root.iter("TIER")] == ["cotrans", "cosounds"]


# --- Raven, RTTM and subtitles ----------------------------------------------------------------


def rows(run: Any, folder: Path, format: str, **about: Any) -> list[list[str]]:
    """Write two segments and return the fields of their lines."""
    segments = (Segment(1.0, 2.5, "a  b\tc", 0.25), Segment(3.0, 4.0, " ", math.nan))
    lines = written(run, folder, format, *segments, **about).split("\n")[:-1]
    return [line.split("\t" if format == "raven" else " ") for line in lines[-2:]]


@pytest.mark.parametrize(("channel", "shown"), [(None, "1"), (1, "1"), (2, "2")])
@pytest.mark.parametrize("format", ["raven", "rttm"])
def test_the_channel_is_the_one_that_was_heard(
    format: str, channel: int | None, shown: str, run: Any, tmp_path: Path
) -> None:
    found = rows(run, tmp_path, format, options={"channel": channel})
    assert {row[2] for row in found} == {shown}


def test_raven_names_the_file_and_numbers_its_rows(run: Any, tmp_path: Path) -> None:
    found = rows(run, tmp_path, "raven", source="al bum/a  b.tar.flac")
    assert [row[0] for row in found] == ["1", "2"]
    assert {row[3] for row in found} == {"a b.tar.flac"}
    assert [row[8:] for row in found] == [["a b c", "0.250000"], ["", ""]]


def test_rttm_has_no_blanks_and_no_empty_fields(run: Any, tmp_path: Path) -> None:
    found = rows(run, tmp_path, "rttm", source="al bum/a  b.tar.flac")
    nothing = "<NA>"
    assert found == [
        f"SPEAKER a_b.tar 1 1.000000 1.500000 {nothing} {nothing} a_b_c 0.250000 {nothing}".split(),
        ["SPEAKER", "a_b.tar", "1", "3.000000", "1.000000", *5 * [nothing]],
    ]


def test_subtitle_cues_are_never_empty(run: Any, tmp_path: Path) -> None:
    segments = (Segment(-0.2, 0.0001, "a", 0.5), Segment(360_000.0, 360_000.0002, "b", 0.5))
    text = written(run, tmp_path, "srt", *segments)
    assert "00:00:00,000 --> 00:00:00,001" in text
    assert "100:00:00,000 --> 100:00:00,001" in text


# --- several heads, in order of time ----------------------------------------------------------

LENGTHS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=20)


def timeline(head: str, lengths: list[tuple[int, int]]) -> list[Segment]:
    """Segments of these pauses and lengths, in tenths of seconds."""
    out, end = [], 0
    for pause, length in lengths:
        start, end = end + pause, end + pause + length
        out.append(Segment(start / 10, end / 10, f"{head}\r\n\u2028{start}", 0.5, head))
    return out


@given(LENGTHS, LENGTHS)
def test_they_come_back_in_order(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    stored = Timelines(["a"])
    heads = {"a": timeline("a", a), "b": timeline("b", b)}
    for segment in sorted(heads["a"] + heads["b"], key=lambda s: s.end_s):
        stored.add(segment)
    merged = list(stored.merged())
    assert [s.start_s for s in merged] == sorted(s.start_s for s in merged)
    for head, segments in heads.items():
        assert [s for s in merged if s.model == head] == segments
        assert stored.count(head) == len(segments)
        assert head not in stored.heads or list(stored.of(head)) == segments
    assert stored.heads == (("a", "b") if b else ("a",))
    stored.close()


def test_scores_that_are_not_numbers_stay_so() -> None:
    stored = Timelines()
    stored.add(Segment(0.0, 1.0, "a", math.nan))
    (segment,) = stored.merged()
    assert math.isnan(segment.score)
    stored.close()
