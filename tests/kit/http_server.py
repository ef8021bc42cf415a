"""A real HTTP server, which tests give their own answers."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Quiet:
    """For handlers: no line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class QuietFiles(Quiet, http.server.SimpleHTTPRequestHandler):
    """Answers with the files of its ``directory``."""


@contextmanager
def http_server(
    handler: Callable[..., Any], certificate: Path | None = None
) -> Iterator[http.server.ThreadingHTTPServer]:
    """Serve on a free port of this machine, a thread for each request.

    ``certificate``: a file with key and certificate, for HTTPS.
    """
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
