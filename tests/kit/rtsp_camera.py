"""A camera with faults: RTSP over TCP, H.264 of files, one fault or several at a time."""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import av

_CLOCK = 90_000  # units of RTP a second
_PIECE = 1300  # bytes of a packet
_SETS = (7, 8)  # NAL units: parameter sets
_SHA = 'Digest realm="cam", nonce="abc", algorithm="SHA-256"'


@dataclass(frozen=True)
class Faults:
    """What is wrong with a camera."""

    stamps: Callable[[float], float] = lambda media_s: media_s  # of frames, from their times
    bare_s: float = 0.0  # for so long parameter sets are nowhere
    lost_every: int = 0  # of the packets of RTP; 0: none is lost
    sha: bool = False  # asks for a digest that FFmpeg does not know
    tells_time: bool = True  # by RTCP


@contextmanager
def camera(*paths: Path, port: int = 0, **faults: object) -> Iterator[str]:
    """Return the address of a camera with a track for each file, sent again and again.

    ``port``: 0 is a free one.
    """
    films = [_units_of(path) for path in paths]
    server = socket.create_server(("127.0.0.1", port))
    port = server.getsockname()[1]
    made = Faults(**faults)  # type: ignore[arg-type]

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client = server.accept()[0]
                serve = _Client(client, films, made).serve
                threading.Thread(target=serve, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"rtsp://127.0.0.1:{port}/live"
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def _units_of(path: Path) -> list[tuple[float, list[bytes]]]:
    """Return the NAL units of each frame, with its time."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [
            (float(p.pts * p.time_base), bytes(p)) for p in container.demux(stream) if p.size
        ]
    return [(at, [u for u in re.split(b"\0\0\0\1|\0\0\1", data) if u]) for at, data in packets]


class _Client:
    """One connection."""

    def __init__(
        self, link: socket.socket, films: list[list[tuple[float, list[bytes]]]], faults: Faults
    ) -> None:
        self._link, self._films, self._faults = link, films, faults
        self._channels: dict[int, int] = {}  # by track
        self._sent = [0] * len(films)
        self._count = 0
        self._lock = threading.Lock()

    def serve(self) -> None:
        with contextlib.suppress(OSError), self._link, self._link.makefile("rb") as lines:
            while line := lines.readline():
                if line[:1] == b"$":  # RTCP of the client
                    lines.read(struct.unpack("!H", line[2:4])[0] - max(0, len(line) - 4))
                    continue
                head = {}
                while (more := lines.readline().strip()) and b":" in more:
                    name, _, value = more.decode().partition(":")
                    head[name.lower()] = value.strip()
                self._answer(*line.decode().split()[:2], head)

    def _answer(self, method: str, url: str, head: dict[str, str]) -> None:
        more, body, code = "Session: 1\r\n", "", "200 OK"
        if method == "OPTIONS":
            more = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
        elif self._faults.sha:
            code, more = "401 Unauthorized", f"WWW-Authenticate: {_SHA}\r\n"
        elif method == "DESCRIBE":
            body = self._description()
            more = f"Content-Base: {url}/\r\nContent-Type: application/sdp\r\n"
        elif method == "SETUP":
            channel = int(re.findall(r"interleaved=(\d+)", head["transport"])[0])
            self._channels[int(url.rpartition("track")[2])] = channel
            more += f"Transport: RTP/AVP/TCP;unicast;interleaved={channel}-{channel + 1}\r\n"
        size = f"Content-Length: {len(body)}\r\n" if body else ""
        self._send(f"RTSP/1.0 {code}\r\nCSeq: {head['cseq']}\r\n{more}{size}\r\n{body}".encode())
        if method == "PLAY":
            threading.Thread(target=self._play, daemon=True).start()

    def _description(self) -> str:
        text = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n"
        for k, film in enumerate(self._films):
            sets = [base64.b64encode(u).decode() for u in film[0][1] if u[0] & 31 in _SETS]
            how = "" if self._faults.bare_s else f";sprop-parameter-sets={','.join(sets)}"
            text += (
                f"m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/{_CLOCK}\r\n"
                f"a=fmtp:96 packetization-mode=1{how}\r\na=control:track{k}\r\n"
            )
        return text

    def _play(self) -> None:
        began_s, told_s = time.monotonic(), 0.0
        film = self._films[0]
        each_s = film[1][0] - film[0][0]
        with contextlib.suppress(OSError):
            for k in range(10**6):
                media_s = k * each_s
                time.sleep(max(0.0, began_s + media_s - time.monotonic()))
                stamp = round(self._faults.stamps(media_s) * _CLOCK) & 0xFFFFFFFF
                if self._faults.tells_time and media_s >= told_s:
                    told_s += 1.0
                    for track in self._channels:
                        self._report(track, stamp)
                for track in self._channels:
                    units = self._films[track][k % len(self._films[track])][1]
                    if media_s < self._faults.bare_s:
                        units = [unit for unit in units if unit[0] & 31 not in _SETS]
                    for unit in units:
                        self._unit(track, stamp, unit, last=unit is units[-1])

    def _unit(self, track: int, stamp: int, unit: bytes, *, last: bool) -> None:
        if len(unit) <= _PIECE:
            self._packet(track, stamp, unit, last)
            return
        for at in range(1, len(unit), _PIECE):
            ends = at + _PIECE >= len(unit)
            kind = unit[0] & 31 | (0x80 if at == 1 else 0) | (0x40 if ends else 0)
            piece = bytes([unit[0] & 0x60 | 28, kind]) + unit[at : at + _PIECE]
            self._packet(track, stamp, piece, last and ends)

    def _packet(self, track: int, stamp: int, data: bytes, last: bool) -> None:
        number, self._sent[track] = self._sent[track], self._sent[track] + 1
        self._count += 1
        if self._faults.lost_every and self._count % self._faults.lost_every == 0:
            return
        head = struct.pack("!BBHII", 0x80, 96 | last << 7, number & 0xFFFF, stamp, track + 1)
        self._framed(self._channels[track], head + data)

    def _report(self, track: int, stamp: int) -> None:
        """Tell the time of the camera's own clock (RTCP)."""
        seconds, part = divmod(time.time() + 2_208_988_800, 1)
        values = (0x80, 200, 6, track + 1, int(seconds), int(part * 2**32), stamp, 0, 0)
        self._framed(self._channels[track] + 1, struct.pack("!BBHIIIIII", *values))

    def _framed(self, channel: int, data: bytes) -> None:
        self._send(b"$" + struct.pack("!BH", channel, len(data)) + data)

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._link.sendall(data)
