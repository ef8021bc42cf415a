"""Files in object stores, in archives and on servers, by URL, through fsspec.

They are fetched and then read like any other file. Reading through fsspec's file objects instead
was tried: FFmpeg reads an MP4 over them in 1.0 to 1.25 times its bytes, but nothing at all from a
server without range requests, a lost connection then looks like damaged media, and the other
readers (kinds, arrays, archives) need a path.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from costream.core.errors import ExitCode, UsageError, display_name
from costream.core.urls import is_store_url, local_path, login_end, path_of, redact
from costream.runtime.batch.folders import (
    KEYPOINTS,
    PRIVATE,
    FoundPath,
    Patterns,
    Refusal,
    first_part,
    further_parts,
    parents,
    part_refusal,
)
from costream.sources.features.feature_arrays import split_video

_SERVERS = ("http", "https")
_LIVE = ("rtsp", "rtsps", "rtmp", "rtmps", "rtp", "srt", "udp", "tcp")
_CONNECT_S = 30
_SILENT_S = 60  # read timeout: a server that sends nothing for this long is given up
# Keys under which stores report a version, checksum or modification time.
_VERSIONS = (
    *("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "Digest", "sha", "CRC"),
    *("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "modify", "created"),
)


@dataclass(frozen=True)
class StoredFile:
    """A file as described by its store."""

    path: str  # in its file system
    size: int  # bytes; 0 where the store does not report it
    version: str  # changes with the content, as far as the store knows; may be ""


def absolute(url: str) -> str:
    """Return a URL that is valid in every process: a local archive by its absolute path."""
    inner, colons, last = url.rpartition("::")
    return url if not colons or "://" in last else f"{inner}::{os.path.abspath(last)}"


def check_url(url: str) -> None:
    """Raise UsageError when no installed package opens URLs of this kind."""
    where = display_name(url)
    if find_spec("fsspec") is None:
        hint = "pip install 'costream[stores]'"
        raise UsageError("fsspec, which opens URLs, is not installed", where=where, hint=hint)
    import fsspec

    for protocol in _protocols(url):
        if protocol in _LIVE:
            raise UsageError("this is a live feed, but a batch takes files", where=where)
        try:
            fsspec.get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:  # its package is missing; no such protocol
            raise UsageError(f"fsspec cannot open it ({error})", where=where) from error


def is_folder(url: str) -> bool:
    """Return whether a URL names a folder. On a server, folders end in "/"."""
    if _protocols(url)[0] in _SERVERS:
        return path_of(url).endswith("/") or not path_of(url)
    try:
        with _plain_errors():
            fs, path = _opened(url)
            return bool(fs.info(path)["type"] == "directory")
    except OSError:
        return False  # the error is reported when it is read


def list_files(url: str) -> list[str]:
    """Return the URLs of all files below a folder. OSError when a folder cannot be listed.

    The query of a folder on a server, such as an access key, is used for all files below it.
    """
    server = _protocols(url)[0] in _SERVERS
    url, query = _split_query(url) if server else (url, "")
    with _plain_errors():
        fs, path = _opened(url, query)
        # Not find(): it omits folders that it cannot list.
        walk = fs.walk(path, on_error="raise")
        paths = [f"{folder}/{name}" for folder, _, names in walk for name in names if name]
    head, colons, chain = url.partition("::")
    scheme, _, folder = head.partition("://")
    urls = []
    for name in paths:
        relative = name.removeprefix(path.rstrip("/")).lstrip("/").removesuffix(query)
        if server and ("?" in relative or "#" in relative):
            continue  # links that sort a directory listing
        inner = "/".join(part for part in (folder.rstrip("/"), relative) if part)
        urls.append(f"{scheme}://{inner}{query}{colons}{chain}")
    return urls


def _split_query(url: str) -> tuple[str, str]:
    """Return a URL of a server without query and fragment, and the query, with its "?"."""
    begin = url.index("://") + len("://")
    begin += login_end(url[begin:])
    place, mark, query = url[begin:].partition("#")[0].partition("?")
    return url[:begin] + place, mark + query


def stored_files(url: str, *, fresh: bool = False) -> list[StoredFile]:
    """Return all files that belong to an input. OSError when they cannot be reached.

    ``fresh``: bypass fsspec's cache of the store.
    """
    with _plain_errors():
        fs, path = _opened(url)
        if fresh:
            fs.invalidate_cache()
        info = fs.info(path)
        if info["type"] == "directory":  # a recording, one file per frame
            inside = fs.find(path, maxdepth=1, detail=True)
            return [_stored(name, inside[name]) for name in sorted(inside)]
        others = [other for other in further_parts(path) if fs.exists(other)]
        more = [_stored(other, fs.info(other)) for other in others]
        return [_stored(path, info), *more]


@contextmanager
def fetched(uri: str, folder: Path, stopped: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Yield a local path for an input; inputs in a store are copied to ``folder``.

    Copies are removed on exit. OSError when it cannot be fetched, or when ``stopped()`` first.
    """
    if not is_store_url(uri):
        yield uri
        return
    try:
        yield fetch(uri, folder, stopped)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fetch(url: str, folder: Path, stopped: Callable[[], bool] = lambda: False) -> str:
    """Copy an input to a folder and return its path there. OSError as ``fetched``."""
    from fsspec.callbacks import Callback

    def check(*_: object, **__: object) -> None:
        if stopped():
            raise InterruptedError("stopped")

    progress = Callback(hooks={"stop": check})
    files = stored_files(url)
    name = place(url).rpartition("/")[2]
    many = len(files) > 1 and not further_parts(name)
    target = folder / name if many else folder
    target.mkdir(parents=True, exist_ok=True)
    fs, _ = _opened(url)
    for file in files:
        local = name if file is files[0] and not many else safe(posixpath.basename(file.path))
        with _plain_errors():
            fs.get_file(file.path, str(target / local), callback=progress)
        size = (target / local).stat().st_size
        if file.size and size != file.size:
            raise OSError(f"{size} of {file.size} bytes received")
    return str(folder / name)


def place(url: str) -> str:
    """Return the location of a URL as a path: store, folders, file; archives count as folders.

    Members of a local archive are below the path of the archive. Credentials and queries are
    removed, and so are parts that would lead out of a folder.
    """
    parts: list[str] = []
    for segment in reversed(url.split("::")):
        scheme, mark, path = segment.partition("://")
        if parts and not mark:
            continue  # a cache in front of it
        if not mark or scheme.lower() == "file":
            parts.append(os.path.abspath(local_path(segment)).replace(os.sep, "/"))
            continue
        if not parts:
            path = path[login_end(path) :]
            parts.append(scheme.lower())
        if scheme.lower() in _SERVERS:
            path = unquote(re.split("[?#]", path)[0])
        parts += [safe(part) for part in path.split("/") if part not in ("", ".", "..")]
    return "/".join(parts)


def _protocols(url: str) -> list[str]:
    """Return the protocols of a URL, the innermost first: zip, then s3."""
    segments = (segment.partition("://") for segment in url.split("::"))
    pairs = [(scheme, mark) for scheme, mark, _ in segments]
    return [scheme.lower() for scheme, mark in pairs if mark or scheme.isalnum()]


def _opened(url: str, query: str = "") -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it.

    ``query``: added to all requests to a server, in addition to the query of the URL.
    """
    import fsspec

    options: dict[str, Any] = {}
    servers = [protocol for protocol in _SERVERS if protocol in _protocols(url)]
    if servers:
        import aiohttp

        # Instead of fsspec's five minutes for a file; proxies as in the environment.
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENT_S)
        client = {"timeout": limit, "trust_env": True}
        all_of_it = {"client_kwargs": client} | ({"params": query.lstrip("?")} if query else {})
        options = dict.fromkeys(servers, all_of_it)
    fs, path = fsspec.core.url_to_fs(url, **options)
    return fs, path


def _stored(path: str, info: dict[str, Any]) -> StoredFile:
    version = " ".join(str(info[key]) for key in _VERSIONS if info.get(key) is not None)
    return StoredFile(path, int(info.get("size") or 0), version)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn any error of a store's library into a one-line OSError without credentials."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__  # an OSError: no server at this address
        if isinstance(cause, OSError) or (cause and getattr(cause, "status", 404) != 404):
            raise OSError(_unreachable(cause)) from error
        raise FileNotFoundError(errno.ENOENT, "no such file") from error
    except Exception as error:  # every library has its own exception types
        local = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # errors of the disk here
        if isinstance(error, OSError) and error.errno in local:
            raise
        raise OSError(_unreachable(error)) from error


def _unreachable(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"it cannot be reached ({redact(text)})"


_BLOCK = 1 << 20


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of one input; equal fingerprints mean equal content."""

    size: int  # bytes
    mtime_ns: int | None  # newest of its files; None with a content hash, and in a store
    sha256: str | None = None  # content hash, if requested
    version: str | None = None  # version from a store: a checksum, a modification time


def fingerprint(uri: str, *, content: bool = False, fresh: bool = False) -> Fingerprint:
    """Return the fingerprint of an input. OSError when it cannot be read.

    ``content``: hash the content, so that a copy or a touched file counts as the same. ``fresh``:
    bypass the cache of a store.
    """
    if is_store_url(uri):
        if content:
            with tempfile.TemporaryDirectory() as folder:
                return fingerprint(fetch(uri, Path(folder)), content=True)
        stored = stored_files(uri, fresh=fresh)
        versions = " ".join(file.version for file in stored)
        return Fingerprint(sum(file.size for file in stored), None, version=versions)
    files = _files(split_video(uri)[0])
    stats = [os.stat(file) for file in files]
    size = sum(status.st_size for status in stats)
    if not content:
        return Fingerprint(size, max(status.st_mtime_ns for status in stats))
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as opened:
            while block := opened.read(_BLOCK):
                digest.update(block)
    return Fingerprint(size, None, digest.hexdigest())


def _files(path: str) -> list[str]:
    """Return all files that belong to an input."""
    if os.path.isdir(path):
        inside = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        return [file for file in inside if os.path.isfile(file)] or [path]
    return [path, *filter(os.path.exists, further_parts(path))]


def search_store(url: str, patterns: Patterns, *, is_folder: bool) -> Iterator[FoundPath]:
    """Yield a file, or the files below a folder in order of names, as ``FolderWalk`` does."""
    if not is_folder:
        if patterns.takes(posixpath.basename(place(url))):
            yield FoundPath(url, "")
        return
    try:
        pairs = [(posixpath.relpath(place(file), place(url)), file) for file in list_files(url)]
    except OSError as error:
        reason = f"the folder cannot be read ({error.strerror or error})"
        yield FoundPath(url, "", Refusal("failed", reason, int(ExitCode.INPUT)))
        return
    recordings = {_folder(name) for name, _ in pairs if name.endswith(KEYPOINTS)}
    if "" in recordings:
        yield FoundPath(url, "")
    else:
        yield from _found(pairs, recordings, patterns)


def _found(
    pairs: Sequence[tuple[str, str]], recordings: Collection[str], patterns: Patterns
) -> Iterator[FoundPath]:
    """Yield the inputs among the files of a folder.

    ``pairs``: relative name and URL of each file. ``recordings``: folders that are one input each.
    """
    names = {name for name, _ in pairs}
    outputs = {_folder(name, 2) for name in names if f"/{name}".endswith(f"/{PRIVATE}/batch.json")}
    yielded: set[str] = set()
    for name, file in sorted(pairs, key=lambda pair: pair[0].split("/")):
        folders = parents(name)
        hidden = any(part.startswith(".") for part in name.split("/"))
        if hidden or outputs & {"", *folders} or not all(map(patterns.enters, folders)):
            continue
        recording = next((folder for folder in folders if folder in recordings), None)
        if not patterns.takes(name if recording is None else recording):
            continue
        if recording is None:
            first = first_part(name)
            yield FoundPath(file, name, part_refusal(first) if first in names else None)
        elif recording not in yielded:
            yielded.add(recording)
            head, colons, chain = file.partition("::")
            above = _folder(head, name.count("/") - recording.count("/"))
            yield FoundPath(f"{above}{colons}{chain}", recording)


def _folder(name: str, up: int = 1) -> str:
    return "/".join(name.split("/")[:-up])


def safe(part: str) -> str:
    """Return a part of a name with the characters replaced that file names must not have."""
    return "".join("_" if c in '/\\:*?"<>|' or not c.isprintable() else c for c in part)
