"""Failures of live feeds: one-line messages, and whether a retry can help."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

import av

from costream.redact import redact
from costream.sources.live.address import host_of, scheme_of

# An error after this fraction of the timeout means that the server did not answer.
WAITED = 0.9
_HTTP = {"http", "https"}
STALLED = "stalled: no data for {:g} s"
ENDED = "the stream has ended: the server closed it"


@dataclass(frozen=True)
class ConnectionFailure:
    """Reason why a connection was lost or could not be made."""

    message: str  # one line without the URL
    fatal: bool = False  # permanent: a retry cannot help


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
        return ConnectionFailure(
            "the server refuses the login: check user and password", fatal=True
        )
    if isinstance(error, av.HTTPNotFoundError):
        return ConnectionFailure("the server has no such feed (404): check the path", fatal=True)
    if isinstance(error, av.ProtocolNotFoundError):
        return ConnectionFailure(f"unknown protocol: {scheme_of(uri)}", fatal=True)
    if isinstance(error, (av.DecoderNotFoundError, av.DemuxerNotFoundError)):
        return ConnectionFailure("there is no decoder for it", fatal=True)
    if isinstance(error, av.ConnectionRefusedError):
        return ConnectionFailure("the connection was refused")
    if isinstance(error, (av.ExitError, av.TimeoutError)) or silent:
        return ConnectionFailure(f"no answer within {timeout_s:g} s")
    if isinstance(error, av.FileNotFoundError) and scheme_of(uri) is None:
        return ConnectionFailure("there is no such camera")
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
    if isinstance(error, av.OSError) and error.errno == errno.EIO and scheme_of(uri) in _HTTP:
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
