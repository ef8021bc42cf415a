"""Audio source: sound of media files and byte streams, decoded with PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Discard

from costream.clock import format_time
from costream.errors import SourceError
from costream.records import AudioBlock, Fault, Item, SourceInfo
from costream.sources.base import SourceOptions
from costream.sources.media.audio_decoder import AudioDecoder
from costream.sources.media.container import (
    HEADERLESS,
    NO_TIME_STAMPS,
    Readable,
    audio_stream,
    display_name,
    end_s,
    length_is_guessed,
    not_media,
    open_container,
    open_raw,
    origin,
    stated_end_s,
    time_base,
    wav_seconds,
)
from costream.sources.media.packets import DecodeErrors
from costream.sources.media.resample import AudioBlockCutter

# Decoding starts this long before the requested time: codecs and filters need to settle.
SETTLE_S = 1.0
# With less lead than this they have not settled; the file is then decoded from its beginning.
SETTLED_S = 0.2


class AudioSource:
    """Sound of a file in blocks of one model step; tolerates damaged files.

    Time is the container's own clock, as in VideoSource. From the first time stamp on, samples are
    counted; where stamps show missing samples there is silence (up to half a second) or a Gap,
    after which the blocks restart. ``errors`` counts the errors found so far.
    """

    def __init__(
        self,
        path: str,
        options: SourceOptions,
        *,
        file: Readable | None = None,
        head: bytes = b"",
        live: bool = False,
    ) -> None:
        """``options.sound`` sets rate and block length; ValueError without it.

        ``file``: read this instead of the file ``path``; ``head``: its start if it is a pipe.
        ``live``: yield each block as soon as its samples have arrived, at some cost.
        """
        if options.sound is None:
            raise ValueError("options.sound is missing")
        self._path = path
        self._options = options
        self._sound = options.sound
        self._file = file
        self._head = head
        self._live = live
        self._stopped = False
        self._damage = DecodeErrors()
        self._container: InputContainer | None = None
        self._decoder: AudioDecoder | None = None
        self._cutter: AudioBlockCutter | None = None
        self._first: av.AudioFrame | None = None

    @property
    def errors(self) -> int:
        """Number of errors found so far."""
        return self._damage.total

    def open(self) -> SourceInfo:
        """Open the file and decode its first samples; raises SourceError on failure."""
        container, stream = self._open_container()
        guessed = length_is_guessed(container, stream)
        duration_s = None if guessed else end_s(container, stream)
        if duration_s is not None and self._options.start_s > duration_s:
            raise SourceError(
                f"the start ({format_time(self._options.start_s)}) is after the end "
                f"({format_time(duration_s)})",
                where=display_name(self._path),
            )
        # From here on use only the returned decoder: the container may have been reopened.
        decoder, origin_s = self._go_to_start(container, stream)
        if self._first is None:
            raise self._no_samples(decoder)
        where = display_name(self._path)
        self._cutter = AudioBlockCutter(
            self._first,
            self._sound,
            self._options,
            where,
            live=self._live,
            time_s=decoder.start_s,
            origin_s=origin_s,
        )
        return SourceInfo(
            name=display_name(os.path.basename(self._path)),
            uri=where,
            kind="audio",
            duration_s=duration_s,
            rate_hz=self._sound.rate_hz / self._sound.block,
            live=self._live,
        )

    def items(self) -> Iterator[Item]:
        """Yield AudioBlock, Gap and Fault items; a fatal Fault if the rest is lost."""
        for item in self._items():
            if self._stopped or self._decoder is None:
                return
            if isinstance(item, AudioBlock):
                fault = self._damage.report(item.time_s, True)
                if fault is not None:
                    yield fault
            yield item

    def stop(self) -> None:
        """End ``items`` soon; safe in a signal handler."""
        self._stopped = True
        if self._decoder is not None:
            self._decoder.stop()

    def close(self) -> None:
        """Close the file. Blocks already yielded stay usable."""
        # PyAV does not check for a closed container: no reader may remain.
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None
        self._first = self._cutter = None
        if self._container is not None:
            self._container.close()
            self._container = None

    def _items(self) -> Iterator[Item]:
        decoder, cutter, first = self._decoder, self._cutter, self._first
        if decoder is None or cutter is None or first is None:
            return
        self._first = None
        fatal = None
        try:
            yield from cutter.take(first, None)
            for frame, jump in decoder.frames:
                yield from cutter.take(frame, jump)
                if cutter.ended:
                    break
            else:
                fatal = decoder.fatal
        except SourceError as error:  # the format changed to an unusable one
            fatal = str(error)
        yield from cutter.finish()
        fault = self._damage.flush()
        if fault is not None:
            yield fault
        if fatal is not None:
            yield Fault(decoder.clock.next_s, fatal, fatal=True)

    def _open_container(self) -> tuple[InputContainer, AudioStream]:
        self.close()
        if self._options.raw is not None and self._file is not None:
            container = open_raw(self._path, self._file, self._options.raw)
        else:
            container = open_container(self._path, self._file, self._head, wanted="sound")
        self._container = container
        stream = audio_stream(container, self._path)
        stream.codec_context.thread_count = 1
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all  # not even read, if the format allows it
        return container, stream

    def _go_to_start(
        self, container: InputContainer, stream: AudioStream
    ) -> tuple[AudioDecoder, Fraction]:
        """Decode the first samples, from well before the start; also return the stream's start.

        If seeking fails, the file is decoded from its beginning: slow but exact.
        """
        start_s = self._options.start_s
        if start_s > SETTLE_S and self._can_seek(container):
            ticks = AudioDecoder(container, stream, self._damage, start_s).clock.ticks
            began_s = (stream.start_time or 0) * time_base(stream) - origin(container, stream)
            try:
                container.seek(ticks(start_s - SETTLE_S), stream=stream)
            except av.FFmpegError:
                pass
            else:
                decoder = self._decode(container, stream)
                if self._first is not None and decoder.start_s <= start_s - SETTLED_S:
                    return decoder, began_s
            container, stream = self._open_container()
        decoder = self._decode(container, stream)
        return decoder, decoder.start_s

    def _decode(self, container: InputContainer, stream: AudioStream) -> AudioDecoder:
        """Start decoding at the current position, up to the first samples."""
        if self._decoder is not None:
            self._decoder.close()
        self._damage = DecodeErrors()  # errors of an earlier attempt are found again
        stated_s = stated_end_s(container, stream)
        if self._file is None:
            stated_s = wav_seconds(self._path) or stated_s
        decoder = AudioDecoder(container, stream, self._damage, self._options.start_s, stated_s)
        self._decoder = decoder
        if self._stopped:
            decoder.stop()
        first = next(decoder.frames, None)
        self._first = None if first is None else first[0]
        return decoder

    def _can_seek(self, container: InputContainer) -> bool:
        flags, name = container.format.flags, container.format.name
        return self._file is None and name not in HEADERLESS and not flags & NO_TIME_STAMPS

    def _no_samples(self, decoder: AudioDecoder) -> SourceError:
        where = display_name(self._path)
        if self._stopped:
            return SourceError("stopped before any sound was read", where=where)
        if self._head[4:8] == b"ftyp":  # a short MP4 opens, but its sound has been read past
            return not_media(self._path, False, self._head, None)
        if self._damage.total:
            return SourceError("the sound cannot be decoded", where=where, hint=decoder.fatal)
        return SourceError("there are no samples in it", where=where, hint=decoder.fatal)
