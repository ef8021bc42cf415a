"""Probing of recordings without reading them: whether they can be opened, and their duration."""

from __future__ import annotations

from costream.errors import SourceError, UsageError
from costream.sources.features.arrays import split_video
from costream.sources.media.container import audio_stream, open_container, video_stream
from costream.sources.registry import open_source, sniff
from costream.sources.timing import end_s, length_is_guessed

_ARRAY_SUFFIXES = (".npy", ".npz", ".pickle", ".pkl", ".p")  # their rate depends on the model


def is_recording(source: str) -> bool:
    """Return whether a file can be opened as media or skeletons, or looks like features."""
    try:
        kind = sniff(source)
        if kind == "skeleton":
            _skeleton_length_s(source)
        elif kind == "video":
            open_container(source).close()
    except (SourceError, UsageError):
        return False
    return True


def length_s(source: str) -> float | None:
    """Return the duration of a recording in seconds; None if unknown.

    It is unknown for arrays, and for files that cannot be opened: reading them reports why.
    """
    if split_video(source)[0].lower().endswith(_ARRAY_SUFFIXES):
        return None
    try:
        if sniff(source) == "skeleton":
            return _skeleton_length_s(source)
        with open_container(source) as container:
            has_pictures = any(stream.codec_context for stream in container.streams.video)
            stream = (video_stream if has_pictures else audio_stream)(container, source)
            return None if length_is_guessed(container, stream) else end_s(container, stream)
    except (SourceError, UsageError):
        return None


def _skeleton_length_s(source: str) -> float | None:
    skeletons = open_source(source)
    try:
        return skeletons.open().duration_s
    finally:
        skeletons.close()
