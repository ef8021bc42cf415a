"""Small media files for tests, made with PyAV; no ffmpeg program is needed.

Frame k of ``numbered`` shows k in binary, so a test can tell which frame it got, and has a red
corner, so it can tell which way up.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition

BITS = 12


def numbered(k: int, size: tuple[int, int]) -> np.ndarray:
    """Frame number k: its bits as white and black columns below a band whose left end is red."""
    width, height = size
    picture = np.zeros((height, width, 3), np.uint8)
    edges = np.linspace(0, width, BITS + 1).astype(int)
    for bit in range(BITS):
        if k >> bit & 1:
            picture[height // 2 :, edges[bit] : edges[bit + 1]] = 255
    picture[: height // 2, : width // 2] = (255, 0, 0)
    return picture


def busy(k: int, size: tuple[int, int]) -> np.ndarray:
    """Frame number k with moving texture in its dark part: many bytes to damage."""
    width, height = size
    y, x = np.mgrid[:height, :width]
    waves = 30 + 25 * np.sin((x + 3 * k) / 3.0) * np.cos((y - 2 * k) / 4.0)
    grain = np.random.default_rng(k).integers(0, 30, (height, width))
    picture = numbered(k, size)
    texture = (waves + grain).astype(np.uint8)[..., None]
    return np.where(picture.max(axis=-1, keepdims=True) == 0, texture, picture)


def read_number(rgb: np.ndarray) -> int:
    """Return the number that an upright picture of ``numbered`` shows."""
    height, width = rgb.shape[:2]
    row = rgb[3 * height // 4].mean(axis=-1)
    centres = ((np.arange(BITS) + 0.5) * width / BITS).astype(int)
    return sum(1 << bit for bit, x in enumerate(centres) if row[x] > 127)


def red_corner(rgb: np.ndarray) -> str:
    """Return where the red is: "top left", "bottom right", ..."""
    height, width = rgb.shape[:2]
    red = rgb[..., 0].astype(int) - rgb[..., 1:].max(axis=-1)
    quarters = {
        f"{vertical} {horizontal}": red[y, x].mean()
        for vertical, y in (("top", slice(0, height // 3)), ("bottom", slice(-height // 3, None)))
        for horizontal, x in (("left", slice(0, width // 3)), ("right", slice(-width // 3, None)))
    }
    return max(quarters, key=lambda name: quarters[name])


def make_video(  # noqa: PLR0913 - all that a file may have
    path: Path,
    frames: int = 50,
    *,
    size: tuple[int, int] = (96, 64),
    rate: int | Fraction = 25,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    pattern: Callable[[int, tuple[int, int]], np.ndarray] = numbered,
    times: Sequence[float] | None = None,
    start_s: float = 0.0,
    keyframe_every: int = 12,
    b_frames: int = 0,
    pixel_aspect: Fraction | None = None,
    rotation: int | None = None,
    flip: bool = False,
    audio_s: float = 0.0,
    tone_hz: float = 440.0,
    fmt: str | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write a video and return its path.

    ``times``: when each frame is shown (variable rate); else frame k is at start_s + k / rate.
    ``rotation``: degrees that a player turns the picture counter-clockwise. ``audio_s``: length
    of a tone beside it, of ``tone_hz``.
    """
    with av.open(str(path), "w", format=fmt, options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = pixel_format
        stream.gop_size = keyframe_every
        stream.max_b_frames = b_frames
        if times is not None or start_s:
            stream.codec_context.time_base = Fraction(1, 90000)
        if codec == "libx264":
            stream.options = {"preset": "veryfast", "sc_threshold": "0", "threads": "1"}
        if pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        if rotation is not None or flip:
            stream.set_display_rotation(rotation or 0, hflip=flip)
        sound = container.add_stream("aac", rate=16000, layout="mono") if audio_s else None
        for k in range(frames):
            frame = av.VideoFrame.from_ndarray(pattern(k, size), "rgb24")
            if times is not None:
                frame.pts, frame.time_base = round(times[k] * 90000), Fraction(1, 90000)
            elif start_s:
                at = Fraction(start_s) + k / Fraction(rate)
                frame.pts, frame.time_base = round(at * 90000), Fraction(1, 90000)
            else:
                frame.pts, frame.time_base = k, 1 / Fraction(rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound is not None:
            container.mux(_tone(sound, audio_s, tone_hz))
    return path


def side_by_side(path: Path, *videos: Path, default: int = 0) -> Path:
    """Write the pictures of several videos as one file; number ``default`` is what players show."""
    with av.open(str(path), "w") as out, contextlib.ExitStack() as stack:
        inputs = [stack.enter_context(av.open(str(video))) for video in videos]
        streams = [out.add_stream_from_template(each.streams.video[0]) for each in inputs]
        for k, stream in enumerate(streams):
            stream.disposition = Disposition.default if k == default else Disposition(0)
        for each, stream in zip(inputs, streams, strict=True):
            for packet in each.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    out.mux(packet)
    return path


def make_audio(path: Path, seconds: float = 1.0, *, cover: bool = False) -> Path:
    """Write a sound file, .m4a or .mp3, with a cover picture if asked."""
    # The muxer for .m4a takes no pictures; the one for .mp4 writes the same boxes.
    with av.open(str(path), "w", format="mp3" if path.suffix == ".mp3" else "mp4") as container:
        sound = container.add_stream("libmp3lame" if path.suffix == ".mp3" else "aac", rate=16000)
        picture = None
        if cover:
            picture = container.add_stream("mjpeg", rate=1)
            picture.width, picture.height, picture.pix_fmt = 64, 64, "yuvj420p"
            picture.disposition = 0x400  # attached picture
        container.mux(_tone(sound, seconds))
        if picture is not None:
            frame = av.VideoFrame.from_ndarray(numbered(1, (64, 64)), "rgb24")
            container.mux(picture.encode(frame))
            container.mux(picture.encode(None))
    return path


def noise(seconds: float, rate: int = 16000, channels: int = 1, seed: int = 0) -> np.ndarray:
    """Sound that is different everywhere, int16 [N, channels]: a test can tell what it got."""
    chance = np.random.default_rng(seed)
    white = chance.normal(size=(round(seconds * rate), channels))
    return np.clip(white * 4000, -32768, 32767).astype(np.int16)


def chirps(seconds: float, rate: int = 16000, channels: int = 1) -> np.ndarray:
    """Tones that rise, int16 [N, channels]: different everywhere, and codecs keep them."""
    t = np.arange(round(seconds * rate)) / rate
    lanes = [
        sum(np.sin(2 * np.pi * (low * t + (40 + 10 * k) * t**2)) for low in (200, 700, 1900))
        for k in range(channels)
    ]
    return (3000 * np.stack(lanes, axis=1)).astype(np.int16)


def make_sound(  # noqa: PLR0913 - all that a file may have
    path: Path,
    samples: np.ndarray,
    rate: int = 16000,
    *,
    codec: str = "pcm_s16le",
    layout: str | None = None,
    fmt: str | None = None,
    stamp: Callable[[int], int] = lambda n: n,
    size: int = 1024,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write sound, int16 [N, channels], and return its path.

    ``stamp`` gives the time stamp of sample n, in samples; ``size``: samples a packet where the
    codec leaves that open.
    """
    channels = samples.shape[1]
    layout = layout or {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
    with av.open(str(path), "w", format=fmt, options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        encoder = stream.codec_context
        encoder.open()
        resampler = av.AudioResampler(encoder.format, layout, rate, encoder.frame_size or None)
        for n in range(0, len(samples), size):
            piece = np.ascontiguousarray(samples[n : n + size].reshape(1, -1))
            frame = av.AudioFrame.from_ndarray(piece, "s16", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, stamp(n), Fraction(1, rate)
            for fitting in resampler.resample(frame):
                container.mux(stream.encode(fitting))
        for fitting in resampler.resample(None):
            container.mux(stream.encode(fitting))
        container.start_encoding()
        container.mux(stream.encode(None))
    return path


def _tone(stream: Any, seconds: float, hz: float = 440.0) -> Iterable[av.Packet]:
    rate, block = 16000, 1024
    packets = []
    for start in range(0, int(seconds * rate), block):
        wave = np.sin(2 * np.pi * hz * np.arange(start, start + block) / rate)
        samples = (wave * 8000).astype(np.int16).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        packets += stream.encode(frame)
    return packets + stream.encode(None)


def truncated(path: Path, share: float) -> Path:
    """Write a copy that ends after ``share`` of the bytes."""
    data = path.read_bytes()
    out = path.with_name(f"cut-{path.name}")
    out.write_bytes(data[: int(len(data) * share)])
    return out


def rotten(path: Path, count: int, *, seed: int = 0, skip: int = 2000, keep: int = 0) -> Path:
    """Write a copy with ``count`` random bytes, none in the first ``skip`` or last ``keep``."""
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for _ in range(count):
        data[chance.randrange(skip, len(data) - keep)] = chance.randrange(256)
    out = path.with_name(f"rotten-{path.name}")
    out.write_bytes(bytes(data))
    return out


def excerpt(
    source: Path,
    target: Path,
    start_s: float,
    seconds: float,
    *,
    rate: int = 8,
    size: tuple[int, int] | None = None,
    b_frames: int | None = None,
) -> Path:
    """Write pictures of a video from ``start_s`` on as H.264, so many a second of their own."""
    with av.open(str(source)) as given, av.open(str(target), "w") as out:
        video = given.streams.video[0]
        stream = out.add_stream("libx264", rate=rate)
        stream.width, stream.height = size or (video.width, video.height)
        stream.pix_fmt = "yuv420p"
        if b_frames is not None:
            stream.max_b_frames = b_frames
        taken = 0
        for frame in given.decode(video=0):
            if frame.time < start_s or taken >= seconds * rate:
                continue
            picture = frame.reformat(stream.width, stream.height, "yuv420p")
            picture.pts, picture.time_base = taken, Fraction(1, rate)
            out.mux(stream.encode(picture))
            taken += 1
        out.mux(stream.encode())
    return target
