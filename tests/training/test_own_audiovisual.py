"""``costream train`` on video with its sound, as users run it."""

from __future__ import annotations

import numpy as np
import pytest

from costream.checkpoints.file import read_weights
from costream.labels.examples import Example
from costream.models.build import build
from costream.training.feature_cache import FeatureCache
from costream.training.video.examples import VideoReader
from kit import data_audio, data_video
from kit.media import make_video
from kit.program import costream
from kit.runs import evaluate, run

TONES = {"high": 3000.0, "low": 300.0}


def write(path, tone, seed):
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


def write_folder(folder, each, first_seed=0):
    for tone in (*TONES, "none"):
        (folder / tone).mkdir(parents=True)
        for k in range(each):
            write(folder / tone / f"{k}.mp4", tone, first_seed + k)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    path = folder / "both.safetensors"
    video = data_video.write_tiny_weights(folder / "video.safetensors")
    audio = data_audio.write_tiny_weights(folder / "audio.safetensors")
    network = [f"--set={k}={data_video.NETWORK[k]}" for k in ("embed_dim", "feedforward", "window")]
    begun = ("models", "init", "cooadtr", "--frontend", f"{video}+{audio}", *network)
    run(*begun, "-o", path)
    return path


def test_tokens_are_those_of_a_run(base, tmp_path):
    clip = write(tmp_path / "a.mp4", "low", 0)
    run("features", clip, "-m", base, "-o", tmp_path / "a.npz")
    weights = read_weights(base)
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


def test_what_only_the_sound_says_is_learnt(base, tmp_path):
    data, path = write_folder(tmp_path / "data", 5), tmp_path / "own.safetensors"
    run("train", base, "--data", data, "-o", path, "--steps", 100, "--no-cache")
    new = write_folder(tmp_path / "new", 3, first_seed=1000)
    assert (
        evaluate("-m", path, "--data", new, "--joined", 0)["sequences"]["top1"] >= 7 / 9
    )  # a third is what guessing gives


def test_its_frontend_does_not_learn(base, tmp_path):
    data = write_folder(tmp_path / "data", 1)
    done = costream("train", base, "--data", data, "-o", tmp_path / "x.safetensors", "--fine-tune")
    assert done.returncode == 2
    assert "--fine-tune: both has no frontend to train" in done.stderr
