"""``costream features``: feature files replace their recordings in every command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kit.media import busy, make_video
from kit.paths import SAMPLES
from kit.runs import records, refused, run
from kit.tsn_nets import SMALL, WIDTH

NETWORK = ("--set", "embed_dim=16", "--set", "hidden=16")


def scores(*arguments: object, cwd: Path) -> np.ndarray:
    return scores_of(
        run("detect", "-m", "cooadtr", *arguments, "--scores", "-f", "jsonl", cwd=cwd).stdout
    )


def scores_of(text: str) -> np.ndarray:
    return np.array([r["scores"] for r in records(text, "prediction")])


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    make_video(path, 60, size=(96, 64), rate=24, pattern=busy)
    return path


def test_tsn_there_and_back(clip: Path, tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="needs the extra 'flow' (opencv-python-headless)")
    sizes = [f"--set=frontend.{k}={json.dumps(v)}" for k, v in SMALL.items()]
    begun = ("models", "init", "miniroad", *NETWORK, "--frontend", "tsn", *sizes)
    run(*begun, "-o", "m.safetensors", cwd=tmp_path)
    done = run("features", clip, "-m", "m.safetensors", "-o", "f.npz", cwd=tmp_path)
    assert done.stdout == "f.npz\n"
    with np.load(tmp_path / "f.npz") as file:
        assert {name: file[name].shape for name in file.files} == {
            "rgb": (10, WIDTH),
            "flow": (10, WIDTH),
            "times": (10,),
            "rate_hz": (),
        }
        assert file["times"] == pytest.approx(5 / 24 + np.arange(10) / 4)
    direct = scores(clip, "-m", "m.safetensors", cwd=tmp_path)
    assert len(direct) == 10
    assert scores("f.npz", "-m", "m.safetensors", cwd=tmp_path) == pytest.approx(direct, abs=1e-5)
    short = ("--duration", "0.1", "-m", "m.safetensors", "-o", "g.npz")
    done = run("features", clip, *short, cwd=tmp_path, code=4)
    assert "too short for a single row" in done.stderr
    done = run("models", "verify", "m.safetensors", cwd=tmp_path)
    assert done.stdout == "ok    m.safetensors\n"


def test_pictures_and_sound_there_and_back(clip: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.mp4"
    other.write_bytes(clip.read_bytes())
    done = run("features", clip, other, "-o", "all", cwd=tmp_path)
    files = [tmp_path / "all" / f"{name}.mp4.npz" for name in ("clip", "other")]
    assert done.stdout.split() == [str(f.relative_to(tmp_path)) for f in files]
    assert scores(files[1], cwd=tmp_path) == pytest.approx(scores(clip, cwd=tmp_path), abs=1e-5)
    street = SAMPLES / "street.ogg"
    part = ("--duration", "4")
    done = run("features", street, *part, "-m", "cotrans", "-o", "s.npz", cwd=tmp_path)
    direct = run("listen", street, *part, "-m", "cotrans", "--scores", "-f", "jsonl")
    again = scores("s.npz", "-m", "cotrans", cwd=tmp_path)
    assert again == pytest.approx(scores_of(direct.stdout), abs=1e-4)


@pytest.mark.long
def test_impossible_requests_are_reported_in_one_line(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "there.npz").touch()
    np.save(tmp_path / "rows.npy", np.ones((4, 6), np.float32))
    cases: list[tuple[tuple[object, ...], int, str]] = [
        ((clip, "-o", "there.npz"), 2, "exists already; use --overwrite\n"),
        ((clip, "-o", "there.npy"), 2, "a feature file ends in .npz"),
        ((clip, clip, "-o", "x.npz"), 2, "several sources; give a folder"),
        ((clip, clip, "-o", "x"), 2, "several sources would write"),
        ((clip, "-m", "costgcn", "-o", "x.npz"), 2, "computes no features from video or audio"),
        ((clip, "-m", "cotrans", "-o", "x.npz", "--fps", 2), 2, "are blocks of audio"),
        (("rows.npy", "-o", "x.npz"), 4, "not video, which cooadtr takes"),
        (("nowhere.mp4", "-o", "x.npz"), 4, "no such file"),
        ((clip, "-o", "x.npz", "--start", "100"), 4, "is after the end"),
    ]
    for arguments, code, message in cases:
        refused(code, message, "features", *arguments, cwd=tmp_path)
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.long
def test_pictures_with_their_sound(tmp_path: Path) -> None:
    clip = make_video(tmp_path / "a.mp4", 60, size=(96, 64), rate=24, pattern=busy, audio_s=2.4)
    sizes = ("--set", "embed_dim=16", "--set", "feedforward=16")
    begun = ("models", "init", "cooadtr", *sizes, "--frontend", "cooadtr+cotrans", "-o")
    run(*begun, "av.safetensors", cwd=tmp_path)
    files = {}
    for model in ("av.safetensors", "cooadtr", "cotrans"):
        run("features", clip, "-m", model, "-o", f"{model}.npz", cwd=tmp_path)
        files[model] = dict(np.load(tmp_path / f"{model}.npz"))
    both, heard = files["av.safetensors"], files["cotrans"]
    assert both["rgb"] == pytest.approx(files["cooadtr"]["features"], abs=1e-4)
    for time_s, row in zip(both["times"], both["audio"], strict=True):
        known = np.flatnonzero(heard["times"] <= time_s + 0.002)
        expected = heard["features"][known[-1]] if len(known) else np.zeros(128)
        assert row == pytest.approx(expected, abs=1e-4)
    direct = scores(clip, "-m", "av.safetensors", cwd=tmp_path)
    again = scores("av.safetensors.npz", "-m", "av.safetensors", cwd=tmp_path)
    assert again == pytest.approx(direct, abs=1e-5)


def test_a_video_without_sound_says_so_once(clip: Path, tmp_path: Path) -> None:
    front = ("--frontend", "tdn+audio", "-o", "m.safetensors")
    run("models", "init", "miniroad", *NETWORK, *front, cwd=tmp_path)
    done = run("detect", clip, "-m", "m.safetensors", "-f", "jsonl", cwd=tmp_path)
    header, *_, summary = records(done.stdout)
    assert "its part of the tokens is zeros" in header["options"]["sound"]
    assert summary["errors"] == 0
    assert done.stdout.count("zeros") == 1
    done = run("features", clip, "-m", "m.safetensors", "-o", "f.npz", cwd=tmp_path)
    assert "clip.mp4: sound: none, its part of the tokens is zeros" in done.stderr
    with np.load(tmp_path / "f.npz") as file:
        assert not file["audio"].any()
