"""Conformance of all output formats, and of one that is added from outside."""

from __future__ import annotations

import csv
import importlib
import json
import os
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import av
import numpy as np
import pytest

from costream.__main__ import main
from costream.core.errors import ExitCode, OutputError, UsageError
from costream.core.layouts import BODY_15
from costream.core.records import (
    OBJECT_DETECTION,
    Alert,
    Box,
    Compute,
    Objects,
    Picture,
    Prediction,
    Segment,
    SkeletonFrame,
    StageTimes,
    VideoFrame,
)
from costream.sinks.atomic import BinaryFile, write_file
from costream.sinks.base import OUTPUT_FILES, PictureSink, Sink
from costream.sinks.labels import RAVEN_COLUMNS
from costream.sinks.registry import (
    FORMATS,
    check_outputs,
    is_complete,
    make_sinks,
    object_formats,
    parse_formats,
    paths_for,
)
from kit.disk import full_disk
from kit.program import python

NAME = "mappe/clip ä 日本.mp4"  # as of an input folder that is mirrored
EVERY = pytest.mark.parametrize("format", sorted(FORMATS))
TEXTS = pytest.mark.parametrize("format", sorted(f for f in FORMATS if not FORMATS[f].binary))
ONE_TEXT = pytest.mark.parametrize(
    "format", sorted(f for f in FORMATS if len(FORMATS[f].files) == 1 and not FORMATS[f].binary)
)
OF_OBJECTS = object_formats(FORMATS)


@pytest.fixture
def run(run_of_actions: Any, run_of_objects: Any, request: pytest.FixtureRequest) -> Any:
    """The run that a format is of."""
    format = request.getfixturevalue("format") if "format" in request.fixturenames else None
    return run_of_objects if format in OF_OBJECTS else run_of_actions


def play(sinks: list[Sink], run: Any) -> None:
    for sink in sinks:
        sink.open(run.header)
    for record in run.records:
        for sink in sinks:
            sink.write(record)
            if isinstance(sink, PictureSink) and isinstance(record, (Prediction, Objects)):
                sink.draw(picture(record))
    for sink in sinks:
        sink.close(run.summary)


def files(
    format: str, directory: Path, name: str = NAME, objects: bool | None = None
) -> list[Path]:
    found = format in OF_OBJECTS if objects is None else objects
    return paths_for(format, directory, name, objects=found)


def picture(step: Prediction | Objects) -> Picture:
    if isinstance(step, Objects):
        rgb = np.zeros((48, 64, 3), np.uint8)
        frame = VideoFrame(step.frame, step.time_s, step.pts, rgb.copy, size=(640, 480))
        return Picture(step.time_s, frame, None)
    joints = np.random.default_rng(step.i).standard_normal((2, 15, 3)).astype(np.float32)
    skeleton = SkeletonFrame(step.i, step.time_s, joints, np.ones((2, 15), np.float32), BODY_15)
    return Picture(step.time_s, skeleton, skeleton)


def check_valid(path: Path) -> None:
    """Read a file as its readers would."""
    if path.suffix == ".mp4":
        with av.open(str(path)) as container:
            assert sum(1 for _ in container.decode(video=0)) >= 1
        return
    text = path.read_bytes().decode("utf-8")
    assert "\r" not in text
    assert "NaN" not in text
    check = next((check for end, check in CHECKS.items() if path.name.endswith(end)), None)
    if check is not None:
        check(text)


def check_jsonl(text: str) -> None:
    records = [json.loads(line) for line in text.split("\n")[:-1]]
    assert records[0]["type"] == "header"
    assert records[-1]["type"] == "summary"
    assert all("type" in record for record in records)


def check_json(text: str) -> None:
    assert json.loads(text)["schema"] == "costream/1"


def check_tasks(tasks: list[dict[str, Any]]) -> None:
    """Check what Label Studio requires of pre-annotations."""
    ((task),) = tasks
    assert len(task["data"]) == 1
    ((prediction),) = task["predictions"]
    assert len({region["id"] for region in prediction["result"]}) == len(prediction["result"])
    for region in prediction["result"]:
        assert region["type"] == "labels"
        assert region["value"]["labels"]
        assert region["value"]["start"] < region["value"]["end"]


def check_csv(text: str) -> None:
    rows = list(csv.reader(text.splitlines(keepends=True)))
    assert len({len(row) for row in rows}) == 1
    assert all(rows[0])


def check_cues(text: str) -> None:
    cues = [c for c in text.removeprefix("WEBVTT\n\n").split("\n\n") if c]
    assert all(len(cue.split("\n")) == 3 for cue in cues)
    assert all(cue.count("-->") == 1 for cue in cues)


def check_vtt(text: str) -> None:
    assert text.startswith("WEBVTT\n\n")
    check_cues(text)


def check_audacity(text: str) -> None:
    assert all(line.count("\t") == 2 for line in text.split("\n")[:-1])


def check_raven(text: str) -> None:
    rows = [line.split("\t") for line in text.split("\n")[:-1]]
    assert tuple(rows[0][:10]) == RAVEN_COLUMNS
    assert {len(row) for row in rows} == {len(rows[0])}


def check_rttm(text: str) -> None:
    lines = [line.split(" ") for line in text.split("\n")[:-1]]
    assert all(len(line) == 10 and line[0] == "SPEAKER" for line in lines)
    assert all(float(line[4]) > 0 for line in lines)


CHECKS: dict[str, Callable[[str], None]] = {
    ".jsonl": check_jsonl,
    ".labelstudio.json": lambda text: check_tasks(json.loads(text)),
    ".coco.json": lambda text: check_coco(json.loads(text)),
    ".json": check_json,
    ".csv": check_csv,
    ".vtt": check_vtt,
    ".srt": check_cues,
    ".audacity.txt": check_audacity,
    ".raven.txt": check_raven,
    ".rttm": check_rttm,
    ".eaf": lambda text: check_eaf(ElementTree.fromstring(text)),
}


def check_eaf(root: ElementTree.Element) -> None:
    """Check what the schema of EAF 3.0 says of the elements used here."""
    assert [e.tag for e in root if e.tag != "TIER"] == ["HEADER", "TIME_ORDER", "LINGUISTIC_TYPE"]
    assert [e.tag for e in root].index("TIER") == 2
    slots = {e.attrib["TIME_SLOT_ID"]: int(e.attrib["TIME_VALUE"]) for e in root.iter("TIME_SLOT")}
    notes = list(root.iter("ALIGNABLE_ANNOTATION"))
    assert list(slots.values()) == sorted(slots.values())
    names = [*slots, *(e.attrib["ANNOTATION_ID"] for e in notes)]
    assert len(set(names)) == len(names) == len(list(root.iter("TIME_SLOT"))) + len(notes)
    used = [e.attrib[f"TIME_SLOT_REF{k}"] for e in notes for k in (1, 2)]
    assert sorted(used) == sorted(slots)
    (kind,) = root.iter("LINGUISTIC_TYPE")
    tiers = list(root.iter("TIER"))
    assert len({e.attrib["TIER_ID"] for e in tiers}) == len(tiers)
    for tier in tiers:
        assert tier.attrib["LINGUISTIC_TYPE_REF"] == kind.attrib["LINGUISTIC_TYPE_ID"]
        end = 0
        for note in tier.iter("ALIGNABLE_ANNOTATION"):
            start, after = (slots[note.attrib[f"TIME_SLOT_REF{k}"]] for k in (1, 2))
            assert end <= start < after
            end = after


def check_coco(document: dict[str, Any]) -> None:
    """Check what pycocotools, CVAT and Label Studio take for granted."""
    ids = {}
    for key in ("images", "annotations", "categories"):
        ids[key] = [row["id"] for row in document[key]]
        assert ids[key] == list(range(1, len(ids[key]) + 1))
    assert len({row["file_name"] for row in document["images"]}) == len(ids["images"])
    assert all(row["width"] > 0 and row["height"] > 0 for row in document["images"])
    for row in document["annotations"]:
        assert row["image_id"] in ids["images"]
        assert row["category_id"] in ids["categories"]
        x, y, width, height = row["bbox"]
        assert min(x, y) >= 0
        assert row["area"] == pytest.approx(width * height, rel=1e-6, abs=1e-6)
        assert (row["iscrowd"], row["segmentation"]) == (0, [])
        assert 0 < row["score"] <= 1


@EVERY
def test_files_appear_when_finished(format: str, run: Any, tmp_path: Path) -> None:
    paths = files(format, tmp_path)
    sinks = make_sinks([format], tmp_path, NAME)
    assert not (tmp_path / "mappe").exists()  # nothing happens before open
    for sink in sinks:
        sink.open(run.header)
        for record in run.records:
            sink.write(record)
    assert not any(path.exists() for path in paths)
    for sink in sinks:
        sink.close(run.summary)
    assert sorted(tmp_path.rglob("*.*")) == sorted(paths)  # and no part file is left
    for path in paths:
        check_valid(path)
    assert is_complete([format], tmp_path, NAME)


def odd_runs(run: Any, run_of_heads: Any) -> dict[str, Any]:
    """Return runs of which every format makes valid files."""
    alert = Alert(2.5, "walk>=0.8 for 2s", "walk", 0.9, 0.5)
    odd = {"scores": (float("nan"),) * 5, "time_s": float("inf")}
    mad = [replace(r, **odd) if isinstance(r, Prediction) else r for r in run.records]
    header = replace(run.header, source="caf\udce9.mp4")
    segment = Segment(3726.0, 3727.0, "caf\udce9", 0.5)
    return {
        "cut short": run.cut_short(),
        "no records": run.empty(),
        "an alert": replace(run, records=(*run.records, alert)),
        "scores that are not numbers": replace(run, records=tuple(mad)),
        "names that are not UTF-8": replace(run, header=header, records=(*run.records, segment)),
        "several heads": run_of_heads,
    }


@pytest.mark.long
@EVERY
def test_odd_runs_leave_valid_files(
    format: str, run: Any, run_of_heads: Any, tmp_path: Path
) -> None:
    for name, odd in odd_runs(run, run_of_heads).items():
        play(make_sinks([format], tmp_path, name), odd)
        objects = odd.header.task == OBJECT_DETECTION
        for path in files(format, tmp_path, name, objects=objects):
            check_valid(path)
        cut_short = name == "cut short" and FORMATS[format].has_summary
        none = format in OF_OBJECTS and not objects
        assert is_complete([format], tmp_path, name) is not (cut_short or none), name


@EVERY
def test_objects(format: str, run_of_objects: Any, tmp_path: Path) -> None:
    for k, played in enumerate((run_of_objects, run_of_objects.empty())):
        play(make_sinks([format], tmp_path / str(k), NAME), played)
        paths = files(format, tmp_path / str(k), objects=True)
        assert sorted((tmp_path / str(k)).rglob("*.*")) == sorted(paths)  # and no other table
        for path in paths:
            check_valid(path)
        assert is_complete([format], tmp_path / str(k), NAME)


def test_tables_of_another_kind_of_run_do_not_complete_each_other(
    run: Any, run_of_objects: Any, tmp_path: Path
) -> None:
    play(make_sinks(["csv"], tmp_path, NAME), run_of_objects)
    found = files("csv", tmp_path, objects=True)
    assert [path.name.split(".", 2)[2] for path in found] == [
        *("objects.csv", "timeline.csv", "compute.csv")
    ]
    found[0].unlink()
    assert not is_complete(["csv"], tmp_path, NAME)
    play(make_sinks(["csv"], tmp_path, NAME, overwrite=True), run)
    assert is_complete(["csv"], tmp_path, NAME)
    assert not found[0].exists()
    with pytest.raises(UsageError, match=r"predictions\.csv: exists already"):
        check_outputs(["csv"], tmp_path, NAME, overwrite=False)


@EVERY
def test_nothing_is_overwritten_unless_asked(format: str, run: Any, tmp_path: Path) -> None:
    path = files(format, tmp_path)[-1]
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"exists already.*--overwrite or --skip-existing"):
        check_outputs([format], tmp_path, NAME, overwrite=False)
    with pytest.raises(UsageError, match="exists already"):
        play(make_sinks([format], tmp_path, NAME), run)
    assert path.read_text() == "mine"
    check_outputs([format], tmp_path, NAME, overwrite=True)
    play(make_sinks([format], tmp_path, NAME, overwrite=True), run)
    check_valid(path)
    assert path.read_bytes() != b"mine"


@pytest.mark.long
@TEXTS
def test_long_runs_take_constant_memory(
    format: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("costream.sinks.atomic.SPOOL_CHARS", 10_000)
    sinks = make_sinks([format], tmp_path, NAME)
    ms = StageTimes(1.0, 1.0, 1.0, 1.0)
    boxes = tuple(Box(k, k, k + 1 / 3, k + 1 / 7, 0.5, "person") for k in range(20))
    count = 1000 if format in OF_OBJECTS else 2000
    for sink in sinks:
        sink.open(run.header)
    tracemalloc.start()
    try:
        for i in range(count):
            found = Objects(i, i / 10, i, i, boxes)
            step = found if format in OF_OBJECTS else Prediction(i, i / 10, i, i, (("walk", 0.5),))
            segment = Segment(i / 10, i / 10 + 0.1, 1300 * "w", 0.5)
            for sink in sinks:
                for record in (step, segment, Compute(i, i / 10, 1, 2, ms)):
                    sink.write(record)
                if isinstance(sink, PictureSink):
                    sink.draw(picture(step))
            if i == count // 2:
                tracemalloc.reset_peak()
                early, _ = tracemalloc.get_traced_memory()
        for sink in sinks:
            sink.close(run.summary)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Python's free lists and a few buffers come and go; the text of these steps is over 1.3 MB.
    assert peak - early < 600_000
    for path in files(format, tmp_path):
        check_valid(path)


@EVERY
def test_a_folder_that_cannot_be_written(format: str, run: Any, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        directory = Path("/proc")  # the super user may write anywhere else
    else:
        directory = tmp_path
        directory.chmod(0o500)
    with pytest.raises(OutputError, match="cannot write"):
        play(make_sinks([format], directory, NAME), run)


def test_a_folder_that_cannot_be_written_is_found_before_a_run(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        check_outputs(["jsonl"], file / "below", NAME, overwrite=False)
    if os.geteuid() == 0:
        folder = Path("/proc")  # the super user may write anywhere else
    else:
        folder = tmp_path
        folder.chmod(0o500)
    with pytest.raises(UsageError, match=r"cannot be written \(.+\); name another folder"):
        check_outputs(["jsonl"], folder / "new", NAME, overwrite=False)


@ONE_TEXT
def test_a_full_disk_behind_a_stream(format: str, run: Any) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w", encoding="utf-8") as full:
        (sink,) = make_sinks([format], None, NAME, stream=full)
        with pytest.raises(OutputError, match=r"/dev/full: cannot write .No space left"):
            play([sink], run)
        sink.close(run.summary)  # has failed and been told; nothing more to say
        with pytest.raises(OSError, match="No space"):  # what Python itself still holds
            full.close()


@pytest.mark.parametrize(
    "format",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "mp4" else name
        for name in sorted(FORMATS)
    ],
)
def test_a_full_disk(format: str, tmp_path: Path) -> None:
    """In a process whose files may not grow beyond 4 KiB, which the system refuses like ENOSPC."""
    pytest.importorskip("resource", reason="needs POSIX resource limits")
    done = python(Path(__file__).with_name("fill_disk.py"), format, tmp_path)
    assert done.stdout.startswith("OutputError"), done.stdout + done.stderr
    assert "cannot write (File too large)" in done.stdout
    paths = files(format, tmp_path, "clip.mp4")
    more = int(done.stdout.split("closed, ")[1].split()[0])
    assert more < len(paths)  # the file that failed first is not reported again
    assert not any(path.exists() for path in paths)
    if FORMATS[format].binary:  # which cannot be read without its end
        assert not list(tmp_path.rglob("*.part"))


def test_a_binary_file_leaves_nothing_on_a_full_disk(tmp_path: Path) -> None:
    file = BinaryFile(tmp_path / "video.mp4")
    file.open()
    content = file.file
    assert content is not None
    with full_disk(2), pytest.raises(OutputError, match="cannot write"):
        file.attempt(lambda: (content.write(b"data"), content.flush()))
    file.finish()
    assert not list(tmp_path.iterdir())


def test_half_of_a_whole_file_does_not_stay(tmp_path: Path) -> None:
    with full_disk(2), pytest.raises(OutputError, match="cannot write"):
        write_file(tmp_path / "page.png", b"data")
    assert not list(tmp_path.iterdir())


@ONE_TEXT
def test_a_reader_that_has_left(format: str, run: Any) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", encoding="utf-8")
    (sink,) = make_sinks([format], None, NAME, stream=stream)
    with pytest.raises(BrokenPipeError):
        play([sink], run)
    sink.close(run.summary)
    with pytest.raises(BrokenPipeError):  # what Python itself still holds
        stream.close()


@ONE_TEXT
def test_a_stream_gets_the_text_of_the_file(
    format: str, run: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    play(make_sinks([format], tmp_path, NAME), run)
    play(make_sinks([format], None, NAME, stream=sys.stdout), run)
    assert capfd.readouterr().out == files(format, tmp_path)[0].read_text("utf-8")


def test_standard_output_takes_one_text() -> None:
    check_outputs(["jsonl"], None, NAME, overwrite=False)
    for formats in (["csv"], ["jsonl", "srt"]):
        words = f"^-f {','.join(formats)}: these are several files.*; name a folder with -o$"
        with pytest.raises(UsageError, match=words):
            check_outputs(formats, None, NAME, overwrite=False)
    assert make_sinks(["jsonl"], None, NAME) == []
    with pytest.raises(UsageError, match=r"mp4 is a binary format; name a folder with -o"):
        check_outputs(["mp4"], None, NAME, overwrite=False)


def test_all_formats_at_once(run: Any, tmp_path: Path) -> None:
    formats = parse_formats(
        [
            "jsonl, JSON,csv",
            "srt",
            "vtt,table,audacity,jsonl,",
            "raven,rttm,boris,chapters,ffmetadata,edl,otio,eaf",
            "joints,label-studio,textgrid,coco,mp4,lines",
        ]
    )
    assert formats == tuple(FORMATS)
    assert object_formats(formats) == ["coco"]
    formats = tuple(f for f in formats if f != "coco")
    play(make_sinks(formats, tmp_path, NAME), run)
    assert is_complete(formats, tmp_path, NAME)
    paths = [path for format in formats for path in files(format, tmp_path)]
    assert sorted(tmp_path.rglob("*.*")) == sorted(paths)
    paths[-1].unlink()
    assert not is_complete(formats, tmp_path, NAME)


ADDED = """
from costream.core.records import Segment
from costream.sinks.base import TextSink, output_file

@output_file("words.txt", format="words", about="labels alone")
class Words(TextSink):
    def write(self, record):
        if isinstance(record, Segment):
            self._out.write(" ".join(record.label.split()) + "\\n")
"""


@OUTPUT_FILES.temporarily()
def test_a_format_from_outside_is_one_file(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["detect", "-m", "cooadtr", "gone.mp4", "--format", "words"]) == ExitCode.USAGE
    (tmp_path / "words_format.py").write_text(ADDED)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("words_format")
    assert main(["detect", "-m", "cooadtr", "gone.mp4", "--format", "words"]) == ExitCode.INPUT
    assert list(FORMATS)[-2:] == ["lines", "words"]
    assert FORMATS["words"].about == "labels alone"
    play(make_sinks(["words"], tmp_path, NAME), run)
    assert is_complete(["words"], tmp_path, NAME)
    labels = [" ".join(r.label.split()) for r in run.records if isinstance(r, Segment)]
    assert (tmp_path / f"{NAME}.words.txt").read_text("utf-8").split("\n") == [*labels, ""]


def test_every_format_is_described_and_listing_them_imports_none() -> None:
    assert all(FORMATS[format].about for format in FORMATS)
    code = "import sys, costream.sinks.registry as r; list(r.FORMATS); print(*sys.modules)"
    names = set(python("-c", code).stdout.split())
    assert not names & {"av", "matplotlib", "pyarrow", "torch", "costream.sinks.tables"}


def test_formats_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="no format 'xml'; choose from jsonl, json, csv"):
        parse_formats(["jsonl,xml"])


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"type": "header"}\n', "\x00\xff", "3\n"])
@pytest.mark.parametrize("format", ["jsonl", "json"])
def test_foreign_files_are_not_complete(format: str, text: str, tmp_path: Path) -> None:
    files(format, tmp_path, "x")[0].write_text(text, encoding="latin-1")
    assert not is_complete([format], tmp_path, "x")
