"""One connection to a live feed, from its opening to its loss."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from costream.errors import SourceError
from costream.sources.base import ConnectionOptions
from costream.sources.halt import StopEvent
from costream.sources.live.address import address_of
from costream.sources.losses import (
    ENDED,
    STALLED,
    ConnectionFailedError,
    ConnectionFailure,
    opening_failure,
    reading_failure,
)
from costream.sources.media.container import audio_stream, video_stream

# Timeout factor for the first frame, which may take longer: keyframes are rare.
FIRST = 3


class FeedConnection:
    """An open container and the requested stream in it, used by one thread only.

    After the last packet, ``loss`` is the reason why there are no more; ``begun_s`` is the
    ``time.monotonic()`` at which the first one arrived.
    """

    def __init__(
        self,
        uri: str,
        connecting: ConnectionOptions,
        halt: StopEvent,
        began_s: float,
        *,
        sound: bool,
    ) -> None:
        """Connect or raise LostError. ``began_s``: the zero of the keeper's times."""
        self._uri = uri
        self._connecting = connecting
        self._halt = halt
        self._began_s = began_s
        self._sound = sound
        self.loss = ConnectionFailure(ENDED)
        self.container = _open(uri, connecting)
        try:
            self.stream = _choose(self.container, sound)
            if connecting.keeper is not None:
                connecting.keeper.begin(self.container)
        except BaseException:
            self.container.close()
            raise
        self._patience_s = FIRST * connecting.timeout_s
        self._alive_s = self.begun_s = time.monotonic()

    def alive(self) -> None:
        """Reset the timeout after a successful decode."""
        self._patience_s = self._connecting.timeout_s
        self._alive_s = time.monotonic()

    def packets(self) -> Iterator[Packet[Any] | None]:
        """Yield the packets of the stream from its first keyframe on; the last ones are empty."""
        begun, before_s = False, time.monotonic()
        try:
            for packet in self.container.demux():
                if self._halt.told:
                    return
                if packet.size:
                    self._keep(packet)
                    now_s = time.monotonic()
                    if now_s - self._alive_s > self._patience_s:
                        self.loss = self._silence(now_s - self._alive_s, now_s - before_s)
                        break
                    before_s = now_s
                if packet.stream is self.stream:
                    if not begun and (self._sound or packet.is_keyframe):
                        begun, self.begun_s = True, time.monotonic()
                    if begun:
                        yield packet
        except IndexError:  # PyAV, when a new stream appears
            self.loss = ConnectionFailure("the streams in it have changed")
        except av.FFmpegError as error:
            self.loss = reading_failure(error, self._uri, self._connecting.timeout_s)
        if begun:
            yield None  # flush the decoder

    def close(self) -> None:
        """Close the connection."""
        self.container.close()

    def _silence(self, silent_s: float, waited_s: float) -> ConnectionFailure:
        """Return why nothing could be decoded; ``waited_s``: the wait for the newest packet."""
        if waited_s > silent_s / 2:  # the rest of earlier data
            return ConnectionFailure(STALLED.format(self._connecting.timeout_s))
        what = "sound" if self._sound else "frame"
        return ConnectionFailure(f"data arrive, but no {what} for {silent_s:.0f} s")

    def _keep(self, packet: Packet[Any]) -> None:
        if self._connecting.keeper is not None:
            self._connecting.keeper.add(packet, time.monotonic() - self._began_s)


def _open(uri: str, connecting: ConnectionOptions) -> InputContainer:
    address = address_of(uri, connecting)
    before_s = time.monotonic()
    try:
        return av.open(
            address.file,
            mode="r",
            format=address.format,
            metadata_errors="replace",
            options=address.options,
            timeout=(address.open_s, address.read_s),
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        waited_s = time.monotonic() - before_s
        raise ConnectionFailedError(
            opening_failure(error, uri, waited_s, connecting.timeout_s)
        ) from error


def _choose(container: InputContainer, sound: bool) -> VideoStream | AudioStream:
    """Return the requested stream; raises LostError if there is none."""
    try:
        return audio_stream(container, "") if sound else video_stream(container, "")
    except SourceError as error:
        found = container.streams.audio if sound else container.streams.video
        undecodable = any(stream.codec_context is None for stream in found)
        message = str(error).removeprefix(": ")
        raise ConnectionFailedError(ConnectionFailure(message, fatal=undecodable)) from error
