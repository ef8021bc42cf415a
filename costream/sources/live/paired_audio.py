"""Sound of a video feed: from the same connection, decoded in a separate thread."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet

from costream.core.clock import SILENT_S, format_time
from costream.core.errors import SourceError
from costream.core.records import AudioBlock, AudioFormat, Fault, Gap
from costream.sources.base import SourceOptions
from costream.sources.live.audio_track import AudioTrack
from costream.sources.live.recent_packets import RecentPackets

END_S = 2.0  # maximum time to decode pending packets when a connection ends


class PairedAudio:
    """The blocks of sound of one feed, over all its connections.

    The thread that reads the connection calls ``begin``, ``takes``, ``take`` and ``end``. Each
    connection has a decoding thread, so that missing sound never delays the video.
    """

    def __init__(
        self, options: SourceOptions, where: str, began_s: float, sound: AudioFormat
    ) -> None:
        """Take the arguments of ``AudioTrack``."""
        self._track = AudioTrack(options, where, began_s, sound)
        self._began_s = began_s
        self._link: _Packets | None = None
        self._recent = RecentPackets()
        self._thread: Thread | None = None
        self._done: deque[AudioBlock | Fault] = deque()
        self._missing_reported = False  # since the last connection with sound
        # Of the connection: time of the newest frame, and of the newest one with sound.
        self._newest_s = self._heard_s = math.inf
        self._silence_reported = False

    def begin(self, container: InputContainer, stream: AudioStream | None, missing: str) -> None:
        """Begin a connection; ``stream`` is None without sound, ``missing`` gives the reason."""
        if stream is None:
            if not self._missing_reported:
                self._missing_reported = True
                self._done.append(Fault(time.monotonic() - self._began_s, f"no sound: {missing}"))
            return
        self._missing_reported = False
        self._recent.begin(container)
        self._link = _Packets(container, stream, self._recent)
        self._newest_s = math.inf
        self._heard_s = math.inf
        self._thread = Thread(target=self._run, args=[self._link], name="sound", daemon=True)
        self._thread.start()

    def takes(self, packet: Packet[Any], waited_s: float) -> bool:
        """Take a packet of sound; return False for other packets."""
        if self._link is None or packet.stream is not self._link.stream:
            return False
        if packet.size:
            self._link.put(packet, waited_s)
            self._heard_s, self._silence_reported = self._newest_s, False
        return True

    def take(self, time_s: float) -> Iterator[AudioBlock | Fault]:
        """Yield the decoded items; ``time_s``: time of the newest frame."""
        self._newest_s, self._heard_s = time_s, min(self._heard_s, time_s)
        silent_s = time_s - self._heard_s
        if self._link is not None and silent_s > SILENT_S and not self._silence_reported:
            self._silence_reported = True
            yield Fault(self._heard_s, f"no sound for {silent_s:.0f} s")
        while self._done:
            yield self._done.popleft()

    def end(self) -> None:
        """End the connection, before its container is closed."""
        link, thread = self._link, self._thread
        self._link = self._thread = None
        if link is not None and thread is not None:
            link.put(None)
            thread.join(END_S)

    def _run(self, link: _Packets) -> None:
        begun = False
        try:
            for item in self._track.run(link, ""):  # type: ignore[arg-type]
                if isinstance(item, AudioBlock):
                    self._done.append(item)
                elif isinstance(item, Fault):
                    self._done.append(replace(item, fatal=False))
                elif isinstance(item, Gap) and begun:  # the first Gap is reported by the video
                    text = f"no sound until {format_time(item.end_s)} ({item.reason})"
                    self._done.append(Fault(item.start_s, text))
                begun = begun or isinstance(item, AudioBlock)
        except SourceError as error:  # its format is unusable
            self._done.append(Fault(time.monotonic() - self._began_s, f"no sound: {error}"))
        finally:
            self._track.close()


class _Packets:
    """The packets of sound of one connection, for ``AudioTrack.run``."""

    def __init__(
        self, container: InputContainer, stream: AudioStream, recent: RecentPackets
    ) -> None:
        self.container, self.stream, self.recent = container, stream, recent
        self._queue: SimpleQueue[tuple[Packet[Any] | None, float, float]] = SimpleQueue()
        self.begun_s = self.arrived_s = time.monotonic()
        self.waited_s, self.sent_s = 0.0, None

    def put(self, packet: Packet[Any] | None, waited_s: float = 0.0) -> None:
        """Add a packet, None at the end; ``waited_s``: total time spent waiting for data."""
        self._queue.put((packet, time.monotonic(), waited_s))

    def packets(self) -> Iterator[Packet[Any] | None]:
        """Yield the packets; the last one is None."""
        packet: Packet[Any] | None
        first = True
        while True:
            packet, self.arrived_s, self.waited_s = self._queue.get()
            self.begun_s = self.arrived_s if first else self.begun_s
            first = False
            if packet is not None:
                self.recent.add(packet)
            yield packet
            if packet is None:
                return

    def mark_alive(self) -> None:
        """Do nothing: the video keeps the connection alive."""

    def place(self, pts: int | None, time_s: float) -> None:
        """Do nothing: packets are placed by the video."""
