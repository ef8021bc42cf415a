"""Ring buffer of the newest packets of a live feed, for clips that start before an event."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
from av import Packet
from av.container import InputContainer
from av.stream import Discard

from costream.core.errors import OutputError
from costream.sources.live.clip_file import PacketCopy, StreamTemplates, write_clip
from costream.sources.media.streams import video_streams
from costream.sources.media.timing import has_time_stamps

log = logging.getLogger("costream")
LIMIT = 64 * 2**20  # maximum bytes buffered, and maximum bytes of a clip
PATIENCE_S = 2.0  # maximum lateness of the end of a clip
CLIPS = 16  # maximum number waiting to be written
# Data that arrive in bursts (HLS) are awaited and kept longer: by the longest pause between
# arrivals, which decays by this part of the elapsed time.
PAUSE_DECAY = 0.1
LONGEST_PAUSE_S = 12.0
# Time stamps that jump by more than this belong to another clock.
_BACK_S = 1.0
_AHEAD_S = 5.0  # of the elapsed time
Done = Callable[[Path | None], None]
Admit = Callable[[float, float], bool]  # start and end of a clip, seconds of the feed


class _Stretch:
    """Contiguous packets: of one connection, without jumps of the time stamps."""

    def __init__(self, tracks: StreamTemplates) -> None:
        self.tracks = tracks
        self.offset_s: float | None = (
            None  # feed time minus stamp of the newest data; None: unknown
        )


@dataclass
class _Group:
    """A group of pictures: a keyframe packet and those up to the next one."""

    stretch: _Stretch
    packets: list[PacketCopy] = field(default_factory=list)
    size: int = 0  # bytes

    @property
    def start_s(self) -> float:
        return self.packets[0].time_s

    def shift(self, offset_s: float) -> None:
        self.packets = [packet.placed(offset_s) for packet in self.packets]


@dataclass
class _Recording:
    """A clip that is still being recorded."""

    path: Path
    stretch: _Stretch
    packets: list[PacketCopy]
    end_s: float
    due_s: float  # time.monotonic() at which it is written at the latest
    done: Done
    admit: Admit | None = None
    size: int = 0  # bytes
    full: bool = False

    def take(self, packet: PacketCopy) -> None:
        self.full = self.full or packet.time_s > self.end_s or self.size > LIMIT
        if not self.full:
            self.packets.append(packet)
            self.size += len(packet.data)


class PacketRing:
    """Ring buffer of the newest packets of the video stream of a feed that is read, and its sound.

    Implements PacketListener (sources/base.py): ``begin``, ``add`` and ``place`` are called by the
    thread that reads the feed, ``save`` and ``close`` by any other. Clips are written by a separate
    thread. The time of a packet follows from its stamp and the data that were placed last. Without
    stamps, and before any data are placed, it is the time of arrival.
    """

    def __init__(self, hold_s: float, limit: int = LIMIT) -> None:
        """``hold_s``: how far back a clip can begin; ``limit``: maximum bytes buffered."""
        self._hold_s, self._limit = hold_s, limit
        self._changed = threading.Condition()  # guards everything below
        self._groups: deque[_Group] = deque()
        self._size = 0  # bytes in them
        self._stretch: _Stretch | None = None
        self._lead: int | None = None  # index of the stream whose keyframes begin groups
        self._stamped = True  # the connection's packets have time stamps
        self._refused: set[int] = set()  # streams that Matroska does not support
        self._warned: set[str] = set()  # reasons already logged, once for all connections
        self._last: PacketCopy | None = None  # newest packet of the lead stream
        self._arrived_s = math.nan  # its arrival in feed time
        self._pause_s = 0.0  # recent longest time between arrivals: with HLS, a segment
        self._recordings: list[_Recording] = []
        self._writer: threading.Thread | None = None
        self._closed = False
        self.failed = 0  # clips that could not be written

    def begin(self, container: InputContainer) -> None:
        """Handle a new connection. Clips of the previous one end with it."""
        pictures = [s for s in video_streams(container) if s.discard != Discard.all]
        lead = next(iter([*pictures, *container.streams.audio]), None)
        with self._changed:
            self._lead = None if lead is None else lead.index
            self._stamped = has_time_stamps(container)
            self._refused.clear()
            self._break(StreamTemplates())

    def add(self, packet: Packet[Any], time_s: float) -> None:
        """Store a copy of ``packet``; ``time_s``: the feed's time of arrival."""
        stream = packet.stream
        if self._stretch is None or self._closed or packet.size == 0:
            return
        lead = stream.index == self._lead
        if not (lead or stream.type == "audio") or stream.index in self._refused:
            return
        try:
            self._stretch.tracks.note(stream)
        except ValueError as error:
            self._refused.add(stream.index)
            if str(error) not in self._warned:
                self._warned.add(str(error))
                log.warning("clips are written without the %s of a feed: %s", stream.type, error)
            return
        copy = PacketCopy.of(packet, time_s, self._stamped)
        with self._changed:
            if lead:
                self._check_clock(copy, time_s)
            if self._stretch.offset_s is not None:
                copy = copy.placed(self._stretch.offset_s)
            self._store(copy, lead and copy.key)
            for recording in self._recordings:
                if recording.stretch is self._stretch:
                    recording.take(copy)
            self._changed.notify()

    def place(self, stamp_s: float, time_s: float) -> None:
        """Take the time in the feed, ``time_s``, of the data stamped ``stamp_s``."""
        stretch = self._stretch
        if stretch is None or not self._stamped:
            return
        with self._changed:
            first, stretch.offset_s = stretch.offset_s is None, time_s - stamp_s
            for group in self._groups:
                if first and group.stretch is stretch:
                    group.shift(stretch.offset_s)

    def save(
        self,
        path: Path,
        at_s: float,
        before_s: float,
        after_s: float,
        done: Done,
        admit: Admit | None = None,
    ) -> bool:
        """Write a clip from ``before_s`` before ``at_s`` to ``after_s`` after it to ``path``.

        Times are those of the feed's steps. The clip begins at the last keyframe before that and
        contains only the connection at ``at_s``. It is written once its end has arrived or is
        overdue; then ``done`` is called in another thread with the path, or None if writing failed.
        ``admit``, called in that thread before, returns whether the clip may be written at all.
        Returns False if nothing of that time is buffered or too many clips are waiting.
        """
        end_s = at_s + after_s
        with self._changed:
            groups = self._groups_at(at_s, at_s - before_s, end_s)
            if not groups or self._closed or len(self._recordings) >= CLIPS:
                return False
            packets = [p for group in groups for p in group.packets]
            due_s = time.monotonic() + max(0.0, end_s - packets[-1].time_s)
            due_s += self._pause_s + PATIENCE_S
            recording = _Recording(path, groups[0].stretch, [], end_s, due_s, done, admit)
            for packet in packets:
                recording.take(packet)
            recording.full = recording.full or recording.stretch is not self._stretch
            self._recordings.append(recording)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="clips", daemon=True)
                self._writer.start()
            self._changed.notify()
        return True

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the waiting clips with the packets so far, and clear the buffer."""
        with self._changed:
            self._closed = True
            self._groups.clear()
            self._changed.notify()
        if self._writer is not None:
            self._writer.join(timeout_s)

    def _check_clock(self, copy: PacketCopy, arrived_s: float) -> None:
        """End the stretch where the time stamps jump; a clip would become hours long."""
        last, self._last = self._last, copy
        elapsed_s, self._arrived_s = arrived_s - self._arrived_s, arrived_s
        if last is not None:
            self._pause_s = min(
                max(elapsed_s, self._pause_s - PAUSE_DECAY * elapsed_s), LONGEST_PAUSE_S
            )
        if last is None or last.dts is None or copy.dts is None or self._stretch is None:
            return
        media_s = float((copy.dts - last.dts) * copy.time_base)
        if not -_BACK_S <= media_s <= elapsed_s + _AHEAD_S:
            self._break(self._stretch.tracks)

    def _break(self, tracks: StreamTemplates) -> None:
        """Start a new stretch and complete the clips of the old one."""
        self._stretch, self._last = _Stretch(tracks), None
        for recording in self._recordings:
            recording.full = True
        self._changed.notify()

    def _store(self, copy: PacketCopy, begins: bool) -> None:
        groups = self._groups
        if begins and self._stretch is not None:
            groups.append(_Group(self._stretch))
        elif not groups or groups[-1].stretch is not self._stretch:
            return  # nothing before the first keyframe can be decoded
        groups[-1].packets.append(copy)
        groups[-1].size += len(copy.data)
        self._size += len(copy.data)
        from_s = copy.time_s - self._hold_s - self._pause_s
        while self._size > self._limit or (len(groups) > 1 and groups[1].start_s <= from_s):
            self._size -= groups.popleft().size

    def _groups_at(self, at_s: float, start_s: float, end_s: float) -> list[_Group]:
        """Return the groups of the stretch at ``at_s``, from the one that contains ``start_s``."""
        there = [group for group in self._groups if group.start_s <= at_s]
        there = there or [group for group in self._groups if group.start_s <= end_s][:1]
        if not there:
            return []
        stretch = [group for group in self._groups if group.stretch is there[-1].stretch]
        first = sum(group.start_s <= start_s for group in stretch[1:])
        return stretch[first:]

    def _write_all(self) -> None:
        while (recording := self._next()) is not None:
            done: Path | None = recording.path
            times_s = [packet.time_s for packet in recording.packets]
            if recording.admit is not None and not recording.admit(min(times_s), max(times_s)):
                recording.done(None)
                continue
            try:
                write_clip(recording.path, recording.stretch.tracks, recording.packets)
            except (av.FFmpegError, OSError, ValueError) as error:
                log.warning("%s", OutputError(f"cannot write ({error})", where=recording.path.name))
                done = None
                self.failed += 1
            recording.done(done)

    def _next(self) -> _Recording | None:
        """Wait for a clip that is due and return it; None: there will be no more."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                for recording in self._recordings:
                    if recording.full or self._closed or recording.due_s <= now_s:
                        self._recordings.remove(recording)
                        return recording
                if self._closed:
                    return None
                due_s = min((r.due_s for r in self._recordings), default=None)
                self._changed.wait(None if due_s is None else due_s - now_s)
