"""``costream batch`` with an audio model: inputs, skipped files, failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.media import chirps, make_audio, make_sound, make_video, noise, truncated
from kit.paths import SAMPLES
from kit.program import costream
from kit.runs import records, rows
from kit.sound_nets import write


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The output folder and the exit code of one batch over some of everything."""
    root = tmp_path_factory.mktemp("album")
    write(root, "sounds", ("dog", "rain", "silence"))
    folder = root / "in"
    folder.mkdir()
    make_sound(folder / "a.wav", chirps(3.0))
    make_sound(folder / "many.wav", noise(2.0, 48000, 8), 48000)
    make_audio(folder / "song.mp3", 2.0, cover=True)
    make_video(folder / "talk.mp4", 50, audio_s=2.0)
    make_video(folder / "silent.mp4", 10)
    cut = truncated(make_sound(root / "a.flac", noise(8.0), codec="flac"), 0.5)
    cut.rename(folder / "cut.flac")
    make_sound(folder / "header.wav", noise(0.0))
    (folder / "junk.mp3").write_bytes(bytes(range(1, 256)) * 20)
    (folder / "drawing.svg").write_bytes((SAMPLES / "cost.svg").read_bytes())
    (folder / "notes.txt").write_text("not, media, at all, of course")
    out = root / "out"
    ran = costream(
        "batch", folder, "-m", root / "sounds.safetensors", "-o", out, "-f", "jsonl", "--jobs", 1
    )
    assert "Traceback" not in ran.stderr
    return out, ran.returncode


@pytest.mark.long
def test_each_sound_file_has_its_status(done: tuple[Path, int]) -> None:
    out, code = done
    failures = {
        row["name"]: f"{row['status']}: {row['reason']}" for row in rows(out / "failures.csv")
    }
    expected = {
        "header.wav": "failed: it contains no samples",
        "junk.mp3": "failed: this is not sound that can be read",
        "cut.flac": "partial: the file is cut off",
    }
    assert set(failures) == set(expected)
    assert all(failures[name].startswith(words) for name, words in expected.items()), failures
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert summary["skipped"] == {
        "no sound in it, and sounds takes only sound; try -m cooadtr": 1,
        "not a media file": 2,
    }
    assert (summary["inputs"]["done"], code) == (4, 3)


@pytest.mark.slow
def test_sounds_are_in_the_table(done: tuple[Path, int]) -> None:
    out, _ = done
    for name, steps in (("a.wav", 12), ("many.wav", 8), ("song.mp3", 8), ("talk.mp4", 8)):
        header, *rest = records(out / f"{name}.jsonl")
        assert header["kind"] == "audio"
        times = [r["time_s"] for r in rest if r["type"] == "prediction"]
        assert times == pytest.approx([0.25 * (k + 1) for k in range(steps)])
        assert rest[-1]["complete"]
    # What could be read of the one that is cut off is kept.
    *kept, last = records(out / "cut.flac.jsonl")
    assert 12 < sum(r["type"] == "prediction" for r in kept) < 20
    assert not last["complete"]
