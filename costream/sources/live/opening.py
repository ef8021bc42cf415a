"""Opening of a feed and choice of its streams."""

from __future__ import annotations

import time
from dataclasses import replace

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Discard
from av.video.stream import VideoStream

from costream.core.errors import SourceError, display_name
from costream.core.pyav import open_input
from costream.sources.base import ConnectionOptions, DecoderChoice, SourceOptions
from costream.sources.live.address import Address, address_of, scheme_of
from costream.sources.live.failures import (
    HTTP_SCHEMES,
    UNVERIFIED,
    ConnectionFailedError,
    ConnectionFailure,
    opening_failure,
)
from costream.sources.live.recent_packets import PLAYLISTS
from costream.sources.media.hardware import acceleration, check_stream
from costream.sources.media.streams import audio_stream, video_stream, video_streams
from costream.sources.media.tls import certificate_problem


def open_feed(
    uri: str, connecting: ConnectionOptions, decoder: DecoderChoice, *, probing: bool = False
) -> InputContainer:
    """Open a feed; raise ConnectionFailedError with the reason if that fails.

    ``probing``: as for ``address_of``.
    """
    address = address_of(uri, connecting, probing=probing)
    before_s = time.monotonic()
    try:
        container = _opened(address, decoder)
    except (av.FFmpegError, OSError, ValueError) as error:
        waited_s = time.monotonic() - before_s
        pictures = None
        if isinstance(error, av.InvalidDataError) and scheme_of(uri) in HTTP_SCHEMES:
            pictures = _as_jpegs(address, decoder)
        if pictures is not None:
            return pictures
        problem = certificate_problem(uri) if connecting.tls_verify else ""
        if problem:
            raise ConnectionFailedError(ConnectionFailure(problem, refused=True)) from error
        raise ConnectionFailedError(
            opening_failure(error, uri, waited_s, connecting.timeout_s)
        ) from error
    if connecting.tls_verify and container.format.name in PLAYLISTS:
        container.close()
        raise ConnectionFailedError(ConnectionFailure(UNVERIFIED, refused=True))
    return container


def _opened(address: Address, decoder: DecoderChoice) -> InputContainer:
    return open_input(
        address.file,
        format=address.format,
        options=address.options,
        timeout=(address.open_s, address.read_s),
        hwaccel=acceleration(decoder),
    )


def _as_jpegs(address: Address, decoder: DecoderChoice) -> InputContainer | None:
    """Open a stream as JPEGs among other bytes; None if it has none.

    Old firmware of ESP32 and Tasmota omits the first boundary between JPEGs, or its dashes, so that
    FFmpeg does not recognise the stream.
    """
    try:
        container = _opened(replace(address, format="mjpeg"), decoder)
    except (av.FFmpegError, OSError, ValueError):
        return None
    if container.streams.video and container.streams.video[0].width:
        return container
    container.close()
    return None


def choose_stream(
    container: InputContainer, options: SourceOptions, uri: str
) -> VideoStream | AudioStream:
    """Return the requested stream; raise ConnectionFailedError if it is missing."""
    sound, decoder = options.sound is not None, options.decoder
    try:
        if sound:
            return audio_stream(container, "")
        stream = video_stream(container, "", options.stream)
        check_stream(stream, decoder, uri)
        return stream
    except SourceError as error:
        found = container.streams.audio if sound else container.streams.video
        undecodable = any(stream.codec_context is None for stream in found)
        chosen = options.stream is not None and bool(video_streams(container))
        message = str(error).removeprefix(f"{display_name(uri)}: ").removeprefix(": ")
        refused = undecodable or chosen or (bool(found) and decoder == "hardware")
        raise ConnectionFailedError(ConnectionFailure(message, refused=refused)) from error


def sizes_are_known(container: InputContainer) -> bool:
    """Return whether the sizes of the video streams are known, if there are several."""
    streams = video_streams(container)
    return len(streams) < 2 or all(stream.width for stream in streams)


def discard_others(
    container: InputContainer, stream: VideoStream | AudioStream, sound: AudioStream | None
) -> None:
    """Do not read other video than ``stream``, and with HLS no other playlists."""
    hls = container.format.name == "hls"
    kept = {s.id for s in (stream, sound) if s is not None}  # numbers of the playlists
    for other in container.streams:
        variant = hls and other.id not in kept
        if other is not stream and (variant or (other.type == stream.type == "video")):
            other.discard = Discard.all


def sound_stream(
    container: InputContainer, stream: VideoStream | AudioStream
) -> tuple[AudioStream | None, str]:
    """Return the sound that belongs to a stream, or None and the reason.

    With HLS it is from the same playlist.
    """
    try:
        first = audio_stream(container, "")
    except SourceError as error:
        return None, str(error).removeprefix(": ")
    same = (s for s in container.streams.audio if s.id == stream.id and s.codec_context is not None)
    return next(same, first) if container.format.name == "hls" else first, ""
