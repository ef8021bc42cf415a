"""Resolution of command-line SOURCE arguments to source objects."""

from __future__ import annotations

import glob
import os
import re
import stat
from dataclasses import fields, replace
from typing import Any, cast
from urllib.request import url2pathname

from costream.core.errors import SourceError, UsageError, display_name
from costream.core.records import SourceKind
from costream.core.registry import Entry
from costream.core.spelling import stored_path
from costream.core.urls import path_of
from costream.sources.base import SOURCES, Source, SourceOptions
from costream.sources.features.feature_arrays import split_video
from costream.sources.file import (
    HEAD_BYTES,
    FileSource,
    file_name,
    file_sources,
    find_file_source,
    remote_name,
)
from costream.sources.live.address import display_feed, scheme_of
from costream.sources.media.input_file import check_file, read_head
from costream.sources.media.remote import is_remote, is_remote_file
from costream.sources.pipe import PipeSource
from costream.sources.realtime import RealtimeSource
from costream.sources.skeletons.frame_files import folder_of_frame
from costream.sources.text_source import TextFeed


def expand(argument: str, *, connecting: bool = False) -> list[str]:
    """Return the source URIs for one command-line argument, at least one.

    A pickle of several videos expands to one per video, an array of several clips to one per clip,
    a glob pattern to the matching files, and a file with the keypoints of one frame to the folder
    of all frames. Raises SourceError if there is no such file or it is a
    folder without keypoints; UsageError for live feeds unless ``connecting``.
    """
    if argument == "-" or _live(argument, connecting=connecting) or _is_url_of_file(argument):
        return [argument]
    path = _local(argument)
    if not os.path.exists(split_video(path)[0]) and glob.has_magic(path):
        matches = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not matches:
            raise SourceError("no file matches this pattern", where=display_name(path))
        return list(dict.fromkeys(uri for name in matches for uri in _recordings(name)))
    return _recordings(path)


def recordings_in(path: str) -> list[str]:
    """Return FILE#NAME for each recording of a file with several, by its content; else the path.

    A file that cannot be read counts as one recording: opening it reports why.
    """
    try:
        return [path] if os.path.isdir(path) or is_pipe(path) else _parts(path)
    except SourceError:
        return [path]


def sniff(uri: str, options: SourceOptions | None = None) -> SourceKind:
    """Return the kind of a source, judged by its first bytes. Raises SourceError if unreadable.

    Media are audio if the options request sound, arrays are skeletons if the options name a
    layout. A pipe cannot be inspected without consuming it and counts as media.
    """
    options = options or SourceOptions()
    media: SourceKind = "video" if options.sound is None else "audio"
    live = _live(uri, connecting=options.connecting is not None)
    if live is not None:
        return cast(SourceKind, live.info.get("kind", media))
    if _is_url_of_file(uri):
        return media
    path = uri if uri == "-" else split_video(_local(uri))[0]
    return media if is_pipe(path) else _of_file(path, options)[0]


def open_source(uri: str | os.PathLike[str], options: SourceOptions | None = None) -> Source:
    """Return the source for a file, "-", a named pipe, FILE#NAME, a folder, "mic" or "mic:NAME".

    Also for the URL of a media file on a web server, and with ``options.connecting`` for the URL of
    a feed or a camera. The source still has to be
    opened: ``source.open()``. Raises the same errors as ``sniff``, UsageError for other types.
    """
    if not isinstance(uri, str | os.PathLike):
        raise UsageError(f"a path or a URL, not {uri!r}", where="open_source")
    uri, options = os.fspath(uri), options or SourceOptions()
    if _is_text_feed(uri, options):
        return TextFeed(uri, options)
    live = _live(uri, connecting=options.connecting is not None)
    if live is not None:
        return cast(Source, _loaded(live)(uri, options))
    if _is_url_of_file(uri):
        found = find_file_source(b"\0", uri, options)
        assert found is not None
        return found[1](uri, options)
    path = uri if uri == "-" else _local(uri)
    if is_pipe(path):
        return PipeSource(path, options)
    source = _of_file(split_video(path)[0], options)[1](path, options)
    connecting = options.connecting
    if connecting is None or connecting.speed is None:
        return source
    return RealtimeSource(source, connecting.speed, connecting)


def fitted(source: Source, options: SourceOptions) -> Source:
    """Return an unopened file or pipe source with these options added; other sources unchanged."""
    if not isinstance(source, (FileSource, PipeSource)):
        return source
    both = ((f, getattr(source.options, f.name)) for f in fields(SourceOptions))
    changed = {f.name: value for f, value in both if value != f.default}
    return open_source(source.uri, replace(options, **changed))


def name_of(uri: str) -> str:
    """Return the base name of a source's output files, without opening it.

    Files on a web server are named like files here, feeds by host and path.
    """
    remote = remote_name(uri)
    if remote is not None and not _is_file(uri):
        return remote
    live = _live(uri)
    if live is not None:
        return str(_loaded(live).name_of(uri))
    return "stdin" if uri == "-" else file_name(uri)


def is_feed(uri: str) -> bool:
    """Return whether this is the address of a live feed or a camera, which has to be connected."""
    return _live(uri) is not None and _live(uri, connecting=False) is None


def _live(uri: str, *, connecting: bool = True) -> Entry[type[Source]] | None:
    """Return the live source with this address, unless a file has that name.

    ``connecting``: include sources that need ConnectionOptions.
    """
    for entry in SOURCES.entries().values():
        address = entry.info.get("address")
        if address is not None and re.fullmatch(address, uri) and not _is_file(uri):
            return entry if connecting or not entry.info.get("connecting") else None
    return None


def _is_text_feed(uri: str, options: SourceOptions) -> bool:
    """Return whether this is a text server, or a text file to be followed."""
    connecting = options.connecting
    if options.text is None or connecting is None or is_pipe(uri):
        return False
    return scheme_of(uri) == "tcp" or (connecting.follow and scheme_of(uri) is None)


def _is_url_of_file(uri: str) -> bool:
    """Return whether this is a media file on a web server and not the name of a local file."""
    return is_remote(uri) and not _is_file(uri) and is_remote_file(uri)


def _loaded(live: Entry[type[Source]]) -> Any:
    return SOURCES.load(live.name)


def _of_file(path: str, options: SourceOptions) -> tuple[SourceKind, type[FileSource]]:
    """Return kind and source of a file or folder. Raises SourceError if it cannot be read."""
    found = find_file_source(_head(path), path, options)
    if found is None:
        check_file(path)
        raise SourceError("unknown format", where=display_name(path))
    return found


def _local(argument: str) -> str:
    """Return the path that an argument names; raises UsageError for a live feed."""
    if _live(argument) is not None:
        raise UsageError(
            "this is a live feed, but a file is required here",
            where=display_feed(argument),
            hint="watch it with: costream watch URL",
        )
    if scheme_of(argument) == "file" and not os.path.exists(argument):
        argument = url2pathname(path_of(argument))
    return stored_path(argument)


def _recordings(path: str) -> list[str]:
    """Return FILE#NAME for each recording if a file contains several, else the path."""
    file, name = split_video(path)
    if name is not None or is_pipe(file):
        return [path]
    folder = folder_of_frame(file)
    if folder is not None:
        return [folder]
    if os.path.isdir(file):
        _of_file(file, SourceOptions())
    return _parts(path)


def _parts(path: str) -> list[str]:
    """Return FILE#NAME for each recording of a file. Raises SourceError if it cannot be read."""
    head = _head(path)
    names = next(filter(None, (source.names(head, path) for _, source in file_sources())), [])
    return [f"{path}#{name}" for name in names] if len(names) > 1 else [path]


def _is_file(path: str) -> bool:
    """Return whether there is a file, folder or pipe (not a device) of that name."""
    mode = _mode(path)
    return mode is not None and not stat.S_ISCHR(mode)


def is_pipe(path: str) -> bool:
    """Return whether this is standard input or a named pipe."""
    return path == "-" or stat.S_ISFIFO(_mode(path) or 0)


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return None


def _head(path: str) -> bytes:
    """Return the first bytes of a file; b"" for a folder."""
    return b"" if os.path.isdir(path) else read_head(path, HEAD_BYTES)
