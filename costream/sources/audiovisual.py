"""The pictures of a file and, beside them, its sound, in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costream.clock import format_time
from costream.errors import SourceError
from costream.records import AudioBlock, Fault, Gap, Item
from costream.sources.audio import AudioSource
from costream.sources.base import SourceInfo, SourceOptions
from costream.sources.video import VideoSource


class AudioVisualSource:
    """A video file with AudioBlock items between its frames, each before the frame it was known at.

    The pictures say when there is data and how long it lasts; sound that is missing, at all or
    for a while, is no reason to end. ``errors`` counts the damage to both so far.
    """

    def __init__(self, path: str, options: SourceOptions) -> None:
        """``options.beside`` says what blocks; ValueError without."""
        if options.beside is None:
            raise ValueError("options.beside is missing")
        self._video = VideoSource(path, options)
        self._sound = AudioSource(path, replace(options, sound=options.beside))
        self._heard = False

    @property
    def errors(self) -> int:
        """How much damage was met so far."""
        return self._video.errors + self._sound.errors

    def open(self) -> SourceInfo:
        """Open both; SourceError when there are no pictures. ``silent``: why there is no sound."""
        info = self._video.open()
        try:
            self._sound.open()
        except SourceError as error:
            self._sound.close()
            return replace(info, silent=str(error))
        self._heard = True
        return replace(info, beside=True)

    def items(self) -> Iterator[Item]:
        """Yield what both yield. Gaps in the sound become Faults, and no Fault of it is fatal."""
        blocks = self._sound.items() if self._heard else iter(())
        block = next(blocks, None)
        for item in self._video.items():
            time_s = item.start_s if isinstance(item, Gap) else item.time_s
            while block is not None and time_s is not None and _known_s(block) <= time_s:
                yield _beside(block)
                block = next(blocks, None)
            yield item

    def stop(self) -> None:
        """End ``items`` soon; safe in a signal handler."""
        self._video.stop()
        self._sound.stop()

    def close(self) -> None:
        """Let go of the file."""
        self._video.close()
        self._sound.close()


def _known_s(item: Item) -> float:
    """Give when an item is known; one without a time at once."""
    time_s = item.start_s if isinstance(item, Gap) else item.time_s
    return 0.0 if time_s is None else time_s


def _beside(item: Item) -> AudioBlock | Fault:
    if isinstance(item, Gap):
        return Fault(item.start_s, f"no sound until {format_time(item.end_s)} ({item.reason})")
    if isinstance(item, Fault):
        return replace(item, fatal=False)
    assert isinstance(item, AudioBlock)
    return item
