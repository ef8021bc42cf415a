"""Media files on web servers: which URLs are files, and opening them with FFmpeg."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from functools import lru_cache
from http.client import HTTPException
from posixpath import splitext

import av
from av.codec.hwaccel import HWAccel
from av.container import InputContainer

from costream.core.errors import SourceError, display_name
from costream.core.pyav import open_input
from costream.core.urls import path_of, split_login
from costream.core.version import __version__
from costream.sources.media.tls import certificate_problem, tls_options

MEDIA_SUFFIXES = tuple(
    f".{suffix}"
    for line in (
        "3g2 3gp asf avi divx dv f4v flv gif h264 h265 hevc m1v m2p m2t m2ts m2v m4v mj2 mkv mov",
        "mp4 mpe mpeg mpg mts mxf nut ogm ogv rm rmvb ts vob webm wmv y4m",
        "aac ac3 aif aiff amr flac m4a mka mp3 oga ogg opus wav wma",
    )
    for suffix in line.split()
)
_PLAYLISTS = (".m3u8", ".m3u", ".mpd", ".sdp")
_MEDIA_TYPE = re.compile(r"(?:video|audio)/(?!.*mpegurl)|application/(?:octet-stream|ogg|mxf)")
_TIMEOUT_S = 15.0  # without an answer, or without data
# A lost connection is resumed where it was, for a few seconds.
_OPTIONS = {"reconnect": "1", "reconnect_delay_max": "3", "timeout": str(round(_TIMEOUT_S * 1e6))}
DOWNLOAD = "download it first: its index may be at the end, which needs range requests"
_NO_HEAD = {405, 501}  # HTTP: the server does not answer HEAD


def is_remote(uri: str) -> bool:
    """Return whether a URL is on a web server."""
    return uri.lower().startswith(("http://", "https://"))


def is_remote_file(uri: str) -> bool:
    """Return whether a URL is a media file on a web server, and not a live feed or playlist.

    It is if its path has a media suffix or the server states a length and a media type. Raises
    SourceError if the server cannot be reached or refuses.
    """
    if not is_remote(uri):
        return False
    suffix = splitext(path_of(uri))[1].lower()
    return suffix in MEDIA_SUFFIXES or (suffix not in _PLAYLISTS and _states_a_file(uri))


@lru_cache
def _states_a_file(uri: str) -> bool:
    where = display_name(uri)
    try:
        with urllib.request.urlopen(_head_request(uri), timeout=_TIMEOUT_S) as response:
            kind, length = response.headers.get_content_type(), response.headers["Content-Length"]
    except urllib.error.HTTPError as error:
        with error:
            if error.code in _NO_HEAD:
                return False
            raise SourceError(_refusal(error.code), where=where) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SourceError(f"the server cannot be reached ({reason})", where=where) from error
    if length and kind.startswith("text/"):
        raise SourceError(f"the server sends {kind}, which is not media", where=where)
    return bool(length and _MEDIA_TYPE.match(kind))


def _head_request(uri: str) -> urllib.request.Request:
    """Return a request for the headers alone, with the login in the URL as a header."""
    bare, login = split_login(uri)
    headers = {"User-Agent": f"costream/{__version__}"}
    if login is not None:
        headers["Authorization"] = login
    return urllib.request.Request(bare, headers=headers, method="HEAD")


def _refusal(code: int) -> str:
    if code in (401, 403):
        return "the server refuses the login: check user and password"
    return f"the server has no such file ({code})"


def open_remote(
    uri: str, hardware: HWAccel | None = None, *, tls_verify: bool = False
) -> InputContainer:
    """Open a media file on a web server; ``hardware`` decodes video.

    ``tls_verify``: refuse an invalid certificate.
    Raises SourceError with the reason and a hint.
    """
    where = display_name(uri)
    try:
        return open_input(
            uri,
            options=_OPTIONS | tls_options(tls_verify),
            timeout=(_TIMEOUT_S, _TIMEOUT_S),
            hwaccel=hardware,
        )
    except av.HTTPNotFoundError as error:
        raise SourceError(_refusal(404), where=where) from error
    except (av.HTTPUnauthorizedError, av.HTTPForbiddenError) as error:
        raise SourceError(_refusal(401), where=where) from error
    except (av.InvalidDataError, av.EOFError) as error:
        raise SourceError(
            "this is not media that can be read from the server",
            where=where,
            hint=DOWNLOAD,
        ) from error
    except (av.FFmpegError, OSError) as error:
        if tls_verify and (problem := certificate_problem(uri)):
            raise SourceError(problem, where=where) from error
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SourceError(f"the server cannot be reached ({reason})", where=where) from error
