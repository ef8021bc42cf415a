"""Opening of the sound of a file whose header may state a wrong length."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import islice

import av
from av.audio.stream import AudioStream
from av.container import InputContainer

from costream.core.errors import SourceError, UsageError, display_name
from costream.core.pyav import open_input
from costream.core.records import RawAudioFormat
from costream.sources.media.chained_ogg import recordings_of
from costream.sources.media.container import guessed_by_content, open_container
from costream.sources.media.input_file import Readable
from costream.sources.media.packet_decoder import CUT_OFF_S
from costream.sources.media.piped_wav import PipedWav, is_wav
from costream.sources.media.samples import Samples, find_samples
from costream.sources.media.streams import audio_stream
from costream.sources.media.timing import end_s, length_is_guessed, stated_end_s, time_base

# Formats whose header states the length a second time, which FFmpeg uses.
_TWICE = ("aiff", "au")
CHAINED = "{} recordings follow each other in this chained Ogg file, read as one"
GOES_ON = "its header states {:.3f} s, but the sound continues: read to the end"


@dataclass(frozen=True)
class SoundFile:
    """The opened sound of a file."""

    container: InputContainer
    stream: AudioStream
    duration_s: float | None = None  # None: unknown
    stated_s: float | None = None  # end stated in the header, if reliable
    assumed: tuple[str, ...] = ()  # see SourceInfo
    piped: PipedWav | None = None
    rest: tuple[tuple[int, int], ...] = ()  # bytes of further recordings in a chained file

    def remark(self) -> str | None:
        """Return a remark for the end of the sound, or None."""
        if self.piped is None or not self.piped.goes_on or self.stated_s is None:
            return None
        return GOES_ON.format(self.stated_s)


def open_sound(
    path: str, file: Readable | None = None, head: bytes = b"", *, tls_verify: bool = False
) -> SoundFile:
    """Open the sound of a file, a URL, or of ``file``; raises as ``open_container``.

    Most headers store sizes in 32 bits, and some recorders continue after 4 GB: sound after the
    stated end is read too.
    """
    if file is not None and is_wav(file, head):
        return _open_piped(path, PipedWav(file), head)
    samples = find_samples(path) if file is None else None
    # FFmpeg would search what follows for chunks, which can take minutes.
    parts = recordings_of(path) if file is None else []
    part = parts[0] if parts else None
    if samples is not None and samples.behind:
        part = (0, samples.begin + (samples.stated or 0))
    container = open_container(path, file, head, wanted="sound", part=part, tls_verify=tls_verify)
    try:
        sound = _by_header(container, audio_stream(container, path))
        if file is not None:
            return sound
        described = replace(sound, assumed=guessed_by_content(path, container))
        if parts:
            assumed = (*described.assumed, CHAINED.format(len(parts)))
            rest = tuple(parts[1:])
            return replace(sound, duration_s=None, assumed=assumed, rest=rest)
        return _with_rest(path, described, samples)
    except BaseException:
        container.close()
        raise


def _open_piped(path: str, file: PipedWav, head: bytes) -> SoundFile:
    container = open_container(path, file, head, wanted="sound")
    try:
        stream = audio_stream(container, path)
    except BaseException:
        container.close()
        raise
    byte_rate = (stream.codec_context.bit_rate or 0) / 8
    end_s = file.stated / byte_rate if file.stated is not None and byte_rate else None
    return SoundFile(container, stream, end_s, end_s, piped=file)


def open_raw(path: str, file: Readable | None, raw: RawAudioFormat) -> SoundFile:
    """Open ``file``, or ``path`` without one, as headerless samples.

    Raises UsageError for an unknown format.
    """
    if f"pcm_{raw.form}" not in av.codecs_available or raw.form not in av.formats_available:
        raise UsageError(
            f"unknown raw audio format {raw.form!r}",
            hint="FFmpeg's names are u8, s16le, s16be, s24le, s32le, f32le, mulaw, ...",
        )
    options = {"sample_rate": str(raw.rate_hz), "ch_layout": f"{raw.channels}c"}
    try:
        name = path if file is None else file
        container = open_input(name, format=raw.form, options=options)
    except (av.FFmpegError, OSError) as error:
        raise SourceError(
            f"cannot be read as {raw.form} ({error})", where=display_name(path)
        ) from error
    return _by_header(container, audio_stream(container, path))


def _by_header(container: InputContainer, stream: AudioStream) -> SoundFile:
    duration_s = None if length_is_guessed(container, stream) else end_s(container, stream)
    return SoundFile(container, stream, duration_s, stated_end_s(container, stream))


def _with_rest(path: str, sound: SoundFile, samples: Samples | None) -> SoundFile:
    """Return the sound of a file including what follows its stated end."""
    name, byte_rate = sound.container.format.name, (sound.stream.codec_context.bit_rate or 0) / 8
    if name == "flac" and os.path.isfile(path) and _goes_on(sound):
        remark = GOES_ON.format(sound.duration_s)
        return replace(sound, duration_s=None, stated_s=None, assumed=(remark,))
    if not os.path.isfile(path):
        return replace(sound, assumed=sound.assumed + _unread_remark(sound, byte_rate))
    if samples is None or samples.stated is None or not byte_rate:
        return sound
    stated_s = samples.stated / byte_rate
    if samples.behind <= CUT_OFF_S * byte_rate:
        return sound if name in _TWICE else replace(sound, stated_s=stated_s)
    container = _open_samples(path, sound.stream, samples.begin)
    sound.container.close()
    return replace(
        _by_header(container, audio_stream(container, path)), assumed=(GOES_ON.format(stated_s),)
    )


def _unread_remark(sound: SoundFile, byte_rate: float) -> tuple[str, ...]:
    """Return a remark on data after the stated end of a file of samples on a web server."""
    codec, duration_s = sound.stream.codec_context.name, sound.duration_s
    if not codec.startswith("pcm_") or len(sound.container.streams) > 1 or duration_s is None:
        return ()
    behind = sound.container.size - int(duration_s * byte_rate)
    if behind <= CUT_OFF_S * byte_rate:
        return ()
    return (
        f"its header states {duration_s:.3f} s; {behind} more bytes are not read: if they are "
        "sound, download the file",
    )


def _goes_on(sound: SoundFile) -> bool:
    """Return whether a FLAC continues after its stated end; seeks in it."""
    container, stream = sound.container, sound.stream
    if sound.duration_s is None:
        return False
    try:
        container.seek(int((sound.duration_s + CUT_OFF_S) / time_base(stream)), stream=stream)
        stamps = [packet.pts for packet in islice(container.demux(stream), 1)]
        container.seek(0, stream=stream)
    except av.FFmpegError:
        return False
    return any(pts is not None and pts * time_base(stream) > sound.duration_s for pts in stamps)


def _open_samples(path: str, stream: AudioStream, begin: int) -> InputContainer:
    """Open the samples of a file from byte ``begin`` to its end, in the format of its stream.

    Raises SourceError if its codec is not plain PCM.
    """
    codec = stream.codec_context
    form = codec.name.removeprefix("pcm_")
    if form == codec.name or form not in av.formats_available:
        raise SourceError(
            f"its header states the end of {codec.name} before the end of the file",
            where=display_name(path),
            hint="export it again with the program that recorded it, in parts below 2 GB",
        )
    options = {"sample_rate": str(codec.sample_rate), "ch_layout": f"{codec.layout.nb_channels}c"}
    options["skip_initial_bytes"] = str(begin)
    return open_input(f"file:{path}", format=form, options=options)
