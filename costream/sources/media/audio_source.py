"""Audio source: sound of media files and byte streams, decoded with PyAV."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from fractions import Fraction

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Discard

from costream.core.errors import SourceError, display_name
from costream.core.records import AudioBlock, Fault, Item, SourceInfo
from costream.sources.base import SourceOptions, source
from costream.sources.media.audio_decoder import AudioDecoder
from costream.sources.media.block_cutter import AudioBlockCutter
from costream.sources.media.container import open_container
from costream.sources.media.media_source import MediaSource
from costream.sources.media.sound_file import SoundFile, open_raw, open_sound
from costream.sources.media.streams import audio_stream
from costream.sources.media.timing import HEADERLESS, has_time_stamps, origin, time_base

# Decoding starts this long before the requested time: codecs and filters need to settle.
SETTLE_S = 1.0
# With less lead they have not settled; the file is then decoded from its beginning.
SETTLED_S = 0.2
_CUT_OFF = "recording(s) in a chained file cut off"
_UNREADABLE = "recording(s) in a chained file that cannot be read"


@source("audio", kind="audio", order=3)
class AudioSource(MediaSource[AudioDecoder]):
    """Sound of a file in blocks of one model step; tolerates damaged files.

    Time is the clock of the container, as in VideoSource. From the first time stamp on, samples are
    counted. Samples that are missing by the stamps become silence (up to half a second) or a Gap,
    after which the blocks restart. ``options.sound`` sets rate and block length; ValueError
    without it. From a pipe, each block is yielded as soon as its samples have arrived, which
    costs some speed.
    """

    _sound_file: SoundFile
    _cutter: AudioBlockCutter | None = None
    _first: av.AudioFrame | None = None

    def _prepare(self) -> None:
        if self._options.sound is None:
            raise ValueError("options.sound is missing")
        self._sound = self._options.sound
        self._live = bool(self._head)  # from a pipe

    @staticmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return whether the options request sound; the data may be any media."""
        return options.sound is not None and (bool(head) or path is None)

    def open(self) -> SourceInfo:
        """Open the file and decode its first samples; raises SourceError on failure."""
        container, stream = self._open_container()
        self._check_start(self._sound_file.duration_s)
        # From here on use only the returned decoder: the container may have been reopened.
        decoder, origin_s = self._go_to_start(container, stream)
        if self._first is None:
            raise self._no_samples()
        self._check_end(float(decoder.start_s))
        self._cutter = AudioBlockCutter(
            self._first,
            self._sound,
            self._options,
            self._where,
            live=self._live,
            time_s=decoder.start_s,
            origin_s=origin_s,
        )
        return SourceInfo(
            name=display_name(os.path.basename(self._uri)),
            uri=self._where,
            kind="audio",
            duration_s=self._sound_file.duration_s,
            rate_hz=self._sound.rate_hz / self._sound.block,
            live=self._live,
            assumed=self._sound_file.assumed,
        )

    def items(self) -> Iterator[Item]:
        """Yield AudioBlock, Gap and Fault items; a fatal Fault if the rest is lost."""
        for item in self._items():
            if self._stopped or self._decoder is None:
                return
            if isinstance(item, AudioBlock):
                yield from self._damage.report(item.time_s, True)
            yield item

    def _forget(self) -> None:
        self._first = self._cutter = None

    def _items(self) -> Iterator[Item]:
        decoder, cutter, first = self._decoder, self._cutter, self._first
        if decoder is None or cutter is None or first is None:
            return
        self._first = None
        fatal = None
        try:
            yield from cutter.take(first, None)
            fatal = yield from self._rest(decoder, cutter)
        except SourceError as error:  # the format changed to an unusable one
            fatal = str(error)
        yield from cutter.finish()
        yield from self._damage.flush()
        end_s = (self._decoder or decoder).clock.next_s
        if remark := self._sound_file.remark():
            yield Fault(end_s, remark, count=0)
        if fatal is not None:
            yield Fault(end_s, fatal, fatal=True)

    def _rest(
        self, decoder: AudioDecoder, cutter: AudioBlockCutter
    ) -> Generator[Item, None, str | None]:
        """Yield the items up to the requested end; return the reason if the rest is lost."""
        while True:
            for frame, jump in decoder.frames:
                yield from cutter.take(frame, jump)
                if cutter.ended:
                    return None
            following = None if self._stopped else self._next_recording(decoder)
            if following is None:
                return decoder.fatal
            decoder = following

    def _next_recording(self, decoder: AudioDecoder) -> AudioDecoder | None:
        """Return the decoder of the next recording in a chained file that can be opened, if any."""
        begin_s = decoder.clock.next_time
        while self._parts:
            part = self._parts.pop(0)
            try:
                container = open_container(self._uri, wanted="sound", part=part)
                stream = audio_stream(container, self._uri)
            except SourceError:
                self._damage.add(_UNREADABLE, float(begin_s))
                continue
            decoder.close()
            if self._container is not None:
                self._container.close()
            self._container = container
            if decoder.fatal is not None:
                self._damage.add(_CUT_OFF, float(begin_s))
            length = (stream.duration or 0) * time_base(stream)
            following = AudioDecoder(
                container,
                stream,
                self._damage,
                self._options.start_s,
                float(begin_s + length),
                begin_s=begin_s,
            )
            self._begin(following)
            return following
        return None

    def _open_container(self) -> tuple[InputContainer, AudioStream]:
        self.close()
        if self._options.raw is not None:
            self._sound_file = open_raw(self._uri, self._file, self._options.raw)
        else:
            verify = self._options.tls_verify
            self._sound_file = open_sound(self._uri, self._file, self._head, tls_verify=verify)
        self._parts = [*self._sound_file.rest]
        container, stream = self._sound_file.container, self._sound_file.stream
        self._container = container
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
        damage = self._replace_decoder()
        stated_s = self._sound_file.stated_s
        decoder = AudioDecoder(container, stream, damage, self._options.start_s, stated_s)
        self._begin(decoder)
        first = next(decoder.frames, None)
        self._first = None if first is None else first[0]
        return decoder

    def _can_seek(self, container: InputContainer) -> bool:
        name = container.format.name
        plain = f"pcm_{name}" in av.codecs_available  # any byte leads to a sample
        stamped = has_time_stamps(container) and name not in HEADERLESS
        return self._file is None and (plain or stamped) and not self._sound_file.rest

    def _no_samples(self) -> SourceError:
        what = "the sound cannot be decoded" if self._damage.total else "it contains no samples"
        return self._nothing("stopped before any sound was read", what)
