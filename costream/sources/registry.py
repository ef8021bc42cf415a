"""Resolution of command-line SOURCE arguments to source objects."""

from __future__ import annotations

import glob
import os
import re
import stat
import zipfile
from urllib.parse import urlsplit
from urllib.request import url2pathname

from costream.errors import SourceError, UsageError
from costream.records import SourceKind
from costream.sources.base import Source, SourceOptions
from costream.sources.features.arrays import (
    NUMPY_MAGIC,
    ZIP_MAGIC,
    clip_count,
    split_video,
    video_names,
)
from costream.sources.features.source import FeatureSource, file_name
from costream.sources.live.address import display_feed, feed_name, is_camera, is_device, scheme_of
from costream.sources.media.audio import AudioSource
from costream.sources.media.audiovisual import AudioVisualSource
from costream.sources.media.container import check_file, display_name
from costream.sources.media.video import VideoSource
from costream.sources.pipe import PipeSource
from costream.sources.realtime import File, RealtimeSource
from costream.sources.skeletons.arrays import pyskl_recordings
from costream.sources.skeletons.lines import HEAD_BYTES, text_format
from costream.sources.skeletons.openpose import keypoint_files
from costream.sources.skeletons.source import SkeletonSource

_MICROPHONE = re.compile(r"mic(:.*)?", re.IGNORECASE)
_PICKLE_ENDINGS = (".pickle", ".pkl", ".p")


def expand(argument: str, *, connecting: bool = False) -> list[str]:
    """Return the source URIs for one command-line argument, at least one.

    A pickle of several videos expands to one per video, an array of several clips to one per clip,
    a glob pattern to the matching files. Raises SourceError if there is no such file or it is a
    folder without keypoints; UsageError for live feeds unless ``connecting``.
    """
    if argument == "-" or _is_microphone(argument) or (connecting and _is_feed(argument)):
        return [argument]
    path = _local(argument)
    if not os.path.exists(split_video(path)[0]) and glob.has_magic(path):
        found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not found:
            raise SourceError("no file matches this pattern", where=display_name(path))
        return [source for name in found for source in _videos(name)]
    return _videos(path)


def sniff(uri: str, options: SourceOptions | None = None) -> SourceKind:
    """Return the kind of a source from its first bytes. Raises SourceError if unreadable.

    Media are audio if the options request sound; arrays are skeletons if the options give a
    layout. A pipe cannot be inspected without consuming it, and counts as media until it is
    opened.
    """
    if _is_microphone(uri):
        return "audio"
    media: SourceKind = "audio" if options is not None and options.sound else "video"
    if options is not None and options.connecting is not None and _is_feed(uri):
        return media
    path = split_video(_local(uri))[0] if uri != "-" else uri
    if _is_pipe(path):
        return media
    if _is_keypoint_folder(path):
        return "skeleton"
    if not _has_arrays(path):
        return "skeleton" if text_format(_head(path), path) else media
    if _is_pickle(path):
        return "skeleton" if pyskl_recordings(path) else "features"
    return "skeleton" if options is not None and options.layout else "features"


def open_source(uri: str, options: SourceOptions | None = None) -> Source:
    """Return the source for a file, "-", a named pipe, FILE#NAME, a folder, "mic" or "mic:NAME".

    With ``options.connecting`` also for the URL of a feed or a camera. The source still has to be
    opened: ``source.open()``. Raises the same errors as ``sniff``.
    """
    if _is_microphone(uri):
        from costream.sources.live.microphone import MicrophoneSource

        return MicrophoneSource(uri, options)
    connecting = None if options is None else options.connecting
    if connecting is not None and _is_feed(uri):
        from costream.sources.live.feed import FeedSource

        return FeedSource(uri, options)
    path = uri if uri == "-" else _local(uri)
    if _is_pipe(path):
        return PipeSource(path, options)
    source = _file(path, options)
    speed = None if connecting is None else connecting.speed
    return source if speed is None else RealtimeSource(source, speed)


def name_of(uri: str) -> str:
    """Return the base name of a source's output files, without opening it."""
    if _is_microphone(uri):
        return "".join(c if c.isalnum() or c in " .-" else "_" for c in uri)
    if _is_feed(uri):
        return feed_name(uri)
    return "stdin" if uri == "-" else file_name(uri)


def _file(path: str, options: SourceOptions | None) -> File:
    kind = sniff(path, options)
    if kind == "skeleton":
        return SkeletonSource(path, options)
    if kind == "features":
        return FeatureSource(path, options)
    if options is not None and kind == "audio":
        return AudioSource(path, options)
    if options is not None and options.beside is not None:
        return AudioVisualSource(path, options)
    return VideoSource(path, options)


def _local(argument: str) -> str:
    """Return the path that an argument names; raises UsageError for a live feed."""
    if _is_feed(argument):
        raise UsageError(
            "this is a live feed, but a file is required here",
            where=display_feed(argument),
            hint="watch it with: costream watch URL",
        )
    if scheme_of(argument) == "file" and not os.path.exists(argument):
        return url2pathname(urlsplit(argument).path)
    return argument


def _videos(path: str) -> list[str]:
    """Return FILE#NAME for each video of a pickle or clip of an array; other files unchanged."""
    file, video = split_video(path)
    if _is_pipe(file) or _is_keypoint_folder(file):
        return [path]
    names: list[str] = []
    if video is None and _is_pickle(file):
        names = list(pyskl_recordings(file)) or video_names(file)
    elif video is None and _head(file).startswith(NUMPY_MAGIC):
        names = [str(clip) for clip in range(clip_count(file))]
    return [f"{file}#{name}" for name in names] if len(names) > 1 else [path]


def _is_feed(argument: str) -> bool:
    """Return whether this is a camera or a URL other than of a file.

    An existing file of that name takes precedence.
    """
    if is_device(argument):
        return True
    return (scheme_of(argument) not in (None, "file") or is_camera(argument)) and not (
        os.path.exists(argument)
    )


def _is_microphone(argument: str) -> bool:
    return bool(_MICROPHONE.fullmatch(argument)) and not os.path.exists(argument)


def _is_pipe(path: str) -> bool:
    if path == "-":
        return True
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_keypoint_folder(path: str) -> bool:
    return os.path.isdir(path) and bool(keypoint_files(path))


def _head(path: str) -> bytes:
    check_file(path)
    with open(path, "rb") as file:
        return file.read(HEAD_BYTES)


def _is_pickle(path: str) -> bool:
    head = _head(path)
    # Protocols 2 to 5 begin with PROTO; 0 and 1 can be recognised only by the file name.
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    return path.lower().endswith(_PICKLE_ENDINGS)


def _has_arrays(path: str) -> bool:
    head = _head(path)
    if head.startswith(ZIP_MAGIC):
        try:
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith(".npy") for name in archive.namelist())
        except (zipfile.BadZipFile, OSError):
            return path.lower().endswith(".npz")
    return head.startswith(NUMPY_MAGIC) or _is_pickle(path)
