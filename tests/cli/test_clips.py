"""costream clips: segments cut out of their sources, read back by PyAV alone."""

from __future__ import annotations

import csv
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from costream.__main__ import main
from costream.core.records import Header, Segment, dumps, to_json
from kit.media import make_video, read_number, red_corner

SEGMENTS = (Segment(1.5, 3.0, "sit down", 0.9), Segment(4.0, 5.25, "Fall", 0.8, person=2))


def results(path: Path, source: Path, kind="video", segments=SEGMENTS, **more) -> Path:
    header = Header(
        "0",
        "m",
        "0",
        ("a",),
        None,
        8.0,
        0.0,
        str(source),
        kind,
        None,
        more.pop("options", {}),
        **more,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{dumps(to_json(r))}\n" for r in (header, *segments)), "utf-8")
    return path


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "clips.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def frame_times(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        return [frame.time for frame in container.decode(video=0)]


def frame_numbers(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    return [read_number(frame) for frame in frames]


def packets(path: Path, kind: str = "video") -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(p) for p in container.demux(**{kind: 0}) if p.size]


@pytest.fixture(scope="module", params=[".mp4", ".ts"])
def film(request, tmp_path_factory) -> Path:
    """A film of numbered frames with B-frames, a keyframe a second and a tone."""
    path = tmp_path_factory.mktemp("film") / f"film{request.param}"
    return make_video(path, 175, b_frames=2, keyframe_every=25, audio_s=7.0)


def test_videos_are_copied_packet_by_packet(film, tmp_path, capsys):
    found = results(tmp_path / "film.mp4.jsonl", film)
    assert main(["clips", str(found), "-o", str(tmp_path / "c"), "--before", "0.5"]) == 0
    assert "2 clips" in capsys.readouterr().out
    rows = table(tmp_path / "c")
    assert [row["label"] for row in rows] == ["sit down", "Fall"]
    assert (rows[1]["person"], rows[0]["score"]) == ("2", "0.9")
    whole, tone = packets(film), packets(film, "audio")
    for row, segment in zip(rows, SEGMENTS, strict=True):
        clip = tmp_path / "c" / row["file"]
        numbers = frame_numbers(clip)
        assert numbers == [*range(numbers[0], numbers[-1] + 1)]
        if film.suffix == ".mp4":  # those of a transport stream begin with other bytes
            pictures, heard = packets(clip), packets(clip, "audio")
            assert pictures == whole[(at := whole.index(pictures[0])) : at + len(pictures)]
            assert heard == tone[(at := tone.index(heard[0])) : at + len(heard)]
        sound_s = len(packets(clip, "audio")) * 1024 / 16000
        assert abs(sound_s - float(row["length_s"])) < 0.25
        begin_s, end_s = float(row["clip_start_s"]), float(row["clip_end_s"])
        assert begin_s <= segment.start_s - 0.5 + 1e-6
        assert segment.end_s - 1e-6 <= end_s <= segment.end_s + 0.17
        times = frame_times(tmp_path / "c" / row["file"])
        assert times[0] == 0.0
        assert abs(times[-1] + 0.04 - float(row["length_s"])) < 0.1
        assert (tmp_path / "c" / row["picture"]).read_bytes()[:2] == b"\xff\xd8"


def test_exact_clips_begin_and_end_at_the_frame(film, tmp_path):
    found = results(tmp_path / "film.mp4.jsonl", film)
    args = ["clips", str(found), "--exact", "--label", "fall", "--after", "0.5"]
    assert main([*args, "-o", str(tmp_path / "c")]) == 0
    (row,) = table(tmp_path / "c")
    clip = tmp_path / "c" / row["file"]
    first = 100 if film.suffix == ".mp4" else 99  # its sound begins before its pictures
    assert frame_numbers(clip) == [*range(first, first + 44)]
    assert abs(float(row["clip_start_s"]) - 4.0) < 0.03
    assert abs(float(row["length_s"]) - 1.76) < 0.01
    assert abs(len(packets(clip, "audio")) * 1024 / 16000 - 1.75) < 0.15


@pytest.mark.parametrize("exact", [False, True])
def test_clips_of_a_turned_film_are_upright(exact, tmp_path):
    film = make_video(tmp_path / "f.mp4", 75, pattern=corner, rotation=90, keyframe_every=5)
    found = results(tmp_path / "f.jsonl", film, segments=[Segment(1.0, 2.0, "a", 0.9)])
    args = ["clips", str(found), "-o", str(tmp_path / "c")] + ["--exact"] * exact
    assert main(args) == 0
    (row,) = table(tmp_path / "c")
    wanted = upright(film)
    assert wanted.shape == (96, 64, 3)
    assert red_corner(upright(tmp_path / "c" / row["file"])) == red_corner(wanted)
    with Image.open(tmp_path / "c" / row["picture"]) as shot:
        assert red_corner(np.asarray(shot)) == red_corner(wanted)


def corner(k: int, size: tuple[int, int]) -> np.ndarray:
    picture = np.full((size[1], size[0], 3), 128, np.uint8)
    picture[:20, :30] = 255, 0, 0
    return picture


def upright(path: Path) -> np.ndarray:
    """Return the first frame of a film as players show it."""
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        return np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)


def test_sound_is_cut_to_the_sample(tmp_path):
    rate_hz = 8000
    samples = (np.random.default_rng(0).uniform(-0.5, 0.5, 3 * rate_hz) * 32767).astype("<i2")
    source = tmp_path / "a;b 'c' <d>.wav"
    with wave.open(str(source), "wb") as file:
        file.setparams((1, 2, rate_hz, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    found = results(tmp_path / "r.jsonl", source, "audio", [Segment(0.5, 1.25, "a/../b\n", 0.9)])
    assert main(["clips", str(found), "-o", str(tmp_path / "c")]) == 0
    (row,) = table(tmp_path / "c")
    assert (row["picture"], float(row["length_s"])) == ("", 0.75)
    clip = tmp_path / "c" / row["file"]
    assert clip.parent == tmp_path / "c"
    assert set(row["file"]) <= set("abcdwv0123456789_.-")
    with wave.open(str(clip)) as file:
        cut = np.frombuffer(file.readframes(rate_hz), "<i2")
    assert np.abs(cut.astype(int) - samples[4000:10000]).max() <= 1


def test_sources_are_found_next_to_results_and_missing_ones_are_named(film, tmp_path, capsys):
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / film.name).write_bytes(film.read_bytes())
    results(tmp_path / "moved" / "film.jsonl", Path("/nowhere") / film.name, segments=SEGMENTS[:1])
    results(tmp_path / "moved" / "gone.jsonl", Path("/nowhere/gone.mp4"))
    results(tmp_path / "moved" / "live.jsonl", film, began="2026-11-29T10:00:00Z")
    results(tmp_path / "moved" / "joints.jsonl", film, "skeleton")
    args = ["clips", str(tmp_path / "moved"), "-o", str(tmp_path / "c")]
    assert main(args) == 3
    said = capsys.readouterr()
    assert "1 clip:" in said.out
    for words in ("gone.mp4 is missing; put it back", "a live feed", "results of skeleton"):
        assert words in said.err
    assert len(table(tmp_path / "c")) == 1
    assert main(args) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*args, "--overwrite"]) == 3
    assert main(["clips", str(tmp_path / "moved" / "gone.jsonl")]) == 4


def test_a_damaged_source_is_reported_in_one_line(tmp_path, capsys):
    film, broken = make_video(tmp_path / "film.mp4"), tmp_path / "broken.mp4"
    broken.write_bytes(film.read_bytes()[:2000])
    found = results(tmp_path / "broken.mp4.jsonl", broken)
    assert main(["clips", str(found), "-o", str(tmp_path / "c")]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 2  # one for each segment
