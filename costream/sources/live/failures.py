"""Failures of live feeds: one-line messages, and whether a retry can help."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

import av

from costream.core.urls import redact
from costream.sources.live.address import host_of, list_cameras, scheme_of
from costream.sources.live.servers import OPTIONAL, PIPE, asks_for_sha

# An error after this fraction of the timeout means that the server did not answer.
WAITED = 0.9
HTTP_SCHEMES = {"http", "https"}
STALLED = "stalled: no data for {:g} s"
ENDED = "the stream has ended: the server closed it"
SINGLE = (
    "this is a single picture, not a stream: use the address of a stream (RTSP, MJPEG over HTTP)"
)
UNVERIFIED = (
    "--tls-verify is not possible here: FFmpeg does not verify the certificates of the segments of "
    "a playlist; use RTSP, or MPEG-TS over HTTPS"
)
REPEATED = "the server repeats earlier data: it, or its playlist, is no longer updated"
LOGIN = "the server refuses the login: check user and password"
SHA = (
    "the server requires a digest login with SHA-256, which FFmpeg does not support: allow MD5 or "
    "Basic in the camera, or relay it through a server such as MediaMTX or go2rtc"
)
# Errors, their meaning, and whether they end a feed at its first attempt.
_ANSWERS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, bool], ...] = (
    (av.HTTPNotFoundError, "the server has no such feed (404): check the path", True),
    (
        av.HTTPServerError,
        "the server reports an internal error (5xx): see its log, or restart it",
        False,
    ),
    (
        (av.HTTPBadRequestError, av.HTTPOtherClientError),
        "the server refuses the request (4xx): check the address",
        False,
    ),
    ((av.DecoderNotFoundError, av.DemuxerNotFoundError), "there is no decoder for it", True),
    (av.ConnectionRefusedError, "the connection was refused", False),
)


@dataclass(frozen=True)
class ConnectionFailure:
    """Reason why a connection was lost or could not be made."""

    message: str  # one line without the URL
    refused: bool = False  # ends a feed at its first attempt: a login, a path, an absent camera


class ConnectionFailedError(Exception):
    """A connection cannot be made."""

    def __init__(self, loss: ConnectionFailure) -> None:
        super().__init__(loss.message)
        self.loss = loss


def opening_failure(
    error: Exception, uri: str, waited_s: float, timeout_s: float
) -> ConnectionFailure:
    """Return why opening failed; ``waited_s``: time until the failure."""
    silent = waited_s >= WAITED * timeout_s
    if isinstance(error, (av.HTTPUnauthorizedError, av.HTTPForbiddenError)):
        return ConnectionFailure(SHA if asks_for_sha(uri) else LOGIN, refused=True)
    if isinstance(error, av.ProtocolNotFoundError):
        return _unknown_protocol(scheme_of(uri) or "")
    for kinds, message, refused in _ANSWERS:
        if isinstance(error, kinds):
            return ConnectionFailure(message, refused)
    if isinstance(error, (av.ExitError, av.TimeoutError)) or silent:
        return ConnectionFailure(f"no answer within {timeout_s:g} s")
    if isinstance(error, av.FileNotFoundError) and scheme_of(uri) is None:
        others = ", only " + ", ".join(list_cameras()) if list_cameras() else ", and no other"
        return ConnectionFailure(f"there is no such camera{others}", refused=True)
    return _other_opening_failure(error, uri)


def _unknown_protocol(scheme: str) -> ConnectionFailure:
    message = f"unknown protocol: {scheme}"
    if scheme in OPTIONAL:
        message = f"FFmpeg has no {scheme} here; read it from a pipe: {PIPE.format(scheme)}"
    return ConnectionFailure(message, refused=True)


def _other_opening_failure(error: Exception, uri: str) -> ConnectionFailure:
    """Return why opening failed, for errors that FFmpeg reports by ambiguous codes."""
    if isinstance(error, av.OSError) and error.errno == errno.EPROTONOSUPPORT:
        return ConnectionFailure(
            "the server does not send over this transport (tcp, udp): try the other"
        )
    if isinstance(error, av.EOFError):
        return ConnectionFailure("the server closed the connection")
    failed = isinstance(error, av.OSError) and error.errno == errno.EIO and host_of(uri)
    if failed and not _is_known(host_of(uri)):
        return ConnectionFailure(f"the host {host_of(uri)} cannot be found")
    if failed or isinstance(error, av.InvalidDataError):
        return ConnectionFailure("the server sent no readable stream")
    return ConnectionFailure(_reason(error))


def reading_failure(error: Exception, uri: str, timeout_s: float) -> ConnectionFailure:
    """Return why reading failed."""
    if isinstance(error, (av.ExitError, av.TimeoutError)):
        return ConnectionFailure(STALLED.format(timeout_s))
    if isinstance(error, av.InvalidDataError):
        return ConnectionFailure("the stream is damaged")
    if (
        isinstance(error, av.OSError)
        and error.errno == errno.EIO
        and scheme_of(uri) in HTTP_SCHEMES
    ):
        return ConnectionFailure(ENDED)  # FFmpeg expects HTTP without a stated length never to end
    return ConnectionFailure(f"the connection was lost ({_reason(error)})")


def _is_known(host: str) -> bool:
    """Return whether a host name can be resolved."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True


def _reason(error: Exception) -> str:
    # The full text of an FFmpeg error ends with the URL.
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return redact(" ".join(str(text).split()))
