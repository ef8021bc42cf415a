"""A proxy between a client and a TCP server that stalls and cuts connections at any byte."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

PIECE = 16384  # bytes that go through at a time


class TcpProxy:
    """Passes on what comes to ``port`` until it is told otherwise; a context manager."""

    def __init__(self, upstream_port: int) -> None:
        """``upstream_port``: of the server, on this machine."""
        self._upstream = upstream_port
        self._go = threading.Event()
        self._go.set()
        self._left: int | None = None  # bytes that may still come from the server
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.accepted = 0  # connections so far
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._ended = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        with contextlib.suppress(OSError):  # wakes up accept
            socket.create_connection(("127.0.0.1", self.port)).close()
        self.resume()
        self.cut()
        for thread in self._threads:
            thread.join(90)
        self._server.close()

    def stall(self) -> None:
        """Pass nothing on, with the connections open, until ``resume``."""
        self._go.clear()

    def resume(self) -> None:
        """Go on."""
        self._go.set()

    def cut(self) -> None:
        """Reset all connections at once; new ones are taken."""
        pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            # Linger 0 resets; without shutdown the thread that reads keeps the connection open.
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)
            end.close()

    def cut_after(self, count: int) -> None:
        """Cut once ``count`` more bytes have come from the server: amid whatever they are."""
        self._left = count

    def _accept(self) -> None:
        while not self._ended:
            client = self._server.accept()[0]
            try:
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                client.close()
                continue
            self._pairs.append((client, server))
            self.accepted += 1
            for source, target in ((client, server), (server, client)):
                pump = threading.Thread(
                    target=self._pump, args=(source, target, source is server), daemon=True
                )
                self._threads.append(pump)
                pump.start()

    def _pump(self, source: socket.socket, target: socket.socket, downwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                self._go.wait()
                if downwards and self._left is not None:
                    left = self._left
                    self._left = left - len(data)
                    if self._left <= 0:
                        self._left = None
                        target.sendall(data[:left])
                        self.cut()
                        return
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
