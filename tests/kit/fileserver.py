"""Serves a folder over HTTP, to those who know the password; gives no ranges, as many servers.

Below ``/cut/`` the connection breaks off in the middle of a file, below ``/ranges/`` there are
ranges, and below ``/as/TYPE/SUBTYPE/`` the file has that type.
"""

from __future__ import annotations

import base64
import functools
import http.server
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.http_server import Quiet, http_server

LOGIN = "viewer:sword'fish"  # legal as it is
_MANNER = re.compile(r"^/(?:cut|ranges|as/([^/]+/[^/]+))/")


class _Handler(Quiet, http.server.SimpleHTTPRequestHandler):
    query = ""  # without which nothing is given

    def do_GET(self) -> None:
        if not self._may():
            return
        path = Path(self.translate_path(self.path))
        asked = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
        if "cut/" in self.path:
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) * 2 // 3])
            self.close_connection = True
        elif "ranges/" in self.path and asked:
            data = path.read_bytes()
            start = int(asked[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:])
        else:
            super().do_GET()

    def translate_path(self, path: str) -> str:
        """Return the file of a path, without what says how to serve it."""
        return super().translate_path(_MANNER.sub("/", path))

    def guess_type(self, path: object) -> str:
        """Return the type that the address asks for."""
        asked = _MANNER.match(self.path)
        return asked[1] if asked and asked[1] else super().guess_type(str(path))

    def do_HEAD(self) -> None:
        if self._may():
            super().do_HEAD()

    def _may(self) -> bool:
        wanted = "Basic " + base64.b64encode(LOGIN.encode()).decode()
        if self.query not in self.path:
            self.send_error(403)
            return False
        if self.headers.get("Authorization") == wanted:
            return True
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="files"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False


@contextmanager
def serving(folder: Path, query: str = "") -> Iterator[str]:
    """Return the address of the folder, with the login in it; all but that needs ``query``."""
    kind = type("Handler", (_Handler,), {"query": query})
    handler = functools.partial(kind, directory=str(folder))
    with http_server(handler) as server:
        yield f"http://{LOGIN}@127.0.0.1:{server.server_port}/"
