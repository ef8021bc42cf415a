"""Matching of labels and recordings, and of several label files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import UsageError
from costream.core.records import Head, Segment
from costream.labels.reading import read_recordings
from costream.sinks.registry import FORMATS
from kit.paths import SAMPLES

WAVE = [Segment(1.0, 2.0, "wave", 0.9)]


def media(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no media")
    return folder


def sources(data, labels):
    return [os.path.relpath(r.source, data) for r in read_recordings(data, labels)]


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"coco", "joints", "mp4", "table"}))
def test_results_find_what_they_are_of(format, written, tmp_path):
    data = media(tmp_path / "in", "one/clip a.mp4", "two/clip a.mp4", "three/b.mp4")
    for name in ("one/clip a.mp4", "two/clip a.mp4"):
        written([format], tmp_path / "out", name, WAVE, source=str(data / name))
    assert sources(data, tmp_path / "out") == ["one/clip a.mp4", "two/clip a.mp4"]


@pytest.mark.parametrize("name", ["clip.mp4.srt", "clip.srt", "sub/clip.srt", "CLIP/clip.mov.srt"])
def test_names_of_files(name, tmp_path):
    data = media(tmp_path / "in", "clip.mp4", "other.mp4")
    path = media(tmp_path / "out", name) / name
    path.write_text("1\n00:00:01,000 --> 00:00:02,000\nwave\n", "utf-8")
    assert sources(data, tmp_path / "out") == ["clip.mp4"]


def test_labels_next_to_their_media(written, tmp_path, caplog):
    data = media(tmp_path, "clip.mp4", "joints.csv", "clip_rgb.npy.txt")
    written(["audacity"], data, "clip.mp4", WAVE)
    assert sources(data, data) == ["clip.mp4"]
    assert "joints.csv" not in caplog.text


def test_videos_in_one_file(tmp_path):
    features = {"rgb": np.zeros((8, 4), np.float32), "flow": np.zeros((8, 2), np.float32)}
    path = tmp_path / "thumos_val.pickle"
    path.write_bytes(pickle.dumps({"video_1": features, "video_2": features}))
    labels = tmp_path / "gt.json"
    labels.write_text('{"database": {"video_2": {"annotations": []}}}', "utf-8")
    for data in (path, Path(f"{path}#video_2")):
        (recording,) = read_recordings(data, labels)
        assert recording.source == f"{path}#video_2"


def test_two_files_belong_together_whatever_they_are_called(written, tmp_path):
    data = media(tmp_path, "in.mp4") / "in.mp4"
    written(["srt"], tmp_path, "corrected", WAVE)
    (recording,) = read_recordings(data, tmp_path / "corrected.srt")
    assert recording.source == str(data)


def test_what_may_be_several_is_reported(written, tmp_path):
    data = media(tmp_path / "in", "a/clip.mp4", "b/clip.mp4")
    written(["srt"], tmp_path / "out", "clip.mp4", WAVE)
    wrong = r"is ambiguous: it matches a/clip\.mp4, b/clip\.mp4; rename them"
    with pytest.raises(UsageError, match=wrong):
        read_recordings(data, tmp_path / "out")


def test_a_text_next_to_a_recording_is_none(tmp_path):
    data = tmp_path / "in"
    data.mkdir()
    (data / "street.ogg").write_bytes((SAMPLES / "street.ogg").read_bytes())
    (data / "street.txt").write_text("Free for all uses.", "utf-8")
    (data / "street.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nrain\n", "utf-8")
    assert sources(data, data) == ["street.ogg"]


def test_labels_that_lie_among_the_recordings_are_none(tmp_path):
    """Beside moves.csv lies moves.json, which says what it shows."""
    path = tmp_path / "moves.txt"
    path.write_text("1.0\t2.0\twalk\n", "utf-8")
    assert sources(SAMPLES, path) == ["moves.csv"]


def test_a_name_that_says_less_gives_way(written, tmp_path):
    """RTTM leaves the ending out, its file's name does not."""
    data = media(tmp_path / "in", "clip.mp4", "clip.wav")
    written(["rttm"], tmp_path / "out", "clip.wav", WAVE)
    assert sources(data, tmp_path / "out") == ["clip.wav"]


def test_what_is_missing_is_reported(written, tmp_path, caplog):
    data = media(tmp_path / "in", "a.mp4", "b.mp4", "notes.doc")
    written(["srt"], tmp_path / "out", "c.mp4", WAVE)
    with pytest.raises(UsageError, match=r"none of the recordings was found: c\.mp4"):
        read_recordings(data, tmp_path / "out")
    written(["srt"], tmp_path / "out", "a.mp4", WAVE)
    assert sources(data, tmp_path / "out") == ["a.mp4"]
    assert "no recording for the labels of c.mp4" in caplog.text
    assert "no labels for b.mp4, left out" in caplog.text


def test_a_run_in_several_formats_counts_once(written, tmp_path, caplog):
    segments = [Segment(1 / 3, 2 / 3, "a <b> c", 0.5), Segment(1.0, 2.0, "d e", 0.5)]
    formats = ["jsonl", "json", "csv", "srt", "vtt", "audacity", "raven", "rttm", "eaf"]
    written(formats, tmp_path, "sub/clip.mp4", segments, source="clip.mp4")
    (recording,) = read_recordings(None, tmp_path)
    assert recording.source == "sub/clip.mp4"
    assert [label.label for label in recording.labels] == ["a <b> c", "d e"]
    assert recording.labels[0].where == f"{tmp_path / 'sub/clip.mp4.jsonl'}, line 2"
    assert not caplog.text


def test_the_corrected_file_counts(written, tmp_path, caplog):
    written(["jsonl", "srt", "audacity"], tmp_path, "clip.mp4", WAVE)
    path = tmp_path / "clip.mp4.audacity.txt"
    path.write_text(path.read_text("utf-8").replace("wave", "walk"), "utf-8")
    with pytest.raises(UsageError, match="and neither file is newer; remove one of them"):
        read_recordings(None, tmp_path)
    later = path.stat().st_mtime + 60
    os.utime(path, (later, later))
    (recording,) = read_recordings(None, tmp_path)
    assert recording.labels[0].label == "walk"
    assert f"labels differ between files, the newest is used: {path}" in caplog.text


def test_a_correction_under_a_name_of_its_own_counts(written, tmp_path):
    written(["jsonl"], tmp_path, "clip.mp4", WAVE)
    path = tmp_path / "clip.txt"
    path.write_text("1.0\t2.0\twalk\n", "utf-8")
    later = path.stat().st_mtime + 60
    os.utime(path, (later, later))
    (recording,) = read_recordings(None, tmp_path)
    assert (recording.source, recording.labels[0].label) == ("clip.mp4", "walk")
    written(["srt"], tmp_path, "clip.wav", WAVE)  # now it may be of either
    assert [r.source for r in read_recordings(None, tmp_path)] == ["clip.mp4", "clip", "clip.wav"]


def test_tables_over_all_of_a_batch(written, tmp_path, caplog):
    for name in ("a.mp4", "sub/b.mp4"):
        written(["csv"], tmp_path, name, WAVE)
    rows = "".join(f"{name},1.0,2.0,1.0,wave,0.9\n" for name in ("a.mp4", "sub/b.mp4"))
    table = tmp_path / "timeline.csv"
    table.write_text(f"name,start_s,end_s,length_s,label,score\n{rows}", "utf-8")
    (tmp_path / "summary.json").write_text("{}", "utf-8")
    (tmp_path / "a.mp4.coco.json").write_text("{}", "utf-8")
    recordings = read_recordings(None, tmp_path)
    assert [r.source for r in recordings] == ["a.mp4", "sub/b.mp4"]
    assert all(r.whole for r in recordings)
    assert [r.source for r in read_recordings(None, table)] == ["a.mp4", "sub/b.mp4"]
    assert not caplog.text


def test_heads_are_parts(written, tmp_path):
    heads = tuple(Head(name, "", (), None, 0.0, 0.5) for name in ("genres", "sounds"))
    segments = [Segment(0, 9, "rock", 0.9, "genres"), Segment(1, 2, "siren", 0.9, "sounds")]
    written(["jsonl", "csv", "srt", "eaf"], tmp_path, "a.ogg", segments, heads=heads)
    (recording,) = read_recordings(None, Path(f"{tmp_path}#sounds"))
    assert [label.label for label in recording.labels] == ["siren"]


def test_labels_after_the_end_of_a_film(tmp_path, caplog):
    """The sample lasts 49.16 s."""
    path = tmp_path / "room.csv"
    path.write_text("start_s,end_s,label\n40,49.5,a\n45,70,b\n60,70,c\n", "utf-8")
    (recording,) = read_recordings(SAMPLES / "room.mp4", path)
    assert recording.duration_s == pytest.approx(49.16)
    assert [(x.end_s, x.label) for x in recording.labels] == [
        *((49.5, "a"), (recording.duration_s, "b"))
    ]
    assert f"reach beyond the end of the recording, cut off: {path}, line 3" in caplog.text
    assert f"after the end of the recording, left out: {path}, line 4" in caplog.text


def test_the_labels_of_the_samples():
    found = {Path(r.source).name: r for r in read_recordings(SAMPLES, SAMPLES)}
    assert set(found) == {"band.ogg", "corridor.mp4", "moves.csv", "room.mp4", "street.ogg"}
    assert found["room.mp4"].labels[1].label == "walk"
    assert all(not list(r.unlabelled()) for r in found.values())


@pytest.mark.parametrize(
    ("data", "labels", "group", "says"),
    [
        (".", None, "person", "--group names a column of a table"),
        (None, None, None, "neither data nor labels"),
        (None, "none", None, "no such label file or folder"),
        (None, ".", None, "it contains no labels"),
    ],
)
def test_missing_files_and_labels_are_reported(data, labels, group, says, tmp_path):
    paths = (None if name is None else tmp_path / name for name in (data, labels))
    with pytest.raises(UsageError, match=says):
        read_recordings(*paths, group)
