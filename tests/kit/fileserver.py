"""Serves a folder over HTTP, to those who know the password; gives no ranges, as many servers."""

from __future__ import annotations

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOGIN = "viewer:swordfish"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self._may():
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._may():
            super().do_HEAD()

    def _may(self) -> bool:
        wanted = "Basic " + base64.b64encode(LOGIN.encode()).decode()
        if self.headers.get("Authorization") == wanted:
            return True
        self.send_error(401)
        return False


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Return the address of the folder, with the login in it."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{LOGIN}@127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
