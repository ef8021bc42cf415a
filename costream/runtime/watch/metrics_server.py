"""``--metrics``: the status of a watch over HTTP, for Prometheus and health checks."""

from __future__ import annotations

import time
from http import HTTPStatus

from costream.core.status import WatchStatus
from costream.core.urls import redact
from costream.runtime.watch.http_server import PLAIN, HttpAnswer, HttpRequest, StatusServer
from costream.runtime.watch.prometheus import CONTENT_TYPE, exposition

STUCK_S = 5.0  # the main loop is stuck when it shows no status for this long


class Metrics:
    """Serves ``/metrics`` and ``/healthz`` at ``address``: PORT (on loopback) or HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._newest: tuple[WatchStatus, float] | None = None  # with its monotonic time
        self._server = StatusServer(address, self, "--metrics")
        self.url = f"{self._server.url}/metrics"

    def show(self, status: WatchStatus) -> None:
        """Set the status to serve."""
        self._newest = status, time.monotonic()

    def close(self) -> None:
        """Stop listening. May be called again."""
        self._server.close()

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer for a path."""
        code, kind, text = self._text(request.path)
        return HttpAnswer(code, kind, text.encode("utf-8", "backslashreplace"))  # not UTF-8 names

    def _text(self, path: str) -> tuple[HTTPStatus, str, str]:
        if path not in ("/metrics", "/healthz"):
            return HTTPStatus.NOT_FOUND, PLAIN, "not found; try /metrics or /healthz\n"
        if self._newest is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, "the watch has not started yet\n"
        status, shown_s = self._newest
        age_s = time.monotonic() - shown_s
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE, exposition(status, time.time() - age_s)
        is_well, text = health(status, age_s)
        code = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return code, PLAIN, text


def health(status: WatchStatus, age_s: float) -> tuple[bool, str]:
    """Return whether every feed that is neither lost, ended nor off makes steps, and a report.

    ``age_s``: age of the status. If all feeds are lost or ended, the watch is not healthy.
    """
    if age_s > STUCK_S:
        return False, f"the watch has been stuck for {age_s:.0f} s\n"
    lines, is_well, left = [], True, 0
    for feed in status.feeds:
        state: str = feed.state
        if state == "live":
            state = "ok" if feed.steps_hz > 0 else "live, but no steps"
        if state not in ("lost", "ended"):
            left += 1
            is_well = is_well and state in ("ok", "off")
        why = f" ({feed.message})" if feed.message and state != "ok" else ""
        lines.append(" ".join(redact(f"{feed.name}: {state}{why}").split()))
    lines += [] if left else ["no feed is active"]
    return is_well and left > 0, "".join(f"{line}\n" for line in lines)
