"""``costream train`` on video, with and without its sound, as users run it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from costream.labels.examples import Example
from costream.models.build import build
from costream.models.catalogue import load_model
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.training.feature_cache import FeatureCache
from costream.training.video.video_reader import VideoReader
from costream.weights_io.file import read_card, read_weights
from kit import data_audio, data_video
from kit.media import make_video
from kit.movinet_clip import CROP, SMALL
from kit.pages import Page
from kit.program import costream, python
from kit.runs import evaluate, run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return data_video.write_tiny_weights(tmp_path_factory.mktemp("base") / "tiny.safetensors")


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return data_video.write_folder(tmp_path_factory.mktemp("classes"), 5)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return data_video.write_recordings(tmp_path_factory.mktemp("recordings"), 4)


@pytest.fixture(scope="module")
def trained(base, recordings, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "own.safetensors"
    given = ("--data", recordings[0], "--labels", recordings[1], "--cache", path.parent / "cache")
    done = run("train", base, *given, "-o", path, "--scratch", "--steps", 100)
    return path, done


def test_five_clips_of_a_class_are_learnt(base, classes, tmp_path):
    path = tmp_path / "own.safetensors"
    call = ("train", base, "--data", classes, "-o", path, "--scratch", "--steps", 60)
    told = run(*call, "--no-cache").stdout
    assert "verdict: too few clips for a significant result (3, " in told
    assert "100.0 %" not in path.with_suffix(".html").read_text("utf-8")
    assert read_card(path).labels == ("background", *data_video.WAYS)
    assert "12 user examples (blink 4, grow 4, slide 4)" in read_card(path).trained_on
    new = data_video.write_folder(tmp_path / "new", 3, first_seed=1000)
    assert (
        evaluate("-m", path, "--data", new, "--joined", 0)["sequences"]["top1"] >= 7 / 9
    )  # a third is what guessing gives


ORDERS = {"grow first": ("grow", "slide"), "slide first": ("slide", "grow")}
SAME = dict.fromkeys("abc", ("grow", "grow"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("classes", "verdict"),
    [(ORDERS, "better than the nearest class mean"), (SAME, "(no|perhaps) better than guessing")],
)
def test_the_verdict_praises_what_was_learnt_and_warns_of_chance(base, classes, verdict, tmp_path):
    """Means over time tell the order of two ways no better than guessing."""
    for n, (label, ways) in enumerate(classes.items()):
        for k in range(13 if classes is SAME else 30):
            file = tmp_path / "data" / label / f"{k}.mp4"
            lengths = (8 + k % 5, 8 + k // 5)  # no clip of a class is as long as another
            where = 100 * n + k if classes is SAME else 0
            data_video.write_clip(file, list(zip(ways, lengths, strict=True)), where)
    path = tmp_path / "own ways.safetensors"
    given = ("--data", tmp_path / "data", "--validation", 0.4, "--steps", 300, "--no-cache")
    told = run("train", base, *given, "-o", path, "--scratch").stdout.splitlines()[1:]
    assert re.match(r"validation: top-1 \d+ of \d\d clips \(nearest centroid", told[0])
    assert re.match(f"verdict: {verdict}", told[1])
    assert told[1].endswith("record more clips, or use --fine-tune") == (classes is SAME)
    assert told[2:-1] == [
        f"report: {path.with_suffix('.html')}",
        f"next: costream detect FILE -m '{path}'",
    ]
    words = told[1].removeprefix("verdict: ")
    assert f"Verdict: {words}." in read_card(path).limits
    assert words in path.with_suffix(".md").read_text("utf-8")
    assert words[1:] in Page(path.with_suffix(".html")).text


@pytest.mark.long
def test_recordings_with_timelines_are_learnt(trained, tmp_path):
    media, labels = data_video.write_recordings(tmp_path, 1, first_seed=1000)
    done = run("detect", media / "r0.mp4", "-m", trained[0], "-f", "jsonl", "-o", "-")
    lines = map(json.loads, done.stdout.splitlines())
    told = [r["top"][0][0] for r in lines if r["type"] == "prediction"]
    truth = np.full(len(told), "background", dtype=object)
    for line in (labels / "r0.mp4.timeline.csv").read_text("utf-8").splitlines()[1:]:
        start, end, label = line.split(",")
        truth[round(float(start) * 8) : round(float(end) * 8)] = label
    assert (truth == told).mean() > 0.7  # 0.47 is background


@pytest.mark.slow
def test_the_card_says_what_it_is_and_the_frontend_stays(base, trained):
    before, after = read_weights(base).tensors, read_weights(trained[0])
    frontend = [name for name in before if name.startswith("frontend.")]
    assert frontend
    assert all(torch.equal(before[name], after.tensors[name]) for name in frontend)
    card = after.card
    assert card.labels == ("background", *data_video.WAYS)
    assert card.background == "background"
    assert "trained from scratch" in card.trained_on
    assert list(card.metrics["validation"]) == [
        *("own", "nearest centroid of mean tokens", "majority")
    ]
    assert card.metrics["validation"]["own"]["sequences"] >= 12  # of one recording of four
    assert trained[1].stdout.startswith(f"{trained[0]}: background, blink, grow, slide\n")


@pytest.mark.long
def test_the_frontend_is_trained_if_requested(base, recordings, tmp_path):
    path = tmp_path / "own.safetensors"
    given = ("--data", recordings[0], "--labels", recordings[1], "--no-cache", "--fine-tune")
    run("train", base, *given, "-o", path, "--scratch", "--steps", 20)
    before, after = read_weights(base).tensors, read_weights(path).tensors
    names = [name for name in before if name.startswith("frontend.")]
    changed = {name for name in names if not torch.equal(before[name], after[name])}
    assert any(name.endswith("weight") for name in changed)
    assert not any("running" in name for name in changed)  # statistics stay as they were
    assert "frontend fine-tuned" in read_card(path).trained_on
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "own.html", "own.md", "own.safetensors"]  # fmt: skip


def test_steps_give_the_same_as_the_clip(trained, classes):
    file = classes / "grow" / "grow0.mp4"
    done = run("detect", file, "-m", trained[0], "-f", "jsonl", "--scores", "-o", "-")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    stepped = [r["scores"] for r in records if r["type"] == "prediction"]
    model = load_model(str(trained[0]))
    source = open_source(str(file), SourceOptions(box=model.info.box))
    source.open()
    pictures = [item.rgb for item in source.items()]
    source.close()
    with torch.inference_mode():
        frames = torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2))
        whole = model.network(model.frontend(frames[None])).logits[0].softmax(-1).numpy()
    assert len(stepped) == 16
    assert np.array(stepped) == pytest.approx(whole, abs=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("kept", [True, False])
def test_the_same_seed_gives_the_same_bytes(kept, base, recordings, trained, tmp_path):
    path = tmp_path / "own.safetensors"
    cache = ("--cache", trained[0].parent / "cache") if kept else ("--no-cache",)
    given = ("--data", recordings[0], "--labels", recordings[1], *cache)
    done = python("-m", "costream", "train", base, *given, "-o", path, "--scratch", "--steps", 100)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == trained[0].read_bytes()


@pytest.mark.long
def test_a_network_that_anticipates_learns_too(classes, tmp_path):
    base = data_video.write_tiny_weights(tmp_path / "tiny.safetensors", "oadtr")
    path = tmp_path / "own.safetensors"
    run("train", base, "--data", classes, "-o", path, "--steps", 20, "--no-cache")
    before, after = read_weights(base).tensors, read_weights(path).tensors
    for name in ("network.head.weight", "network.anticipation_head.weight"):
        assert not torch.equal(before[name], after[name])
    run("detect", classes / "grow" / "grow0.mp4", "-m", path, "-f", "jsonl", "-o", "-")


@pytest.mark.long
def test_random_weights_learn_on_a_trained_frontend(base, classes, tmp_path):
    given = ("--frontend", base, "--set", "embed_dim=64", "--set", "hidden=64")
    assert costream("models", "init", "miniroad", *given, cwd=tmp_path).returncode == 0
    begun, path = tmp_path / "miniroad-random.safetensors", tmp_path / "own.safetensors"
    done = run("train", begun, "--data", classes, "-o", path, "--steps", 80, "--no-cache")
    card = read_card(path)
    assert not card.untrained
    assert card.labels == data_video.LABELS
    assert card.metrics["validation"][card.name]["top1"] > 0.5
    clip = classes / "grow" / "grow0.mp4"
    done = costream("detect", clip, "-m", path, "-f", "jsonl", "-o", "-")
    assert '"grow", 0.' in done.stdout


@pytest.mark.long
def test_a_whole_network_becomes_the_frozen_frontend_of_a_new_head(classes, tmp_path):
    sizes = [f"{key}={json.dumps(value)}" for key, value in {**SMALL, **CROP}.items()]
    given = [word for size in sizes for word in ("--set", size)]
    assert costream("models", "init", "movinet", *given, cwd=tmp_path).returncode == 0
    begun, path = tmp_path / "movinet-random.safetensors", tmp_path / "own.safetensors"
    run("train", begun, "--data", classes, "-o", path, "--steps", 30, "--no-cache")
    card, before, after = read_card(path), read_weights(begun).tensors, read_weights(path).tensors
    assert (card.architecture, card.frontend, card.rate_hz) == ("cooadtr", "movinet", 5.0)
    assert card.labels == data_video.LABELS
    kept = [name for name in after if name.startswith("frontend.trunk.")]
    assert len(kept) > 20
    for name in kept:
        assert torch.equal(after[name], before[name.replace("frontend.trunk", "network")])
    run("detect", classes / "grow" / "grow0.mp4", "-m", path, "-f", "jsonl", "-o", "-")


def test_sound_is_not_a_video(base, tmp_path):
    from kit.data_audio import write_folder

    data = write_folder(tmp_path / "data", 1)
    done = costream("train", base, "--data", data, "-o", tmp_path / "o.safetensors", "--no-cache")
    assert done.returncode == 4
    assert "click0.wav: there is no video stream, only sound" in done.stderr


TONES = {"high": 3000.0, "low": 300.0}


def test_features_of_its_frontend_train_the_network_alone(base, tmp_path):
    for label in ("grow", "slide"):
        (tmp_path / "data" / label).mkdir(parents=True)
        video = make_video(tmp_path / f"{label}.mp4", frames=60, rate=8)
        run("features", video, "-m", base, "-o", tmp_path / "data" / label / "a.npz")
    path = tmp_path / "o.safetensors"
    given = ("--data", tmp_path / "data", "-o", path, "--validation", 0, "--steps", 2)
    run("train", base, *given)
    card = read_card(path)
    assert card.labels == ("background", "grow", "slide")
    assert card.frontend == read_card(base).frontend
    assert run("detect", tmp_path / "grow.mp4", "-m", path, "-f", "jsonl").stdout


def test_features_in_a_table_are_refused(base, tmp_path):
    np.savez(tmp_path / "a.npz", features=np.zeros((8, 6), np.float32), rate_hz=8.0)
    (tmp_path / "clips.csv").write_text("file,label\na.npz,grow\na.npz,slide\n", "utf-8")
    given = ("--data", tmp_path / "clips.csv", "-o", tmp_path / "o.safetensors")
    told = run("train", base, *given, code=2).stderr
    assert "training takes recordings, not features" in told


def write_tone(path, tone, seed):
    """Write a video whose picture says nothing of its class; "none" has no sound at all."""
    pictures = data_video.frames("background", seed, 24)
    seconds = 3.0 if tone in TONES else 0.0
    return make_video(
        *(path, len(pictures)),
        size=data_video.SIZE,
        rate=data_video.RATE_HZ,
        pattern=lambda k, _size: pictures[k],
        audio_s=seconds,
        tone_hz=TONES.get(tone, 0.0),
    )


def write_tones(folder, each, first_seed=0):
    for tone in (*TONES, "none"):
        (folder / tone).mkdir(parents=True)
        for k in range(each):
            write_tone(folder / tone / f"{k}.mp4", tone, first_seed + k)
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    path = folder / "both.safetensors"
    video = data_video.write_tiny_weights(folder / "video.safetensors")
    audio = data_audio.write_tiny_weights(folder / "audio.safetensors")
    network = [f"--set={k}={data_video.NETWORK[k]}" for k in ("embed_dim", "feedforward", "window")]
    begun = ("models", "init", "cooadtr", "--frontend", f"{video}+{audio}", *network)
    run(*begun, "-o", path)
    return path


def test_tokens_are_those_of_a_run(both, tmp_path):
    clip = write_tone(tmp_path / "a.mp4", "low", 0)
    run("features", clip, "-m", both, "-o", tmp_path / "a.npz")
    weights = read_weights(both)
    frontend = build(weights.card, weights.tensors)[1].eval().requires_grad_(False)
    reader = VideoReader(weights.card, frontend, 2, 0, FeatureCache(None, weights.card, frontend))
    (seen,) = reader.read([Example(str(clip), "low", 0.0, None, "a", "a.mp4")])
    file = dict(np.load(tmp_path / "a.npz"))
    told = np.concatenate((file["rgb"], file["audio"]), 1)
    assert seen.tokens[0].numpy() == pytest.approx(told, abs=1e-5)
    for tokens, times in zip(seen.tokens[1:], seen.times[1:], strict=True):
        heard = tokens[:, file["rgb"].shape[1] :].numpy()
        steps = np.round(np.nan_to_num(times, nan=-1.0) * data_video.RATE_HZ).astype(int)
        assert not heard[steps < 0].any()
        assert heard[steps >= 0] == pytest.approx(file["audio"][steps[steps >= 0]], abs=1e-5)


@pytest.mark.long
def test_what_only_the_sound_says_is_learnt(both, tmp_path):
    data, path = write_tones(tmp_path / "data", 5), tmp_path / "own.safetensors"
    run("train", both, "--data", data, "-o", path, "--steps", 60, "--no-cache")
    new = write_tones(tmp_path / "new", 3, first_seed=1000)
    assert (
        evaluate("-m", path, "--data", new, "--joined", 0)["sequences"]["top1"] >= 7 / 9
    )  # a third is what guessing gives


def test_its_frontend_does_not_learn(both, tmp_path):
    data = write_tones(tmp_path / "data", 1)
    done = costream("train", both, "--data", data, "-o", tmp_path / "x.safetensors", "--fine-tune")
    assert done.returncode == 2
    assert "--fine-tune: both has no frontend to train" in done.stderr
