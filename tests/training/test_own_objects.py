"""``costream train`` of objects, as users run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costream.weights_io.file import read_card, read_weights
from kit import data_objects
from kit.media import make_video
from kit.pages import Page
from kit.program import costream
from kit.runs import run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return data_objects.write_tiny_weights(tmp_path_factory.mktemp("base") / "tiny.safetensors")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "pictures"
    return folder, data_objects.write_pictures(folder, 10)


@pytest.fixture(scope="module")
def trained(base, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "things.safetensors"
    given = ("--data", data[0], "--labels", data[1], "--scratch", "--steps", 300)
    done = run("train", base, *given, "-o", path, "--no-cache")
    return path, done


@pytest.mark.long
def test_objects_of_eight_pictures_are_found_in_others(trained, tmp_path):
    labels = data_objects.write_pictures(tmp_path / "new", 12, seed=7)
    given = ("--data", tmp_path / "new", "--labels", labels, "--json")
    done = run("evaluate", "-m", trained[0], *given)
    assert json.loads(done.stdout)["budgets"][0]["AP50"] > 0.3


@pytest.mark.long
def test_the_card_and_the_report_say_what_it_is(trained):
    path, done = trained
    assert done.stdout.startswith(f"{path}: lamp, leaf\nvalidation: AP50 ")
    card = read_card(path)
    assert (
        "\nverdict: too few images for a significant result (2): add images, or hold out more"
        in done.stdout
    )
    assert card.limits.startswith(
        "Verdict: too few images for a significant result (2): add images, or hold out"
    )
    assert (card.name, card.labels) == ("things", data_objects.KINDS)
    assert "8 user images with 16 boxes (lamp 8, leaf 8), trained from scratch" in card.trained_on
    assert card.metrics["validation"]["things"]["pictures"] == 2
    assert card.timeline.threshold == 0.3  # by four boxes it is not chosen
    assert costream("models", "verify", path).stdout == f"ok    {path}\n"
    assert "| things |" in path.with_suffix(".md").read_text("utf-8")
    page = Page(path.with_suffix(".html")).text
    for words in ("AP50", "loss", "Threshold", "Confusion", "nothing", "--labels BOXES"):
        assert words in page


@pytest.mark.long
def test_detect_finds_them_at_the_cost_of_what_changes(trained, tmp_path):
    """The weights run with gates, and what they find can be learnt from again."""
    picture, _ = data_objects.draw(0)
    video = tmp_path / "clip.mp4"
    make_video(video, 8, size=data_objects.SIZE, rate=10, pattern=lambda _k, _size: picture)
    call = ("detect", video, "-m", trained[0], "--tokens", 4, "-o", tmp_path / "boxes")
    done = run(*call, "-f", "coco,jsonl", "--threshold", 0.1)
    text = (tmp_path / "boxes" / "clip.mp4.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    steps = [row for row in rows if row["type"] == "compute"]
    assert [row["tokens"] for row in steps] == [96] + [4] * 7
    found = {box[5] for row in rows if row["type"] == "objects" for box in row["boxes"]}
    assert found <= set(data_objects.KINDS)
    output = tmp_path / "again.safetensors"
    given = ("--data", tmp_path, "--labels", tmp_path / "boxes", "--steps", 2)
    done = run("train", trained[0], *given, "-o", output, "--no-cache")
    assert f"no validation examples of {', '.join(sorted(found))}: too few files" in done.stderr
    assert "8 user images" in read_card(output).trained_on
    assert "started from things" in read_card(output).trained_on


@pytest.mark.long
def test_what_the_weights_knew_is_compared_with(trained, data, tmp_path):
    output = tmp_path / "o.safetensors"
    given = ("--data", data[0], "--labels", data[1], "--steps", 3, "--cache", tmp_path / "cache")
    run("train", trained[0], *given, "-o", output, "--no-fine-tune")
    scores = read_card(output).metrics["validation"]
    assert list(scores) == ["o", "nearest centroid of boxes", "things, before"]
    assert scores["things, before"]["AP50"] > 0.3
    old, new = (read_weights(path).tensors for path in (trained[0], output))
    moved = {name for name in old if not old[name].equal(new[name])}
    assert moved
    assert not any("embedding" in name or "backbone" in name for name in moved)


@pytest.mark.long
def test_text_files_and_groups(base, data, tmp_path):
    labels = tmp_path / "labels"
    labels.mkdir()
    (labels / "classes.txt").write_text("lamp\n", "utf-8")
    for k in range(6):
        (labels / f"{k:03d}.txt").write_text("0 .5 .5 .5 .5\n", "utf-8")
    output = tmp_path / "o.safetensors"
    given = ("--labels", labels, "--steps", 1, "-o", output, "--no-cache")
    done = run("train", base, "--data", data[0], *given)
    card = read_card(output)
    assert card.labels == ("lamp",)
    assert "5 user images" in card.trained_on or "9 user images" in card.trained_on

    rows = [
        ({"file_name": f"{k:03d}.png", "room": k % 2}, data_objects.draw(k)[1]) for k in range(8)
    ]
    boxes = data_objects.write_boxes(tmp_path / "rooms.json", rows)
    given = ("--labels", boxes, "--group", "room", "--steps", 1, "-o", output, "--overwrite")
    given += ("--validation", 0.5)
    done = run("train", base, "--data", data[0], *given, "-v", "--no-cache")
    assert "4 images with 8 boxes to train on, 4 images" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--data", "DATA"), "--labels: training a detector needs images with boxes"),
        (("--labels", "LABELS"), "--data: training a detector needs images with boxes"),
        (("--data", "DATA", "--labels", "LABELS", "--fps", 5), "--fps: does not apply to images"),
        (("--data", "DATA", "--labels", "nowhere.json"), "nowhere.json: does not exist"),
        (("--data", "EMPTY", "--labels", "LABELS"), "no boxes for any image or video"),
    ],
)
def test_what_is_missing_or_too_much_is_one_line(given, said, base, data, tmp_path):
    names = {"DATA": data[0], "LABELS": data[1], "EMPTY": tmp_path}
    options = [names.get(value, value) for value in given]
    done = costream("train", base, *options, "-o", tmp_path / "o.safetensors")
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_pictures_that_cannot_be_read_are_named(base, tmp_path):
    labels = data_objects.write_pictures(tmp_path / "pictures", 3)
    broken = tmp_path / "pictures" / "001.png"
    broken.write_bytes(b"no picture")
    given = ("--data", broken.parent, "--labels", labels, "-o", tmp_path / "o.safetensors")
    done = costream("train", base, *given, "--validation", 0, "--no-cache", "--steps", 20)
    assert done.returncode == 4
    assert str(broken) in done.stderr.splitlines()[-1]
    assert not (tmp_path / "o.safetensors").exists()


@pytest.mark.long
def test_frames_that_are_not_there_are_named(base, tmp_path):
    video = tmp_path / "clip.mp4"
    make_video(video, 3, size=data_objects.SIZE, rate=10)
    rows = [({"file_name": f"{k}.png"}, data_objects.draw(k)[1]) for k in (1, 7)]
    boxes = data_objects.write_boxes(tmp_path / "boxes.json", rows)
    given = ("--data", video, "--labels", boxes, "-o", tmp_path / "o.safetensors", "--no-cache")
    done = costream("train", base, *given)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"costream: {video}: has boxes for frame 7, which cannot be read"
    )


@pytest.mark.long
def test_it_is_the_same_wherever_it_runs(base, data, tmp_path):
    """Kept features or not, and wherever the pictures are."""
    digests = []
    for options in (("--cache", tmp_path / "cache"), ("--no-cache",)):
        path = tmp_path / options[0] / "own.safetensors"
        given = ("--data", data[0], "--labels", data[1], "--steps", 2, "--no-fine-tune")
        assert costream("train", base, *given, *options, "-o", path).returncode == 0
        digests.append(Path(path).read_bytes())
    assert digests[0] == digests[1]
