"""Where live data come from: the URLs of feeds and the cameras of this machine."""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass, field
from urllib.parse import quote

from costream.sources.base import Connecting
from costream.sources.opening import shown

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_CAMERA = re.compile(r"(?:camera:)?([0-9]+)|camera:(.+)", re.IGNORECASE)
_DEVICE = re.compile(r"/dev/(?:video[0-9]+|v4l/.+)")
_CAMERA_FORMATS = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}

# For these FFmpeg has an option "timeout" in microseconds; RTMP's makes a server of it.
_TIMED = {"rtsp", "rtsps", "http", "https", "tcp", "udp"}
ANALYSE_S = 1.0  # how long FFmpeg may look at a stream that does not describe itself
LONGEST_NAME = 100


@dataclass(frozen=True)
class Address:
    """What av.open is told to connect to a feed."""

    file: str  # may hold a password
    format: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    open_s: float = 10.0  # it fails after so long
    read_s: float = 10.0


def scheme_of(argument: str) -> str | None:
    """Give the scheme of a URL, in lower case; None when it is none. Files have URLs too."""
    match = _URL.match(argument)
    return None if match is None else match[1].lower()


def is_device(argument: str) -> bool:
    """Tell whether this is the path of a camera, whatever there is at that path."""
    return bool(_DEVICE.fullmatch(argument))


def is_camera(argument: str) -> bool:
    """Tell whether this means a camera: 0, camera:0, camera:NAME, /dev/video0."""
    return bool(_CAMERA.fullmatch(argument)) or is_device(argument)


def address_of(uri: str, connecting: Connecting) -> Address:
    """Give how to connect to a URL or camera, with as little delay as FFmpeg knows how to."""
    timeout_s = connecting.timeout_s
    scheme = scheme_of(uri)
    if scheme is None:
        name = camera_name(uri)
        if sys.platform == "win32":
            name = f"video={name}"
        # What FFmpeg asks of macOS by itself, 29.97 frames a second, few cameras give.
        options = {"framerate": "30"} if sys.platform == "darwin" else {}
        return Address(name, _CAMERA_FORMATS.get(sys.platform), options, timeout_s, timeout_s)
    options = {"timeout": str(round(timeout_s * 1e6))} if scheme in _TIMED else {}
    if scheme in ("rtsp", "rtsps"):
        # It describes itself. A silence of RTSP fails a read only after twice its time.
        options |= {"rtsp_transport": connecting.transport, "probesize": "32"}
        return Address(uri, None, options, timeout_s, timeout_s / 2)
    # HLS: begin with the newest segment.
    options |= {"analyzeduration": str(round(ANALYSE_S * 1e6)), "live_start_index": "-1"}
    return Address(uri, None, options, timeout_s, timeout_s)


def camera_name(uri: str) -> str:
    """Give what this system calls a camera."""
    match = _CAMERA.fullmatch(uri)
    if match is None:
        return uri
    if match[1] is not None and sys.platform == "linux":
        return f"/dev/video{int(match[1])}"
    return match[1] or match[2]


def shown_feed(uri: str) -> str:
    """Give a URL or camera as it may be shown: one word, without credentials."""
    return shown(re.sub(r"[\s'\"<>]", lambda found: quote(found[0]), uri))


def host_of(uri: str) -> str:
    """Give the host that a URL names, without port and credentials; "" when there is none."""
    authority = re.split("[/?#]", _public(uri), maxsplit=1)[0]
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def feed_name(uri: str) -> str:
    """Give a name for the files of a feed: host, port, path and query, no credentials.

    It is safe as a file name and the same each time: "cam1_554_live" for rtsp://u:p@cam1:554/live.
    Other schemes than RTSP stand in front. A long one is cut, and ends in a mark of its own.
    """
    scheme = scheme_of(uri)
    if scheme is None:
        match = _CAMERA.fullmatch(uri)
        parts = [uri.removeprefix("/dev/")] if match is None else ["camera", match[1] or match[2]]
    else:
        place, _, query = _public(uri).partition("?")
        parts = [*place.split("/"), *(part for part in query.split("&") if part[-4:] != "=***")]
        if scheme not in ("rtsp", "rtsps"):
            parts.insert(0, scheme)
    name = "_".join(filter(None, parts))
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in name).strip("._")
    if len(name) > LONGEST_NAME:
        whole = uri if scheme is None else f"{scheme}://{_public(uri)}"
        mark = hashlib.sha256(whole.encode()).hexdigest()[:8]
        name = f"{name[:LONGEST_NAME]}_{mark}"
    return name or "feed"


def _public(uri: str) -> str:
    """Give what follows the scheme and the credentials of a URL; secrets in it read ***."""
    return shown_feed(uri).partition("://")[2].removeprefix("***@")
