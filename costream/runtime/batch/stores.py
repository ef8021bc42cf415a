"""Files in object stores, archives and on servers: whatever fsspec opens, by URL.

They are fetched and then read like any other file. Reading through fsspec's file objects instead
was tried: FFmpeg reads an MP4 over them in 1.0 to 1.25 times its bytes, but nothing at all from a
server that gives no ranges, a lost connection then looks like damage in the media, and what else
looks into a file (kinds, arrays, archives) wants a path.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from costream.errors import UsageError
from costream.redact import redact
from costream.runtime.batch.names import safe
from costream.sources.arrays import PARTS

_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")
_FILE = "file://"
_SERVERS = ("http", "https")
_LIVE = ("rtsp", "rtsps", "rtmp", "rtmps", "rtp", "srt", "udp", "tcp")
_CONNECT_S = 30
_SILENT_S = 60  # a server that sends nothing for so long is given up
# What stores call the mark of a version, and the time of the last change.
_VERSIONS = (
    *("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "Digest", "sha", "CRC"),
    *("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "modify", "created"),
)


@dataclass(frozen=True)
class StoredFile:
    """A file as its store tells of it."""

    path: str  # in its file system
    size: int  # bytes; 0 where the store does not say
    version: str  # changes with the content, as far as the store knows; may be ""


def is_url(argument: str) -> bool:
    """Tell whether this names something in a store. ``file://`` is a path of this machine."""
    scheme = _URL.match(argument)
    return scheme is not None and scheme[0].lower() != _FILE and not os.path.exists(argument)


def local_path(argument: str) -> str:
    """Give the path that ``file://...`` means; everything else as it is."""
    if not argument.lower().startswith(_FILE) or os.path.exists(argument):
        return argument
    return url2pathname(urlsplit(argument).path)


def absolute(url: str) -> str:
    """Give a URL that means the same in every process: an archive of this machine by its path."""
    inner, colons, last = url.rpartition("::")
    return url if not colons or "://" in last else f"{inner}::{os.path.abspath(last)}"


def check_url(url: str) -> None:
    """Raise UsageError when nothing that is installed opens URLs of this kind."""
    where = redact(url)
    if find_spec("fsspec") is None:
        hint = "pip install 'costream[stores]'"
        raise UsageError("fsspec, which opens URLs, is not installed", where=where, hint=hint)
    import fsspec

    for protocol in _protocols(url):
        if protocol in _LIVE:
            raise UsageError("this is a live feed, and a batch takes files", where=where)
        try:
            fsspec.get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:  # its package is missing; no such protocol
            raise UsageError(f"fsspec cannot open it ({error})", where=where) from error


def is_folder(url: str) -> bool:
    """Tell whether a URL names a folder. On a server those are the ones that end in "/"."""
    if _protocols(url)[0] in _SERVERS:
        return urlsplit(url).path.endswith("/") or not urlsplit(url).path
    try:
        with _plain_errors():
            fs, path = _opened(url)
            return bool(fs.info(path)["type"] == "directory")
    except OSError:
        return False  # whoever reads it will say why it cannot be


def below(url: str) -> list[str]:
    """Give the URLs of all files below a folder. OSError when a folder cannot be listed."""
    with _plain_errors():
        fs, path = _opened(url)
        # Not find: it leaves out what it cannot list.
        found = [
            f"{folder}/{name}"
            for folder, _, names in fs.walk(path, on_error="raise")
            for name in names
            if name
        ]
    head, colons, chain = url.partition("::")
    scheme, _, folder = head.partition("://")
    server = scheme.lower() in _SERVERS
    urls = []
    for name in found:
        relative = name.removeprefix(path.rstrip("/")).lstrip("/")
        if server and ("?" in relative or "#" in relative):
            continue  # links that sort the page
        inner = "/".join(part for part in (folder.rstrip("/"), relative) if part)
        urls.append(f"{scheme}://{inner}{colons}{chain}")
    return urls


def stored_files(url: str, *, fresh: bool = False) -> list[StoredFile]:
    """Give all files that an input is read from. OSError when they cannot be reached.

    ``fresh``: ask the store again, whatever is remembered of it.
    """
    with _plain_errors():
        fs, path = _opened(url)
        if fresh:
            fs.invalidate_cache()
        told = fs.info(path)
        if told["type"] == "directory":  # a recording, a file a frame
            inside = fs.find(path, maxdepth=1, detail=True)
            return [_stored(name, inside[name]) for name in sorted(inside)]
        stem = path.removesuffix("_rgb.npy")
        others = [f"{stem}_{part}.npy" for part in PARTS[1:]] if stem != path else []
        more = [_stored(other, fs.info(other)) for other in others if fs.exists(other)]
        return [_stored(path, told), *more]


@contextmanager
def fetched(uri: str, folder: Path, stopped: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Give a path of this machine for an input; copies of what is in a store go to ``folder``.

    They are removed in the end. OSError when it cannot be fetched, or not before ``stopped()``.
    """
    if not is_url(uri):
        yield uri
        return
    try:
        yield fetch(uri, folder, stopped)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fetch(url: str, folder: Path, stopped: Callable[[], bool] = lambda: False) -> str:
    """Copy an input to a folder and give its path there. OSError as ``fetched``."""
    from fsspec.callbacks import Callback

    def check(*_: object, **__: object) -> None:
        if stopped():
            raise InterruptedError("stopped")

    progress = Callback(hooks={"stop": check})
    files = stored_files(url)
    name = place(url).rpartition("/")[2]
    many = len(files) > 1 and not name.endswith("_rgb.npy")
    target = folder / name if many else folder
    target.mkdir(parents=True, exist_ok=True)
    fs, _ = _opened(url)
    for file in files:
        own = name if file is files[0] and not many else safe(posixpath.basename(file.path))
        with _plain_errors():
            fs.get_file(file.path, str(target / own), callback=progress)
        size = (target / own).stat().st_size
        if file.size and size != file.size:
            raise OSError(f"{size} of {file.size} bytes came")
    return str(folder / name)


def place(url: str) -> str:
    """Give where a URL lies, as a path: store, folders, file; archives count as folders.

    What is in an archive of this machine lies below the archive. Credentials and queries are left
    out, and so is what would lead out of a folder.
    """
    parts: list[str] = []
    for segment in reversed(url.split("::")):
        scheme, mark, path = segment.partition("://")
        if parts and not mark:
            continue  # a cache in front of it
        if not mark or scheme.lower() == "file":
            parts.append(os.path.abspath(local_path(segment)).replace(os.sep, "/"))
            continue
        if scheme.lower() in _SERVERS:
            path = unquote(re.split("[?#]", path)[0])
        if not parts:
            host, slash, rest = path.partition("/")
            path = host.rpartition("@")[2] + slash + rest
            parts.append(scheme.lower())
        parts += [safe(part) for part in path.split("/") if part not in ("", ".", "..")]
    return "/".join(parts)


def _protocols(url: str) -> list[str]:
    """Give the protocols of a URL, the innermost first: zip, then s3."""
    segments = (segment.partition("://") for segment in url.split("::"))
    found = [(scheme, mark) for scheme, mark, _ in segments]
    return [scheme.lower() for scheme, mark in found if mark or scheme.isalnum()]


def _opened(url: str) -> tuple[Any, str]:
    """Give fsspec's file system for a URL, and the path in it."""
    import fsspec

    options: dict[str, Any] = {}
    servers = [protocol for protocol in _SERVERS if protocol in _protocols(url)]
    if servers:
        import aiohttp

        # Not fsspec's five minutes for a whole file; proxies as the environment says.
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENT_S)
        client = {"timeout": limit, "trust_env": True}
        options = {protocol: {"client_kwargs": client} for protocol in servers}
    fs, path = fsspec.core.url_to_fs(url, **options)
    return fs, path


def _stored(path: str, told: dict[str, Any]) -> StoredFile:
    version = " ".join(str(told[key]) for key in _VERSIONS if told.get(key) is not None)
    return StoredFile(path, int(told.get("size") or 0), version)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn whatever a store's library raises into an OSError of one line without credentials."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__
        if cause is not None and getattr(cause, "status", 404) != 404:
            raise OSError(_told(cause)) from error
        if cause is not None and isinstance(cause, OSError):  # no server there
            raise OSError(_told(cause)) from error
        raise FileNotFoundError(errno.ENOENT, "no such file") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):  # of this machine
            raise
        raise OSError(_told(error)) from error
    except Exception as error:  # every library has its own
        raise OSError(_told(error)) from error


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"it cannot be reached ({redact(text)})"
