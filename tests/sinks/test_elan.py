"""What ELAN finds in its file: the media, names that XML cannot hold, times in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from costream.records import Segment
from costream.sinks.registry import make_sinks


def written(run: Any, folder: Path, *segments: Segment, **about: Any) -> ElementTree.Element:
    """Write an EAF as ``folder/x.eaf`` and read it back."""
    (sink,) = make_sinks(["eaf"], folder, "x", overwrite=True)
    sink.open(replace(run.header, **about))
    for segment in segments:
        sink.write(segment)
    sink.close(run.summary)
    return ElementTree.parse(folder / "x.eaf").getroot()


def media(root: ElementTree.Element) -> dict[str, str]:
    (descriptor,) = root.iter("MEDIA_DESCRIPTOR")
    return descriptor.attrib


def test_a_file_is_found_from_where_the_result_lies(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in put" / "ä  & 'b'.wav"
    source.parent.mkdir()
    source.touch()
    found = media(written(run, tmp_path / "out" / "sub", source=str(source), kind="audio"))
    assert found["MEDIA_URL"] == f"file://{source.as_posix()}"
    assert found["MIME_TYPE"] == "audio/x-wav"
    assert found["RELATIVE_MEDIA_URL"] == "../../in put/ä  & 'b'.wav"
    monkeypatch.chdir(source.parent)
    beside = media(written(run, Path(), source=source.name, kind="audio"))
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
    root = written(run, tmp_path, source=str(tmp_path / name), kind=kind)
    assert media(root)["MIME_TYPE"] == mime


@pytest.mark.parametrize(
    ("source", "kind"),
    [("mic", "audio"), ("rtsp://host/a.mp4", "video"), ("a" * 300, "video"), ("{}", "skeleton")],
)
def test_what_is_no_media_file_has_no_descriptor(
    source: str, kind: str, run: Any, tmp_path: Path
) -> None:
    file = tmp_path / "joints.csv"
    file.touch()
    root = written(run, tmp_path, source=source.format(file), kind=kind)
    assert not list(root.iter("MEDIA_DESCRIPTOR"))
    assert root[0].attrib["TIME_UNITS"] == "milliseconds"


def test_names_that_xml_cannot_hold(run: Any, tmp_path: Path) -> None:
    label = "a\x00b\x1b[31m\tc <&\"'> ]]>\n日本"
    root = written(run, tmp_path, Segment(0.0, 1.0, label, 0.5), model='<"&>')
    assert [e.text for e in root.iter("ANNOTATION_VALUE")] == ["a�b�[31m c <&\"'> ]]> 日本"]
    assert [e.attrib["TIER_ID"] for e in root.iter("TIER")] == ['<"&>']


def test_an_annotation_takes_a_millisecond_at_least(run: Any, tmp_path: Path) -> None:
    segments = (Segment(-0.5, 0.0, "a", 0.5), Segment(7.0001, 7.0002, "b", 0.5))
    root = written(run, tmp_path, *segments)
    times = [int(e.attrib["TIME_VALUE"]) for e in root.iter("TIME_SLOT")]
    assert times == [0, 1, 7000, 7001]


def test_heads_without_a_segment_have_a_tier(run_of_heads: Any, tmp_path: Path) -> None:
    root = written(run_of_heads, tmp_path)
    assert [e.attrib["TIER_ID"] for e in root.iter("TIER")] == ["cotrans", "cosounds"]
