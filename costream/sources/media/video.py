"""Video source: frames of files and byte streams, decoded with PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterator

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.clock import format_time
from costream.errors import SourceError
from costream.records import Fault, Item, SourceInfo, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.container import (
    NO_TIME_STAMPS,
    Readable,
    display_name,
    end_s,
    not_media,
    open_container,
    video_stream,
)
from costream.sources.media.packets import DecodeErrors
from costream.sources.media.picture import Framer, Orientation, display_size
from costream.sources.media.video_decoder import DecodedFrame, VideoDecoder

# Times within half of Matroska's resolution are equal: "--start 0.067" selects the frame there.
SAME_TIME_S = 0.5e-3
# Distances before the start to seek to; the second is for when the nearest keyframe fails.
SEEK_BACK_S = (0.0, 10.0)


class VideoSource:
    """Frames of a video in time order; tolerates damaged files.

    Time is the container's own clock, so a stream that starts late keeps its offset. Transport
    and program streams, whose clock starts anywhere, count from their earliest stream instead,
    as in players; otherwise ``--start`` would be meaningless there.

    Frames are numbered from 0 at the first one yielded. ``motion`` is in pixels of the stored
    frame, neither scaled nor rotated. ``errors`` counts the errors found so far: packets that
    cannot be decoded and frames that the decoder flags.
    """

    def __init__(
        self,
        path: str,
        options: SourceOptions | None = None,
        *,
        file: Readable | None = None,
        head: bytes = b"",
    ) -> None:
        """``file``: read this instead of the file ``path``; ``head``: its start if it is a pipe."""
        self._path = path
        self._options = options or SourceOptions()
        self._file = file
        self._head = head
        self._stopped = False
        self._damage = DecodeErrors()
        self._framer = Framer(self._options)
        self._container: InputContainer | None = None
        self._stream: VideoStream | None = None
        self._decoder: VideoDecoder | None = None
        self._first: DecodedFrame | None = None

    @property
    def errors(self) -> int:
        """Number of errors found so far."""
        return self._damage.total

    def open(self) -> SourceInfo:
        """Open the file and decode its first frame; raises SourceError on failure."""
        container, stream = self._open_container()
        duration_s = end_s(container, stream)
        if duration_s is not None and self._options.start_s > duration_s:
            raise SourceError(
                f"the start ({format_time(self._options.start_s)}) is after the end "
                f"({format_time(duration_s)})",
                where=display_name(self._path),
            )
        # From here on use only the returned stream: the container may have been reopened.
        first, stream = self._go_to_start(container, stream)
        rate = stream.average_rate or stream.guessed_rate
        size = display_size(first.picture, stream.sample_aspect_ratio)
        try:
            self._frame(0, first).convert()
        except (av.FFmpegError, ValueError) as error:
            raise SourceError(
                f"frames of the format {first.picture.format.name} cannot be converted ({error})",
                where=display_name(self._path),
            ) from error
        return SourceInfo(
            name=display_name(os.path.basename(self._path)),
            uri=display_name(self._path),
            kind="video",
            duration_s=duration_s,
            rate_hz=float(rate) if rate else None,
            size=Orientation.of(first.picture).turn(size),
        )

    def items(self) -> Iterator[Item]:
        """Yield VideoFrame items, Faults after errors, and a fatal one if the rest is lost."""
        decoder, options = self._decoder, self._options
        if decoder is None:
            return
        i = 0
        end = float("inf") if options.end_s is None else options.end_s - SAME_TIME_S
        for decoded in self._pictures():
            if self._stopped or decoded.time_s >= end:
                break
            if decoded.time_s < options.start_s - SAME_TIME_S and options.start_s > 0:
                continue
            fault = self._damage.report(decoded.time_s, not decoded.picture.is_corrupt)
            if fault is not None:
                yield fault
            yield self._frame(i, decoded)
            i += 1
        fault = self._damage.flush()
        if fault is not None:
            yield fault
        if decoder.fatal is not None:
            yield Fault(decoder.clock.last_s, decoder.fatal, fatal=True)

    def stop(self) -> None:
        """End ``items`` soon; safe in a signal handler."""
        self._stopped = True
        if self._decoder is not None:
            self._decoder.stop()

    def close(self) -> None:
        """Close the file. Frames already yielded stay usable."""
        # PyAV does not check for a closed container: no reader may remain.
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None
        self._first = None
        if self._container is not None:
            self._container.close()
            self._container = self._stream = None

    def _open_container(self) -> tuple[InputContainer, VideoStream]:
        self.close()
        container = open_container(self._path, self._file, self._head)
        self._container = container
        stream = self._stream = video_stream(container, self._path)
        self._framer.prepare(stream)
        return container, stream

    def _go_to_start(
        self, container: InputContainer, stream: VideoStream
    ) -> tuple[DecodedFrame, VideoStream]:
        """Seek to the start or before it; return the first frame there, and its stream.

        In an intact file a seek lands on a keyframe at or before the start. If it does not, the
        file is decoded from its beginning: slow but exact.
        """
        start_s = self._options.start_s
        if start_s > 0 and self._can_seek(container):
            for back_s in SEEK_BACK_S:
                clock = VideoDecoder(container, stream, self._damage, start_s).clock
                try:
                    container.seek(clock.ticks(start_s - back_s), stream=stream)
                except av.FFmpegError:
                    break
                first = self._decode(container, stream)
                if first is not None and first.time_s <= start_s + SAME_TIME_S:
                    return first, stream
            container, stream = self._open_container()
        first = self._decode(container, stream)
        if first is None:
            raise self._no_picture()
        return first, stream

    def _no_picture(self) -> SourceError:
        if self._stopped:
            return SourceError("stopped before a frame was read", where=display_name(self._path))
        if self._head[4:8] == b"ftyp":  # a short MP4 opens, but its frames have been read past
            return not_media(self._path, False, self._head, None)
        reason = None if self._decoder is None else self._decoder.fatal
        return SourceError("no frame can be decoded", where=display_name(self._path), hint=reason)

    def _can_seek(self, container: InputContainer) -> bool:
        return self._file is None and not container.format.flags & NO_TIME_STAMPS

    def _decode(self, container: InputContainer, stream: VideoStream) -> DecodedFrame | None:
        """Start decoding at the current position; return the first frame."""
        if self._decoder is not None:
            self._decoder.close()
        self._damage = DecodeErrors()  # errors of an earlier attempt are found again
        self._decoder = VideoDecoder(container, stream, self._damage, self._options.start_s)
        if self._stopped:
            self._decoder.stop()
        self._first = next(self._decoder.pictures, None)
        return self._first

    def _pictures(self) -> Iterator[DecodedFrame]:
        """Yield the first frame, which ``open`` has decoded, and then the others."""
        if self._decoder is None or self._first is None:
            return
        pictures, first, self._first = self._decoder.pictures, self._first, None
        yield first
        yield from pictures

    def _frame(self, i: int, decoded: DecodedFrame) -> VideoFrame:
        aspect = self._stream.sample_aspect_ratio if self._stream is not None else None
        return self._framer.frame(i, decoded, aspect)
