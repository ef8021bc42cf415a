"""Protocols that this FFmpeg supports, and logins that a server requires."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

import av

from costream.core.pyav import open_input
from costream.core.urls import split_login

PROTOCOLS = ("rtsp", "rtsps", "rtmp", "rtmps", "http", "https", "udp", "tcp", "srt")
# Those that FFmpeg has only if it was built with another library.
OPTIONAL = ("srt", "rist", "sftp", "smb")
PIPE = "ffmpeg -i {}://... -c copy -f mpegts - | costream watch -"
_PORTS = {"rtsp": 554, "http": 80}
_LONGEST = 16384  # bytes of a head
_TIMEOUT_S = 3.0
_CHALLENGE = re.compile(r"WWW-Authenticate:[ \t]*(\w+)(.*)", re.IGNORECASE)
_ALGORITHM = re.compile(r'algorithm="?SHA-?(?:256|512)', re.IGNORECASE)


def speaks(scheme: str) -> bool:
    """Return whether FFmpeg supports a protocol; does not connect."""
    try:
        open_input(f"{scheme}://127.0.0.1:9/x", options={"protocol_whitelist": "none"}).close()
    except av.ProtocolNotFoundError:
        return False
    except (av.FFmpegError, OSError, ValueError):
        pass
    return True


def asks_for_sha(uri: str) -> bool:
    """Return whether a server accepts only digest logins with SHA, which FFmpeg lacks."""
    try:
        head = _head(uri)
    except (OSError, ValueError):
        return False
    asked = _CHALLENGE.findall(head)
    return bool(asked) and all(
        kind.lower() == "digest" and _ALGORITHM.search(rest) for kind, rest in asked
    )


def _head(uri: str) -> str:
    """Return the head of a server's answer to a client without a login."""
    bare, _ = split_login(uri)
    parts = urlsplit(bare)
    port = parts.port or _PORTS.get(parts.scheme)
    if parts.hostname is None or port is None or parts.scheme not in _PORTS:
        return ""
    if parts.scheme == "rtsp":
        request = f"DESCRIBE {bare} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n"
    else:
        path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        request = f"GET {path} HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n"
    with socket.create_connection((parts.hostname, port), _TIMEOUT_S) as link:
        link.sendall(request.encode())
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _LONGEST and (more := link.recv(4096)):
            head += more
    return head.decode("latin-1")
