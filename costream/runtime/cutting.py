"""Cutting of stretches out of media files: copies of the packets, exact videos, sound, pictures."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from costream.core.errors import OutputError, SourceError
from costream.core.pyav import open_input
from costream.core.records import AudioBlock, AudioFormat, Fault, VideoFrame
from costream.sinks.atomic import replace_file
from costream.sinks.movie import Movie
from costream.sinks.snapshot import jpeg_of
from costream.sources.base import SAME_TIME_S, SourceOptions
from costream.sources.live.clip_file import PacketCopy, StreamTemplates, write_clip
from costream.sources.media.audio_source import AudioSource
from costream.sources.media.container import open_container
from costream.sources.media.streams import audio_stream, video_stream
from costream.sources.media.timing import has_time_stamps, origin, time_base
from costream.sources.media.video_source import SEEK_BACK_S, VideoSource

COPIED, EXACT, SOUND, PICTURE = ".mkv", ".mp4", ".wav", ".jpg"
_MOST_BYTES = 1 << 29  # of packets that are copied, which are held in memory
_BLOCKS_HZ = 50
_USUAL_HZ = 25.0


def copy_clip(media: Path, target: Path, options: SourceOptions) -> tuple[float, float]:
    """Write the packets of video and sound from ``options.start_s`` to ``end_s`` without encoding.

    The clip begins at the keyframe at or before the start. Return the time in the source at which
    it begins, and its length as it was read back, in seconds. Raises SourceError if the file cannot
    be read or its packets cannot be copied, OutputError if the clip cannot be written.
    """
    path = os.fspath(media)
    with open_container(path) as container:
        video = video_stream(container, path, options.stream)
        if not has_time_stamps(container):
            raise SourceError("it has no time stamps", where=media, hint="use --exact")
        templates = StreamTemplates()
        wanted = [video, *container.streams.audio[:1]]
        zero_s, base = origin(container, video), time_base(video)
        try:
            for stream in wanted:
                templates.note(stream)
            for back_s in SEEK_BACK_S:
                at_s = max(Fraction(0), Fraction(options.start_s - back_s)) + zero_s
                container.seek(int(at_s / base), stream=video)
                packets = _packets(container, wanted, zero_s, options)
                begin_s = _shown_s(packets[0], zero_s) if packets else 0.0
                if packets and begin_s <= options.start_s + SAME_TIME_S:
                    break
        except (av.FFmpegError, ValueError) as error:
            what = f"its packets cannot be copied ({error})"
            raise SourceError(what, where=media, hint="use --exact") from error
    if not packets:
        raise SourceError("there are no pictures at that time", where=media)
    try:
        write_clip(target, templates, packets)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise OutputError(f"cannot be written ({error})", where=target) from error
    return begin_s, length_s(target)


def _packets(
    container: av.container.InputContainer,
    wanted: list[av.stream.Stream],
    zero_s: Fraction,
    options: SourceOptions,
) -> list[PacketCopy]:
    """Return the packets from the last keyframe before the start to the end of the range.

    The keyframe is the first. Raises ValueError if they are too large.
    """
    video, packets, size = wanted[0], list[PacketCopy](), 0
    end_s = float("inf") if options.end_s is None else options.end_s
    last_s: float | None = None  # when the last frame is shown
    for packet in container.demux(wanted):
        if packet.dts is None or packet.size == 0:
            continue
        copy = PacketCopy.of(packet, float(packet.dts * packet.time_base - zero_s))
        is_video = packet.stream is video
        shown_s = _shown_s(copy, zero_s)
        if is_video and shown_s >= end_s:
            is_last = copy.time_s < end_s and last_s is None  # others may refer to it
            if not is_last and shown_s > (last_s or end_s):
                break
            last_s = shown_s if is_last else last_s
        if is_video and copy.key and (not packets or shown_s <= options.start_s + SAME_TIME_S):
            sound = [p for p in packets if p.stream != copy.stream and p.time_s >= shown_s]
            packets = [copy, *sound]
            size = sum(len(p.data) for p in packets)
        elif packets and (is_video or copy.time_s < end_s):
            packets.append(copy)
            size += packet.size
        if size > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES >> 20} MB")
    return packets


def _shown_s(packet: PacketCopy, zero_s: Fraction) -> float:
    stamp = packet.dts if packet.pts is None else packet.pts
    return float((stamp or 0) * packet.time_base - zero_s)


def exact_clip(media: Path, target: Path, options: SourceOptions) -> tuple[float, float]:
    """Write the frames from ``options.start_s`` up to ``end_s``, upright, and the sound; encoded.

    Return and raise as ``copy_clip``.
    """
    movie = None
    begin_s = 0.0
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            rate_hz, frames = _frames(media, options)
            for frame in frames:
                if movie is None:
                    begin_s = frame.time_s
                    height, width = frame.rgb.shape[:2]
                    movie = Movie(width, height, rate_hz or _USUAL_HZ, media)
                    movie.open(file)
                page, rgb = movie.page(), frame.rgb
                height, width = (min(a, b) for a, b in zip(page.shape, rgb.shape[:2], strict=False))
                page[:height, :width] = rgb[:height, :width]
                movie.add(frame.time_s)
            if movie is None:
                raise SourceError("there are no pictures at that time", where=media)
            movie.finish()
        os.replace(part, target)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise OutputError(f"cannot be written ({error})", where=target) from error
    finally:
        part.unlink(missing_ok=True)
    return begin_s, length_s(target)


def _frames(media: Path, options: SourceOptions) -> tuple[float | None, Iterator[VideoFrame]]:
    """Return the frame rate of a video if it is known, and its frames."""
    source = VideoSource(os.fspath(media), options)
    info = source.open()

    def frames() -> Iterator[VideoFrame]:
        with closing(source):
            for item in source.items():
                if isinstance(item, Fault) and item.fatal:
                    raise SourceError(item.message, where=media)
                if isinstance(item, VideoFrame):
                    yield item

    return info.rate_hz, frames()


def sound_clip(media: Path, target: Path, options: SourceOptions) -> tuple[float, float]:
    """Write the sound from ``options.start_s`` to ``end_s`` as WAV: 16 bits, mono, its sample rate.

    Return and raise as ``copy_clip``.
    """
    path = os.fspath(media)
    with open_container(path, wanted="sound") as container:
        rate_hz = audio_stream(container, path).rate
    sound = AudioFormat(rate_hz, max(1, rate_hz // _BLOCKS_HZ))
    source = AudioSource(path, _with_sound(options, sound))
    blocks: list[npt.NDArray[np.int16]] = []
    with closing(source):
        source.open()
        for item in source.items():
            if isinstance(item, Fault) and item.fatal and not blocks:
                raise SourceError(item.message, where=media)
            if isinstance(item, AudioBlock):
                blocks.append(np.clip(np.round(item.samples * 32767), -32768, 32767).astype("<i2"))
    samples = np.concatenate(blocks) if blocks else np.zeros(0, "<i2")
    if options.end_s is not None:
        samples = samples[: round((options.end_s - options.start_s) * rate_hz)]
    if not len(samples):
        raise SourceError("there is no sound at that time", where=media)
    try:
        with target.open("wb") as file, wave.open(file, "wb") as written:
            written.setnchannels(1)
            written.setsampwidth(2)
            written.setframerate(rate_hz)
            written.writeframes(samples.tobytes())
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror})", where=target) from error
    return options.start_s, length_s(target)


def _with_sound(options: SourceOptions, sound: AudioFormat) -> SourceOptions:
    return replace(options, stream=None, sound=sound)


def picture(media: Path, target: Path, options: SourceOptions) -> None:
    """Write the first frame at or after ``options.start_s`` as JPEG. Raises as ``copy_clip``."""
    _, frames = _frames(media, options)
    frame = next(frames, None)
    if frame is None:
        raise SourceError("there are no pictures at that time", where=media)
    height, width = frame.rgb.shape[:2]
    data = jpeg_of(frame.rgb, (width, height), (), ())
    frames.close()  # type: ignore[attr-defined]
    try:
        replace_file(target, data)
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror})", where=target) from error


def length_s(path: Path) -> float:
    """Return the length of a clip by its packets, read back: of its pictures, or its sound.

    Raises OutputError if the file cannot be read.
    """
    try:
        with open_input(f"file:{path}") as container:
            stream = next(iter([*container.streams.video, *container.streams.audio]))
            begin, end, last = None, 0, 0
            for packet in container.demux(stream):
                if packet.pts is not None and packet.size:
                    begin = packet.pts if begin is None else min(begin, packet.pts)
                    last = packet.duration or last
                    end = max(end, packet.pts + (packet.duration or last))
            return float((end - (begin or 0)) * stream.time_base)
    except (av.FFmpegError, OSError, StopIteration, TypeError) as error:
        raise OutputError(f"cannot be read back ({error})", where=path) from error
