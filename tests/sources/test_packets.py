"""Clips out of a ring of packets: what is in them, decoded, and what becomes of the rest."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import av
import numpy as np
import pytest

from costream.sources.live.clip_buffer import PacketRing
from kit.media import make_sound, make_video, noise, numbered, read_number

WAIT_S = 30.0


class Clips:
    """Collects what the writing thread says."""

    def __init__(self):
        self.paths: list[Path | None] = []
        self._more = threading.Condition()

    def done(self, path):
        with self._more:
            self.paths.append(path)
            self._more.notify()

    def wait(self, count=1):
        with self._more:
            assert self._more.wait_for(lambda: len(self.paths) >= count, WAIT_S)
        return self.paths


def play(ring, path, *, from_s=0.0, begin=True):
    """Show the ring a file as if it were a feed whose packets come at their decoding times."""
    with av.open(str(path)) as container:
        if begin:
            ring.begin(container)
        for packet in container.demux():
            if packet.size:
                first = packet.stream.start_time or 0
                stamp = packet.pts if packet.dts is None else packet.dts
                ring.add(packet, from_s + float((stamp - first) * packet.time_base))


def pictures(path):
    """Decode a clip: the number that each picture shows, and when."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        assert all(not f.is_corrupt for f in frames)
        return [read_number(f.to_ndarray(format="rgb24")) for f in frames], [f.time for f in frames]


def sound(path):
    with av.open(str(path)) as container:
        return np.concatenate([f.to_ndarray()[0] for f in container.decode(audio=0)])


@pytest.fixture
def ring():
    ring = PacketRing(hold_s=100.0)
    yield ring
    ring.close()


def clip(ring, folder, at_s, before_s, after_s, name="clip.mkv"):
    clips = Clips()
    assert ring.save(folder / name, at_s, before_s, after_s, clips.done)
    return clips.wait()[0]


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("keyframe_every", [1, 12, 50])
@pytest.mark.parametrize("fmt", ["mp4", "mpegts", "matroska"])
def test_a_clip_begins_at_a_key_and_holds_all_up_to_its_end(
    ring, tmp_path, b_frames, keyframe_every, fmt
):
    file = tmp_path / f"feed.{fmt}"
    make_video(file, 150, b_frames=b_frames, keyframe_every=keyframe_every, fmt=fmt, start_s=50.0)
    play(ring, file)
    numbers, times = pictures(clip(ring, tmp_path, 4.0, 1.5, 1.0))
    # Packets come ahead of their pictures by the reordering, at most so many frames.
    early = 2 * b_frames
    assert numbers[0] % keyframe_every == 0
    assert 62 - keyframe_every - early < numbers[0] <= 62 + early
    whole = len(numbers) - early  # those shown between the last packets may come after the end
    assert numbers[:whole] == list(range(numbers[0], numbers[0] + whole))
    assert 125 - early <= numbers[-1] <= 125 + early
    assert times[0] == pytest.approx(0, abs=0.2)
    assert np.allclose(np.diff(times[:whole]), 0.04, atol=2e-3)


@pytest.mark.parametrize("b_frames", [0, 2])
def test_in_bursts_a_clip_is_of_the_time_of_its_steps(ring, tmp_path, b_frames):
    """As of HLS: segments of 2 s come at once, and their pictures have times before that."""
    file = make_video(tmp_path / "feed.ts", 150, b_frames=b_frames, keyframe_every=12, fmt="mpegts")
    with av.open(str(file)) as container:
        ring.begin(container)
        stream = container.streams.video[0]
        for k, packet in enumerate(p for p in container.demux(stream) if p.size):
            arrived_s = 1000.0 + 2 * (k // 50) + 2
            ring.add(packet, arrived_s)
            first_s = float(stream.start_time * stream.time_base)
            stamp_s = float(packet.pts * packet.time_base)
            ring.place(stamp_s, 1000.0 + stamp_s - first_s)
            if k == 110:  # the last segment is not there whole
                clips = Clips()
                assert ring.save(tmp_path / "clip.mkv", 1003.5, 1.0, 1.5, clips.done)
    numbers, _ = pictures(clips.wait()[0])
    early = 2 * b_frames
    assert numbers[0] % 12 == 0
    assert 62 - 12 - early < numbers[0] <= 62 + early
    assert 125 - early <= numbers[-1] <= 125 + early


def test_pictures_that_need_those_before_the_key_are_left_out(ring, tmp_path):
    file = tmp_path / "feed.ts"
    make_video(file, 150, codec="mpeg2video", b_frames=2, keyframe_every=12, fmt="mpegts")
    with av.open(str(file)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
    keys = [k for k, packet in enumerate(packets) if packet.is_keyframe]
    assert packets[keys[3] + 1].pts < packets[keys[3]].pts  # groups are open
    play(ring, file)
    path = clip(ring, tmp_path, 4.0, 1.5, 1.0)
    numbers, times = pictures(path)
    assert numbers[:60] == list(range(numbers[0], numbers[0] + 60))
    with av.open(str(path)) as container:
        shown = [p.pts for p in container.demux(video=0) if p.size]
    assert min(shown) == shown[0]
    assert times[0] == pytest.approx(0, abs=0.2)


def test_the_sound_is_kept_and_fits_the_pictures(ring, tmp_path):
    file = make_video(tmp_path / "feed.mp4", 150, keyframe_every=25, audio_s=6.0)
    play(ring, file)
    path = clip(ring, tmp_path, 4.0, 1.0, 1.0)
    numbers, times = pictures(path)
    assert numbers[0] == 75
    with av.open(str(path)) as container:
        heard = [f.time for f in container.decode(audio=0)]
        assert container.streams.audio[0].codec_context.name == "aac"
    assert heard[0] - times[0] == pytest.approx(0, abs=0.1)
    assert heard[-1] - times[-1] == pytest.approx(0, abs=0.2)


# Not AV1: its encoder would leave this process with real-time priority.
@pytest.mark.parametrize("codec", ["libx265", "mjpeg", "libvpx-vp9", "mpeg4"])
def test_whatever_a_camera_sends(ring, tmp_path, codec):
    if codec not in av.codecs_available:
        pytest.skip(f"this build of PyAV has no {codec}")
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    file = tmp_path / "feed.mkv"
    make_video(file, 60, codec=codec, pixel_format=pixels, keyframe_every=10)
    play(ring, file)
    numbers, _ = pictures(clip(ring, tmp_path, 1.5, 0.5, 0.4))
    assert 20 <= numbers[0] <= 25
    assert 45 <= numbers[-1] <= 50


def test_sound_that_has_no_place_is_left_out_and_reported_once(ring, tmp_path, caplog):
    file = tmp_path / "feed.mov"
    with av.open(str(file), "w") as container:
        video, sound = container.add_stream("mpeg4", 25), container.add_stream("adpcm_ima_qt", 8000)
        video.width, video.height = 96, 64
        for k in range(50):
            frame = av.VideoFrame.from_ndarray(numbered(k, (96, 64)), "rgb24")
            container.mux(video.encode(frame))
            heard = av.AudioFrame.from_ndarray(np.zeros((1, 64), np.int16), "s16p", "mono")
            heard.sample_rate = 8000
            container.mux(sound.encode(heard))
        container.mux(video.encode(None))
    play(ring, file)
    play(ring, file, from_s=10.0)
    numbers, _ = pictures(clip(ring, tmp_path, 11.0, 1.0, 0.4))
    assert numbers[0] == 0
    assert len(caplog.records) == 1
    assert "clips are written without the audio of a feed" in caplog.text


@pytest.mark.parametrize(
    ("codec", "fmt"), [("pcm_mulaw", "wav"), ("pcm_alaw", "mov"), ("pcm_s16le", "matroska")]
)
def test_a_feed_of_sound_only_sample_by_sample(ring, tmp_path, codec, fmt):
    file = make_sound(tmp_path / f"feed.{fmt}", noise(10.0), codec=codec, fmt=fmt)
    play(ring, file)
    heard = sound(clip(ring, tmp_path, 5.0, 1.0, 2.0))
    with av.open(str(file)) as container:
        given = np.concatenate([f.to_ndarray()[0] for f in container.decode(audio=0)])
    assert len(heard) == pytest.approx(3 * 16000, abs=2100)  # packets of 1024 samples
    start = next(k for k in range(len(given)) if np.array_equal(given[k : k + 99], heard[:99]))
    assert start == pytest.approx(4 * 16000, abs=2100)
    assert np.array_equal(given[start : start + len(heard)], heard)


def test_clips_that_overlap_are_each_whole_and_the_same_again(ring, tmp_path):
    play(ring, make_video(tmp_path / "feed.mp4", 150, b_frames=2, audio_s=6.0))
    clips = Clips()
    for k, at_s in enumerate((3.0, 3.2, 3.0)):
        assert ring.save(tmp_path / f"{k}.mkv", at_s, 1.0, 1.0, clips.done)
    assert set(clips.wait(3)) == {tmp_path / f"{k}.mkv" for k in range(3)}
    first, second, again = (pictures(tmp_path / f"{k}.mkv") for k in range(3))
    assert first == again
    assert len(set(first[0]) & set(second[0])) > 30
    assert (tmp_path / "0.mkv").stat().st_size == (tmp_path / "2.mkv").stat().st_size


def test_a_clip_waits_for_the_seconds_after(ring, tmp_path):
    file = make_video(tmp_path / "feed.mp4", 200, keyframe_every=10)
    clips = Clips()
    with av.open(str(file)) as container:
        ring.begin(container)
        for k, packet in enumerate(p for p in container.demux() if p.size):
            if k == 100:
                assert ring.save(tmp_path / "a.mkv", 4.0, 1.0, 2.0, clips.done)
            if k == 150:
                time.sleep(0.2)
                assert clips.paths == []  # its end has not come yet
            ring.add(packet, k / 25)
    numbers, _ = pictures(clips.wait()[0])
    assert (numbers[0], numbers[-1]) == (70, 150)
    assert not list(tmp_path.glob("*.part"))


def test_a_clip_whose_end_never_comes_is_written_all_the_same(ring, tmp_path):
    play(ring, make_video(tmp_path / "feed.mp4", 50))
    began = time.monotonic()
    numbers, _ = pictures(clip(ring, tmp_path, 1.9, 1.0, 0.5))
    assert numbers[-1] == 49
    assert time.monotonic() - began > 2.0


def test_a_clip_never_mixes_two_connections(ring, tmp_path):
    small = make_video(tmp_path / "small.mp4", 100, keyframe_every=10)
    large = make_video(tmp_path / "large.ts", 100, size=(192, 128), fmt="mpegts", codec="mpeg4")
    play(ring, small)
    clips = Clips()
    assert ring.save(tmp_path / "before.mkv", 3.5, 1.0, 99.0, clips.done)
    play(ring, large, from_s=6.0)
    assert ring.save(tmp_path / "after.mkv", 6.5, 5.0, 1.0, clips.done)
    assert ring.save(tmp_path / "late.mkv", 3.5, 1.0, 99.0, clips.done)
    clips.wait(3)
    for name in ("before.mkv", "late.mkv"):
        numbers, _ = pictures(tmp_path / name)
        assert (numbers[0], numbers[-1]) == (60, 99)
    numbers, _ = pictures(tmp_path / "after.mkv")
    assert numbers[0] == 0
    with av.open(str(tmp_path / "after.mkv")) as container:
        assert container.streams.video[0].codec_context.width == 192


@pytest.mark.parametrize("from_s", [-30.0, 4000.0])
def test_a_clock_that_jumps_ends_a_clip(ring, tmp_path, from_s):
    first = make_video(tmp_path / "first.ts", 100, keyframe_every=10, fmt="mpegts", start_s=50.0)
    second = make_video(
        tmp_path / "second.ts", 100, keyframe_every=10, fmt="mpegts", start_s=50.0 + from_s
    )
    play(ring, first)
    play(ring, second, from_s=4.0, begin=False)
    numbers, times = pictures(clip(ring, tmp_path, 3.0, 1.0, 5.0, "a.mkv"))
    assert (numbers[0], numbers[-1]) == (50, 99)
    assert times[-1] < 3
    numbers, times = pictures(clip(ring, tmp_path, 5.0, 5.0, 1.0, "b.mkv"))
    assert numbers[0] == 0
    assert times[-1] < 3


@pytest.mark.parametrize("missing", ["first", "dts", "some"])
def test_time_stamps_that_are_missing(ring, tmp_path, missing):
    """As over RTSP: the first picture has none, and decoding times begin later."""
    file = make_video(tmp_path / "feed.mp4", 100, keyframe_every=50)
    with av.open(str(file)) as container:
        ring.begin(container)
        for k, packet in enumerate(p for p in container.demux() if p.size):
            if missing == "first" and k == 0:
                packet.pts = packet.dts = None
            if missing == "dts" or (missing == "first" and k < 3):
                packet.dts = None
            if missing == "some" and k % 7 == 3:
                packet.pts = packet.dts = None
            ring.add(packet, k / 25)
    numbers, times = pictures(clip(ring, tmp_path, 1.0, 1.0, 1.0))
    assert numbers == list(range(51))
    assert np.allclose(np.diff(times), 0.04, atol=2e-3)


def test_packets_without_stamps_have_those_of_their_arrival(ring, tmp_path):
    """As JPEGs over HTTP, of which FFmpeg counts 25 a second."""
    file = tmp_path / "feed.mjpeg"
    make_video(file, 30, codec="mjpeg", pixel_format="yuvj420p", fmt="mjpeg")
    with av.open(str(file)) as container:
        ring.begin(container)
        for k, packet in enumerate(p for p in container.demux() if p.size):
            ring.add(packet, 7.0 + k / 2)
    numbers, times = pictures(clip(ring, tmp_path, 12.0, 3.0, 4.0))
    assert numbers == list(range(4, 19))
    assert np.allclose(np.diff(times), 0.5, atol=2e-3)


def test_old_packets_are_let_go_but_not_those_a_clip_needs(tmp_path):
    ring = PacketRing(hold_s=1.0)
    play(ring, make_video(tmp_path / "feed.mp4", 250, keyframe_every=10))
    clips = Clips()
    assert not ring.save(tmp_path / "old.mkv", 5.0, 1.0, 1.0, clips.done)
    numbers, _ = pictures(clip(ring, tmp_path, 9.9, 100.0, 0.0))
    assert 210 <= numbers[0] <= 225
    ring.close()


def test_what_is_held_is_bounded_in_bytes(tmp_path):
    file = make_video(tmp_path / "feed.mp4", 250, keyframe_every=10)
    ring = PacketRing(hold_s=100.0, limit=file.stat().st_size // 4)
    play(ring, file)
    numbers, _ = pictures(clip(ring, tmp_path, 9.9, 100.0, 0.0))
    assert numbers[0] % 10 == 0
    assert 100 < numbers[0] < 240
    ring.close()
    # Not even the pictures from one key to the next fit: there is nothing to begin with.
    ring = PacketRing(hold_s=100.0, limit=100)
    play(ring, file)
    assert not ring.save(tmp_path / "none.mkv", 9.9, 5.0, 0.0, Clips().done)
    ring.close()


def test_streams_of_past_connections_are_freed_at_once(ring, tmp_path):
    """Each holds 90 kB of FFmpeg's, which a cycle kept until Python looked for cycles."""
    path = make_video(tmp_path / "v.mp4", 4)
    play(ring, path)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            play(ring, path)
        assert gc.collect() < 20
    finally:
        gc.enable()


def test_a_clip_that_cannot_be_written_says_so(ring, tmp_path, caplog):
    play(ring, make_video(tmp_path / "feed.mp4", 50))
    (tmp_path / "file").write_text("")
    assert clip(ring, tmp_path / "file", 1.0, 1.0, 0.5) is None
    assert ring.failed == 1
    assert "clip.mkv: cannot write" in caplog.text
    numbers, _ = pictures(clip(ring, tmp_path, 1.0, 1.0, 0.5))
    assert numbers[0] == 0


def test_close_writes_what_waits_and_ends_the_thread(ring, tmp_path):
    before = set(threading.enumerate())
    play(ring, make_video(tmp_path / "feed.mp4", 50))
    clips = Clips()
    assert ring.save(tmp_path / "clip.mkv", 1.9, 1.0, 60.0, clips.done)
    ring.close()
    assert pictures(clips.wait()[0])[0][-1] == 49
    assert set(threading.enumerate()) == before
    assert not ring.save(tmp_path / "other.mkv", 1.9, 1.0, 1.0, clips.done)


def test_nothing_is_saved_of_a_feed_that_gave_nothing(ring, tmp_path):
    assert not ring.save(tmp_path / "clip.mkv", 1.0, 1.0, 1.0, Clips().done)


@pytest.mark.slow
def test_clips_while_packets_come(ring, tmp_path):
    """The thread that reads and the one that saves at once, many times."""
    file = make_video(tmp_path / "feed.mp4", 400, keyframe_every=10, audio_s=16.0)
    clips = Clips()
    reader = threading.Thread(target=lambda: [play(ring, file) for _ in range(5)])
    reader.start()
    saved = 0
    while reader.is_alive():
        path = tmp_path / f"{saved}.mkv"
        saved += ring.save(path, 1.0 + 0.7 * (saved % 20), 1.0, 1.0, clips.done)
        time.sleep(0.001)
    ring.close(WAIT_S)
    assert saved > 3
    for path in clips.wait(saved)[:10]:
        numbers, _ = pictures(path)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
