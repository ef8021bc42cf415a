"""Addresses of live feeds: stream URLs and local cameras."""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass, field
from urllib.parse import quote

import av

from costream.core.errors import display_name
from costream.core.urls import HIDDEN
from costream.sources.base import ConnectionOptions
from costream.sources.media.tls import PORTS, tls_options

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_CAMERA = re.compile(r"(?:camera:)?([0-9]+)|camera:(.+)", re.IGNORECASE)
_DEVICE = re.compile(r"/dev/(?:video[0-9]+|v4l/.+)")
_CAMERA_FORMATS = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}

# Schemes with an FFmpeg option "timeout" in microseconds; with RTMP it would start a server.
_TIMED = {"rtsp", "rtsps", "http", "https", "tcp", "udp"}
ANALYSE_S = 1.0  # FFmpeg may probe a stream that does not describe itself for this long
_PROBING = {"analyzeduration": str(round(ANALYSE_S * 1e6))}
LONGEST_NAME = 100


@dataclass(frozen=True)
class Address:
    """Arguments of av.open for a feed."""

    file: str  # may hold a password
    format: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    open_s: float = 10.0  # timeouts
    read_s: float = 10.0


def scheme_of(argument: str) -> str | None:
    """Return the scheme of a URL (also of file URLs) in lower case; None if it is not a URL."""
    match = _URL.match(argument)
    return None if match is None else match[1].lower()


def is_camera(argument: str) -> bool:
    """Return whether this names a camera: 0, camera:0, camera:NAME, /dev/video0."""
    return bool(_CAMERA.fullmatch(argument)) or bool(_DEVICE.fullmatch(argument))


def address_of(uri: str, connecting: ConnectionOptions, *, probing: bool = False) -> Address:
    """Return how to connect to a URL or camera with the least delay that FFmpeg allows.

    ``probing``: analyse the sizes of all streams, which may take ANALYSE_S.
    """
    timeout_s = connecting.timeout_s
    scheme = scheme_of(uri)
    if scheme is None:
        name = camera_name(uri)
        if sys.platform == "win32":
            name = f"video={name}"
        # Few cameras support FFmpeg's default on macOS, 29.97 frames a second.
        options = {"framerate": "30"} if sys.platform == "darwin" else {}
        return Address(name, _CAMERA_FORMATS.get(sys.platform), options, timeout_s, timeout_s)
    options = {"timeout": str(round(timeout_s * 1e6))} if scheme in _TIMED else {}
    options |= tls_options(connecting.tls_verify) if scheme in PORTS else {}
    if scheme in ("rtsp", "rtsps"):
        # The server describes the stream. A read without data fails only after twice its timeout.
        options |= {"rtsp_transport": connecting.transport}
        options |= _PROBING if probing else {"probesize": "32"}
        return Address(uri, None, options, timeout_s, timeout_s / 2)
    # HLS: start with the newest segment; segments may have any name.
    options |= _PROBING | {"live_start_index": "-1"}
    options |= {"allowed_segment_extensions": "ALL", "extension_picky": "0"}
    return Address(uri, None, options, timeout_s, timeout_s)


def camera_name(uri: str) -> str:
    """Return the name of a camera on this operating system."""
    match = _CAMERA.fullmatch(uri)
    if match is None:
        return uri
    if match[1] is not None and sys.platform == "linux":
        return f"/dev/video{int(match[1])}"
    return match[1] or match[2]


def list_cameras() -> list[str]:
    """Return the cameras that FFmpeg finds on this machine: ``/dev/video0 (Name)``."""
    try:
        found = av.enumerate_input_devices(_CAMERA_FORMATS.get(sys.platform, ""))
    except (AttributeError, ValueError, av.FFmpegError):  # PyAV or FFmpeg cannot list them
        return []
    videos = (device for device in found if "video" in (device.media_types or ["video"]))
    return [f"{device.name} ({device.description})" for device in videos]


def display_feed(uri: str) -> str:
    """Return a URL or camera for display: one word, without credentials."""
    return re.sub(r"[\s'\"<>]", lambda found: quote(found[0]), display_name(uri))


def host_of(uri: str) -> str:
    """Return the host of a URL, without port and credentials; "" without a host."""
    authority = re.split("[/?#]", _public(uri), maxsplit=1)[0]
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def feed_name(uri: str) -> str:
    """Return a name for the files of a feed: host, port, path and query, no credentials.

    It is deterministic and safe as a file name: "cam1_554_live" for rtsp://u:p@cam1:554/live.
    Schemes other than RTSP are prepended. A long name is truncated and ends in a hash.
    """
    scheme = scheme_of(uri)
    if scheme is None:
        match = _CAMERA.fullmatch(uri)
        parts = [uri.removeprefix("/dev/")] if match is None else ["camera", match[1] or match[2]]
    else:
        parts = [part for part in re.split("[/?&#]", _public(uri)) if HIDDEN not in part]
        if scheme not in ("rtsp", "rtsps"):
            parts.insert(0, scheme)
    name = "_".join(filter(None, parts))
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in name).strip("._")
    if len(name) > LONGEST_NAME:
        public = uri if scheme is None else f"{scheme}://{_public(uri)}"
        mark = hashlib.sha256(public.encode()).hexdigest()[:8]
        name = f"{name[:LONGEST_NAME]}_{mark}"
    return name or "feed"


def _public(uri: str) -> str:
    """Return a URL without scheme and credentials; other secrets in it become ***."""
    return display_feed(uri).partition("://")[2].removeprefix(HIDDEN).removeprefix("@")
