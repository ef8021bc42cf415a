"""``costream`` with object detectors: options, files, closed pipes, batches, watches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from costream.labels.clips_with_boxes import read_boxes
from kit.broker import Broker, Listener, needs_broker
from kit.media import excerpt
from kit.object_nets import LABELS, write_model
from kit.paths import SAMPLES
from kit.program import start
from kit.runs import records, refused, rows, run, wait_until

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SAMPLE = SAMPLES / "room.mp4"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("weights") / "tiny-objects.safetensors")


@pytest.mark.long
def test_records_on_a_pipe(weights: Path) -> None:
    options = ("--tokens", 6, "--track", "--end", 2)
    done = run("detect", SAMPLE, "-m", weights, *options, "-f", "jsonl")
    header, summary = records(done.stdout)[0], records(done.stdout)[-1]
    assert header["task"] == "object detection"
    assert (header["options"]["tokens"], header["options"]["track"]) == (6, True)
    objects = records(done.stdout, "objects")
    assert len(objects) == summary["steps"] == 20
    boxes = [box for step in objects for box in step["boxes"]]
    assert boxes
    for x1, y1, x2, y2, score, label, identity in boxes:
        assert 0 <= x1 < x2 <= 640  # pixels of the source, not of the 112 x 80 that were seen
        assert 0 <= y1 < y2 <= 480
        assert score >= header["options"]["timeline"]["threshold"] == 0.3
        assert label in LABELS
        assert identity >= 1
    assert max(box[2] for box in boxes) > 320
    assert [c["tokens"] for c in records(done.stdout, "compute")] == [35, *(19 * [6])]
    assert all(s["count"] >= 1 for s in records(done.stdout, "segment"))


@pytest.mark.long
def test_a_reader_that_has_seen_enough(weights: Path) -> None:
    child = start("detect", SAMPLE, "-m", weights, "-q", "-f", "jsonl")
    assert child.stdout is not None
    assert child.stderr is not None
    lines = [child.stdout.readline() for _ in range(2)]
    child.stdout.close()
    assert (child.stderr.read(), child.wait(timeout=60)) == (b"", 0)
    child.stderr.close()
    assert [json.loads(line)["type"] for line in lines] == ["header", "objects"]


@pytest.mark.long
def test_tables_of_a_file_and_of_a_batch(weights: Path, tmp_path: Path) -> None:
    options = ("-m", weights, "-f", "csv,jsonl", "--tokens", 9, "--end", 1)
    run("batch", "-m", "cooadtr", SAMPLE, "-o", tmp_path, *options, "--jobs", 1, "-q")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        *("compute.csv", "failures.csv", "objects.csv"),
        *("room.mp4.compute.csv", "room.mp4.jsonl", "room.mp4.objects.csv"),
        "room.mp4.timeline.csv",
        *("summary.json", "timeline.csv"),
    ]
    own, merged = rows(tmp_path / "room.mp4.objects.csv"), rows(tmp_path / "objects.csv")
    assert own
    assert merged == [{"name": "room.mp4", **row} for row in own]
    assert all(row["count"] for row in rows(tmp_path / "timeline.csv"))
    costs = rows(tmp_path / "room.mp4.compute.csv")
    assert [row["tokens"] for row in costs] == ["35", *(9 * ["9"])]
    before = (tmp_path / "room.mp4.objects.csv").stat().st_mtime_ns
    again = run("batch", "-m", "cooadtr", SAMPLE, "-o", tmp_path, *options, "--jobs", 1)
    assert "1 kept" in again.stderr
    skipped = run("detect", "-m", "cooadtr", SAMPLE, "-o", tmp_path, *options, "--skip-existing")
    assert "results exist already, skipped" in skipped.stderr
    assert (tmp_path / "room.mp4.objects.csv").stat().st_mtime_ns == before
    other = run(
        "batch",
        "-m",
        "cooadtr",
        SAMPLE,
        "-o",
        tmp_path,
        *options,
        "--tokens",
        8,
        "--jobs",
        1,
        code=2,
    )
    assert "tokens 9, now 8" in other.stderr


@pytest.mark.long
def test_boxes_for_annotation_tools(weights: Path, tmp_path: Path) -> None:
    """They are those of the records, are read back, and are made again by a batch."""
    clip = excerpt(SAMPLE, tmp_path / "door.mp4", 0, 2)
    options = ("-m", weights, "--tokens", 9, "-f", "coco,jsonl")
    run("detect", "-m", "cooadtr", clip, "-o", tmp_path / "out", *options, "-q")
    path = tmp_path / "out" / "door.mp4.coco.json"
    steps = records(tmp_path / "out" / "door.mp4.jsonl", "objects")
    (found,) = read_boxes(clip, path)
    steps.reverse()  # some see the frame of the step before: the first counts
    first = {step["frame"]: step for step in steps}
    assert len(first) < len(steps)
    assert list(found.frames) == sorted(first)
    for frame, step in first.items():
        marks = found.frames[frame]
        assert list(marks.labels) == [box[5] for box in step["boxes"]]
        for own, box in zip(marks.boxes.tolist(), step["boxes"], strict=True):
            assert own == pytest.approx(box[:4], abs=2e-6)
    assert sum(len(marks.labels) for marks in found.frames.values()) > 0
    batch = (
        "batch",
        "-m",
        "cooadtr",
        clip,
        "-o",
        tmp_path / "batch",
        *options[:4],
        "-f",
        "coco",
        "--jobs",
        1,
    )
    run(*batch, "-q")
    assert (tmp_path / "batch" / "door.mp4.coco.json").read_bytes() == path.read_bytes()
    assert "1 kept" in run(*batch).stderr


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("detect", ()),
        ("batch", ()),
        ("batch", ("--skip-existing",)),
    ],
)
def test_boxes_are_not_for_every_run(command: str, more: tuple[str, ...], tmp_path: Path) -> None:
    options = (command, SAMPLE, "-o", tmp_path / "out", "-f", "coco", *more)
    done = run(*options, "-m", "cooadtr", code=2)
    assert done.stderr.startswith(
        "costream: --format coco: cooadtr does not detect objects; leave it out"
    )
    done = run(*options, "-m", "eventful-vitdet", "--start", 1, code=2)
    assert "--format coco: needs all frames of the video; omit --start" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_feed_that_is_watched(weights: Path, tmp_path: Path) -> None:
    """Its alerts go by the surest object of a label; a second watch goes on with its state."""
    options = ("-m", weights, "--tokens", 6, "--state-dir", tmp_path / "state", "--on", "*>=0.3")
    options += ("--on", "* in all", "--on", "count(*) >= 1", "--zone", "all=0,0 1,0 1,1 0,1")
    options += ("--status-file", tmp_path / "status.json")
    pace = ("--realtime", "--fps", 4, "--on-late", "block")
    clip = excerpt(SAMPLE, tmp_path / "door.mp4", 0, 2)
    for _ in range(2):
        run("watch", "--write", "all", "-m", "cooadtr", clip, "-o", tmp_path, *pace, *options, "-q")
    lines = records(tmp_path / "door.mp4.jsonl")
    headers = [k for k, line in enumerate(lines) if line["type"] == "header"]
    assert len(headers) == 2
    first, second = lines[: headers[1]], lines[headers[1] :]
    tokens = [[c["tokens"] for c in part if c["type"] == "compute"] for part in (first, second)]
    assert tokens[0][0] == 35
    assert set(tokens[0][1:]) == {6}
    objects = [line for line in first if line["type"] == "objects"]
    assert objects[0]["boxes"]
    alerts = [line for line in first if line["type"] == "alert"]
    assert {alert["label"] for alert in alerts} <= {*LABELS, "*"}
    assert {alert["rule"] for alert in alerts} == {"*>=0.3", "* in all", "count(*) >= 1"}
    assert all(box[7] == ["all"] for step in objects for box in step["boxes"])
    visits = [line for line in first if line["type"] == "zone"]
    enters, leaves = ([v for v in visits if v["event"] == e] for e in ("enter", "leave"))
    assert {v["id"] for v in enters} == {box[6] for step in objects for box in step["boxes"]}
    assert len(enters) == len(leaves)
    status = json.loads((tmp_path / "status.json").read_text("utf-8"))
    assert {p["place"] for p in status["feeds"][0]["places"]} == {"all"}
    later = [line["i"] for line in second if line["type"] == "objects"]
    assert later[0] == objects[-1]["i"] + 1


@pytest.mark.parametrize("command", ["detect", "batch"])
@pytest.mark.parametrize(
    ("option", "why"),
    [(("--tokens", "6"), "is not token-gated"), (("--track",), "does not detect objects")],
)
def test_options_that_are_not_for_this_model(
    command: str, option: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    done = run(command, SAMPLE, "-m", "cooadtr", "-o", tmp_path / "out", *option, code=2)
    assert done.stderr == (
        f"costream: {option[0]}: cooadtr {why}; leave it out, or use another model, such as"
        " eventful-vitdet\n"
    )
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.slow
def test_the_model_is_listed_shown_and_verified(weights: Path) -> None:
    env = {"COSTREAM_WEIGHTS": str(weights.parent)}
    listed = run("models", "list", env=env).stdout
    assert "eventful-vitdet" in listed
    assert "tiny-objects" in listed
    assert "object detection" in run("models", "show", "tiny-objects", env=env).stdout
    run("models", "verify", "tiny-objects", env=env)
    assert "objects in video" in run("detect", "--help").stdout
    refused(4, "", "detect", SAMPLES / "street.ogg", "-m", "tiny-objects", env=env)


def test_the_table_of_a_photo(weights: Path, tmp_path: Path) -> None:
    with av.open(str(SAMPLE)) as video:
        next(video.decode(video=0)).to_image().save(tmp_path / "photo.jpg")
    table = run("detect", tmp_path / "photo.jpg", "-m", weights, "--threshold", 0.01).stdout
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["photo.jpg"]
    assert rows[1] == ["start", "end", "length", "label", "at", "once", "score"]
    assert all(row[:4] == ["0:00.00", "0:00.10", "0.10", "s"] for row in rows[2:-1])
    assert {row[4] for row in rows[2:-1]} <= set(LABELS)
    assert len(rows) > 3
    nothing = run("detect", tmp_path / "photo.jpg", "-m", weights, "--threshold", 1).stdout
    assert nothing.splitlines()[:2] == ["photo.jpg", "Nothing was found."]
    action = run("detect", tmp_path / "photo.jpg", "-m", "cooadtr").stdout
    assert action.splitlines()[:2] == ["photo.jpg", "No action was found."]


@pytest.mark.long
@needs_broker
def test_a_watch_publishes_and_takes_pictures(weights: Path, tmp_path: Path) -> None:
    clip = excerpt(SAMPLE, tmp_path / "door.mp4", 0, 2)
    options = ("-m", weights, "--zone", "all=0,0 1,0 1,1 0,1", "--on", "* in all", "-o", tmp_path)
    pace = ("--realtime", "--fps", 4, "--on-late", "block", "--snapshots", tmp_path / "pictures")
    with Broker(tmp_path) as broker, Listener(broker) as heard:
        url = f"mqtt://127.0.0.1:{broker.port}"
        done = run("watch", "--write", "all", "-m", "cooadtr", clip, *options, *pace, "--mqtt", url)
        wait_until(lambda: heard.newest("costream/status") == b"offline")
        lines = records(tmp_path / "door.mp4.jsonl")
        visits = [{**line, "feed": "door.mp4"} for line in lines if line["type"] == "zone"]
        wait_until(lambda: visits == _zone_events(heard))  # a busy machine delivers late
        alert = json.loads(heard.newest("costream/door.mp4/alert") or "")
        picture = heard.newest("costream/door.mp4/snapshot")
    assert "MQTT" not in done.stderr
    (told,) = (line for line in lines if line["type"] == "alert")
    assert Path(alert["snapshot"]) == tmp_path / "pictures" / told["snapshot"]
    assert Path(alert["snapshot"]).read_bytes() == picture
    assert visits


def _zone_events(heard: Listener) -> list[dict[str, object]]:
    events = [json.loads(text) for text in heard.all("costream/door.mp4/event")]
    return [event for event in events if event["type"] == "zone"]


@pytest.mark.slow
def test_a_frame_to_draw_zones_on(tmp_path: Path) -> None:
    out = tmp_path / "room.png"
    options = ("--zone", "bed=0.1,0.5 0.6,0.5 0.6,0.9", "--line", "door=400,0 400,480", "-o", out)
    done = run("zones", SAMPLE, *options, "--start", 3)
    made = tomllib.loads(done.stdout)["feed"][0]
    assert made == {
        "url": str(SAMPLE),
        "zone": ["bed=0.1,0.5 0.6,0.5 0.6,0.9"],
        "line": ["door=400,0 400,480"],
    }
    with Image.open(out) as picture:
        assert picture.size == (640, 480)
        pixels = np.asarray(picture)
    with av.open(str(SAMPLE)) as video:
        frame = next(f for f in video.decode(video=0) if f.time >= 3).to_ndarray(format="rgb24")
    changed = np.abs(pixels.astype(int) - frame).max(2) > 40
    assert changed[230:250, 400].any()  # the line
    assert changed[:, 192].mean() > 0.3  # the grid
    assert changed[240, 70:380].mean() > 0.8  # the upper edge of the zone
    assert not changed[300:330, 470:500].any()
    assert "not a point" in refused(2, "", "zones", SAMPLE, "--zone", "a=0,0 1")
    assert "the picture is a PNG, or a page" in refused(2, "", "zones", SAMPLE, "-o", "a.jpg")
    assert "is not a folder" in refused(2, "", "zones", SAMPLE, "-o", out / "a.png")
    assert "no such file" in refused(4, "", "zones", tmp_path / "none.mp4")
    why = refused(2, "", "detect", "-m", "cooadtr", SAMPLE, "--zone", "a=0,0 1,0 1,1")
    assert "--zone: cooadtr does not detect objects" in why
