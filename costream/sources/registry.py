"""From a SOURCE on the command line to the sources that can be opened."""

from __future__ import annotations

import glob
import os
import re
import stat
import zipfile
from urllib.parse import urlsplit
from urllib.request import url2pathname

from costream.errors import SourceError, UsageError
from costream.sources.arrays import (
    NUMPY_MAGIC,
    ZIP_MAGIC,
    clip_count,
    split_video,
    video_names,
)
from costream.sources.audio import AudioSource
from costream.sources.base import Source, SourceKind, SourceOptions
from costream.sources.features import FeatureSource, file_name
from costream.sources.keypoints import keypoint_files
from costream.sources.lines import HEAD_BYTES, text_format
from costream.sources.opening import check_file, shown
from costream.sources.pipe import PipeSource
from costream.sources.posearrays import recordings
from costream.sources.skeleton import SkeletonSource
from costream.sources.video import VideoSource

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_CAMERA = re.compile(r"(camera:)?[0-9]+|/dev/video[0-9]+", re.IGNORECASE)
_MICROPHONE = re.compile(r"mic(:.*)?", re.IGNORECASE)
_PICKLE_ENDINGS = (".pickle", ".pkl", ".p")


def expand(argument: str) -> list[str]:
    """Give the sources that one command-line argument stands for, at least one.

    A pickle of several videos gives one a video, an array of several clips one a clip, a pattern
    that no shell has expanded the files that fit it. SourceError when there is no such file, or
    it is a folder of something else than keypoints; UsageError for live feeds, which this
    command does not take.
    """
    if argument == "-" or _is_microphone(argument):
        return [argument]
    path = _local(argument)
    if not os.path.exists(split_video(path)[0]) and glob.has_magic(path):
        found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not found:
            raise SourceError("no file fits this pattern", where=shown(path))
        return [source for name in found for source in _videos(name)]
    return _videos(path)


def sniff(uri: str, options: SourceOptions | None = None) -> SourceKind:
    """Tell what a source holds by its first bytes. SourceError when they cannot be read.

    Media are sound when the options ask for sound. Arrays are skeletons when the options say their
    layout. A pipe cannot be looked into without consuming it, and counts as media until it is
    opened.
    """
    if _is_microphone(uri):
        return "audio"
    media: SourceKind = "audio" if options is not None and options.sound else "video"
    path = split_video(_local(uri))[0] if uri != "-" else uri
    if _is_pipe(path):
        return media
    if _is_keypoint_folder(path):
        return "skeleton"
    if not _has_arrays(path):
        return "skeleton" if text_format(_head(path), path) else media
    if _is_pickle(path):
        return "skeleton" if recordings(path) else "features"
    return "skeleton" if options is not None and options.layout else "features"


def open_source(uri: str, options: SourceOptions | None = None) -> Source:
    """Give the source for a file, "-", a named pipe, FILE#NAME, a folder, "mic" or "mic:NAME".

    It still has to be opened: ``source.open()``. Raises as ``sniff`` does.
    """
    if _is_microphone(uri):
        from costream.sources.microphone import MicrophoneSource

        return MicrophoneSource(uri, options)
    path = uri if uri == "-" else _local(uri)
    if _is_pipe(path):
        return PipeSource(path, options)
    kind = sniff(path, options)
    if kind == "skeleton":
        return SkeletonSource(path, options)
    if kind == "features":
        return FeatureSource(path, options)
    if options is not None and kind == "audio":
        return AudioSource(path, options)
    return VideoSource(path, options)


def name_of(uri: str) -> str:
    """Give the name that a source's outputs are named after, without opening it."""
    if _is_microphone(uri):
        return "".join(c if c.isalnum() or c in " .-" else "_" for c in uri)
    return "stdin" if uri == "-" else file_name(uri)


def _local(argument: str) -> str:
    """Give the path that an argument means; UsageError when it means a live feed."""
    if os.path.exists(argument):
        return argument
    url = _URL.match(argument)
    if url is not None and url[1].lower() == "file":
        return url2pathname(urlsplit(argument).path)
    if url is not None or _CAMERA.fullmatch(argument):
        raise UsageError(
            "live feeds are not supported by this command yet",
            where=shown(argument),
            hint="give a file, or pipe a stream into '-'",
        )
    return argument


def _videos(path: str) -> list[str]:
    """Give FILE#NAME for each video of a pickle or clip of an array; other files as they are."""
    file, video = split_video(path)
    if _is_pipe(file) or _is_keypoint_folder(file):
        return [path]
    names: list[str] = []
    if video is None and _is_pickle(file):
        names = list(recordings(file)) or video_names(file)
    elif video is None and _head(file).startswith(NUMPY_MAGIC):
        names = [str(clip) for clip in range(clip_count(file))]
    return [f"{file}#{name}" for name in names] if len(names) > 1 else [path]


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
    # Protocols 2 to 5 begin with PROTO; 0 and 1 have no mark of their own, only a name.
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
