"""Video source: frames of files and byte streams, decoded with PyAV."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.core.errors import SourceError, display_name
from costream.core.records import Fault, Item, SourceInfo, VideoFrame
from costream.sources.base import SAME_TIME_S, SourceOptions, source
from costream.sources.media.container import open_container
from costream.sources.media.hardware import acceleration, check_stream
from costream.sources.media.lazy_image import Framer, Orientation, display_size
from costream.sources.media.media_source import MediaSource
from costream.sources.media.prefetch import Prefetcher
from costream.sources.media.streams import choice_remark, video_stream
from costream.sources.media.timing import end_s, has_rate, has_time_stamps
from costream.sources.media.video_decoder import OTHER_SIZE, DecodedFrame, VideoDecoder

# Distances before the start to seek to; the second is for when the nearest keyframe fails.
SEEK_BACK_S = (0.0, 10.0)
# Limits of decoding in advance.
PREFETCH_FRAMES = 16
PREFETCH_BYTES = 32 << 20
# A picture that is held for up to _HELD_S is repeated at least every _AGAIN_S.
_HELD_S, _AGAIN_S = 10.0, 0.5


@source("video", kind="video", order=5)
class VideoSource(MediaSource[VideoDecoder]):
    """Frames of a video in time order; tolerates damaged files.

    Time is the clock of the container: a stream that starts late keeps its offset. The clock of
    transport and program streams starts anywhere, so their times count from the earliest stream,
    as in players.

    Frames are numbered from 0 at the first one yielded. ``motion`` is in pixels of the stored
    frame, neither scaled nor rotated. ``errors`` counts the errors found so far: packets that
    cannot be decoded and frames that the decoder flags.
    """

    _stream: VideoStream | None = None
    _first: DecodedFrame | None = None
    _second: DecodedFrame | None = None  # if open had to find out whether there is one
    _prefetcher: Prefetcher[Item] | None = None

    def _prepare(self) -> None:
        self._framer = Framer(self._options)
        self._rated = True

    @staticmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return True for all data: what no other source reads is tried as video."""
        return bool(head) or path is None

    def open(self) -> SourceInfo:
        """Open the file and decode its first frame; raises SourceError on failure."""
        self._rated = has_rate(self._uri, self._file, self._head)
        container, stream = self._open_container()
        duration_s = end_s(container, stream) if self._rated else None
        choice = "" if self._options.stream else choice_remark(container)
        self._check_start(duration_s)
        # From here on use only the decoder's stream: the container may have been reopened.
        first, decoder = self._go_to_start(container, stream)
        self._check_end(first.time_s)
        stream = decoder.stream
        size = display_size(first.picture, stream.sample_aspect_ratio)
        try:
            self._frame(0, first).convert()
        except (av.FFmpegError, ValueError) as error:
            raise SourceError(
                f"frames of the format {first.picture.format.name} cannot be converted ({error})",
                where=self._where,
            ) from error
        return SourceInfo(
            name=display_name(os.path.basename(self._uri)),
            uri=self._where,
            kind="video",
            duration_s=duration_s,
            rate_hz=decoder.rate_hz,
            size=Orientation.of(first.picture).turn(size),
            assumed=(*filter(None, [choice]), *self._assumed(decoder)),
        )

    def _assumed(self, decoder: VideoDecoder) -> tuple[str, ...]:
        """Return remarks on the frame rate; a single picture has none."""
        if decoder.stamped:
            return ("it has time stamps: --input-fps is ignored",) * bool(self._options.input_hz)
        self._second = next(decoder.frames, None)
        if self._second is None or not decoder.assumes_rate:
            return ()
        rate = f"{decoder.rate_hz:g} frames a second assumed"
        return (f"no time stamps: {rate}; set it with --input-fps",)

    def items(self) -> Iterator[Item]:
        """Yield VideoFrame items, Faults after errors, and a fatal one if the rest is lost."""
        if not self._options.prefetch or self._file is not None or self._first is None:
            return self._read()  # a thread that waits for a pipe could not be ended
        picture = self._first.picture
        size = max(1, picture.width * picture.height * 3 // 2)  # of most formats
        self._prefetcher = Prefetcher(
            self._read(), max(2, min(PREFETCH_FRAMES, PREFETCH_BYTES // size))
        )
        return self._prefetcher

    def close(self) -> None:
        """Close the file. Items already yielded stay usable."""
        if self._prefetcher is not None:  # its thread uses the decoder
            self.stop()
            self._prefetcher.close()
            self._prefetcher = None
        super().close()

    def _read(self) -> Iterator[Item]:
        decoder, options = self._decoder, self._options
        if decoder is None:
            return
        i, sizes = 0, set[tuple[int, int] | None]()
        held: VideoFrame | None = None
        end = float("inf") if options.end_s is None else options.end_s - SAME_TIME_S
        for decoded in self._pictures():
            if self._stopped or decoded.time_s >= end:
                break
            if decoded.time_s < options.start_s - SAME_TIME_S and options.start_s > 0:
                continue
            yield from self._damage.report(decoded.time_s, not decoded.picture.is_corrupt)
            if i == 0:
                decoder.begin_ticks(decoded.time_s)
            frame = self._frame(i, decoded)
            if frame.size not in sizes:
                if sizes:  # report each size once: some streams alternate
                    yield Fault(frame.time_s, OTHER_SIZE.format(*frame.size or (0, 0)), count=0)
                sizes.add(frame.size)
            yield from self._held(held, decoded.time_s)
            yield frame
            held, i = frame, i + 1
        yield from self._damage.flush()
        if decoder.fatal is not None:
            yield Fault(decoder.clock.last_s, decoder.fatal, fatal=True)

    def _held(self, frame: VideoFrame | None, until_s: float) -> Iterator[VideoFrame]:
        """Yield a frame that is shown for long again and again, until the next one.

        In MP4 and MOV a frame lasts until the next (ISO/IEC 14496-12, 8.6.1.2): screen recorders
        store one frame for a still picture. In other containers a pause is missing data.
        """
        if frame is None or self._container is None or until_s - frame.time_s > _HELD_S:
            return
        if "mp4" in self._container.format.name.split(","):
            count = math.ceil((until_s - frame.time_s) / _AGAIN_S)
            for k in range(1, count):
                yield replace(frame, time_s=frame.time_s + k * (until_s - frame.time_s) / count)

    def _forget(self) -> None:
        self._first = self._second = self._stream = None

    def _open_container(self) -> tuple[InputContainer, VideoStream]:
        self.close()
        choice = self._options.decoder
        container = open_container(
            *(self._uri, self._file, self._head),
            hardware=acceleration(choice),
            tls_verify=self._options.tls_verify,
        )
        self._container = container
        stream = self._stream = video_stream(container, self._uri, self._options.stream)
        check_stream(stream, choice, self._uri)
        self._framer.prepare(stream)
        return container, stream

    def _go_to_start(
        self, container: InputContainer, stream: VideoStream
    ) -> tuple[DecodedFrame, VideoDecoder]:
        """Seek to the start or before it; return the first frame there, and its decoder.

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
                decoder = self._decode(container, stream)
                if self._first is not None and self._first.time_s <= start_s + SAME_TIME_S:
                    return self._first, decoder
            container, stream = self._open_container()
        decoder = self._decode(container, stream)
        if self._first is None:
            raise self._nothing("stopped before a frame was read", "no frame can be decoded")
        return self._first, decoder

    def _can_seek(self, container: InputContainer) -> bool:
        return self._file is None and has_time_stamps(container) and self._rated

    def _decode(self, container: InputContainer, stream: VideoStream) -> VideoDecoder:
        """Start decoding at the current position, up to the first frame."""
        damage = self._replace_decoder()
        # Motion vectors are needed of every frame.
        sampled_hz = None if self._options.motion_vectors else self._options.sampled_hz
        decoder = VideoDecoder(
            container,
            stream,
            damage,
            self._options.start_s,
            sampled_hz=sampled_hz,
            input_hz=self._options.input_hz,
            rated=self._rated,
        )
        self._begin(decoder)
        self._first = next(decoder.frames, None)
        return decoder

    def _pictures(self) -> Iterator[DecodedFrame]:
        """Yield the first frames, which ``open`` has decoded, and then the others."""
        if self._decoder is None or self._first is None:
            return
        pictures, begun = self._decoder.frames, [self._first, self._second]
        self._first = self._second = None
        yield from filter(None, begun)
        yield from pictures

    def _frame(self, i: int, decoded: DecodedFrame) -> VideoFrame:
        aspect = self._stream.sample_aspect_ratio if self._stream is not None else None
        return self._framer.frame(i, decoded, aspect)
