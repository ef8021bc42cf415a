"""Audiovisual source: video frames and audio blocks of a file in time order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costream.core.clock import format_time
from costream.core.errors import SourceError, reason_of
from costream.core.records import AudioBlock, Fault, Gap, Item, SourceInfo
from costream.sources.base import SourceOptions, source
from costream.sources.file import FileSource
from costream.sources.media.audio_source import AudioSource
from costream.sources.media.video_source import VideoSource


@source("audiovisual", kind="video", order=4)
class AudioVisualSource(FileSource):
    """Video file with each AudioBlock before the first frame at or after the block's end.

    The video determines duration and gaps; the source continues without sound where it is
    missing.
    """

    def _prepare(self) -> None:
        if self._options.extra_audio is None:
            raise ValueError("options.extra_audio is missing")
        self._video = VideoSource(self._uri, self._options)
        self._sound = AudioSource(
            self._uri, replace(self._options, sound=self._options.extra_audio)
        )
        self._has_sound = False

    @staticmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return whether the options request the sound of a video file too."""
        return options.extra_audio is not None and bool(head) and path is not None

    @property
    def errors(self) -> int:
        """Number of errors found so far in video and sound."""
        return self._video.errors + self._sound.errors

    def open(self) -> SourceInfo:
        """Open video and sound; raise SourceError without video.

        ``silent`` of the result is the reason why there is no sound.
        """
        info = self._video.open()
        try:
            self._sound.open()
        except SourceError as error:
            self._sound.close()
            return replace(info, silent=reason_of(error, self._uri))
        self._has_sound = True
        return replace(info, extra_audio=True)

    def items(self) -> Iterator[Item]:
        """Yield video and audio items. Gaps and fatal Faults of the sound become plain Faults."""
        blocks = self._sound.items() if self._has_sound else iter(())
        block = next(blocks, None)
        for item in self._video.items():
            time_s = item.start_s if isinstance(item, Gap) else item.time_s
            while block is not None and time_s is not None and _available_s(block) <= time_s:
                yield _not_fatal(block)
                block = next(blocks, None)
            yield item

    def stop(self) -> None:
        """End ``items`` soon; safe in a signal handler."""
        self._video.stop()
        self._sound.stop()

    def close(self) -> None:
        """Close the file."""
        self._video.close()
        self._sound.close()


def _available_s(item: Item) -> float:
    """Return the time at which an item is available; 0 for one without a time."""
    time_s = item.start_s if isinstance(item, Gap) else item.time_s
    return 0.0 if time_s is None else time_s


def _not_fatal(item: Item) -> AudioBlock | Fault:
    if isinstance(item, Gap):
        return Fault(item.start_s, f"no sound until {format_time(item.end_s)} ({item.reason})")
    if isinstance(item, Fault):
        return replace(item, fatal=False)
    assert isinstance(item, AudioBlock)
    return item
