"""Interfaces of sources: the protocols, their options and their information."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from costream.core.clock import format_time
from costream.core.errors import SourceError
from costream.core.records import (
    AudioFormat,
    Fault,
    Gap,
    Item,
    RawAudioFormat,
    SourceInfo,
    VideoFrame,
)
from costream.core.registry import Registry

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer


# "auto": hardware if this machine can decode the stream with it
DecoderChoice = Literal["auto", "software", "hardware", "fast"]

# "waiting": lost, to be retried; "lost": no more retries; "ended": finished or stopped
ConnectionState = Literal["connecting", "live", "waiting", "lost", "ended"]

# Times that differ by less than half of Matroska's resolution are equal.
SAME_TIME_S = 0.5e-3


class PacketListener(Protocol):
    """Receives every packet of a live feed before it is decoded; called by the reading thread."""

    def begin(self, container: InputContainer) -> None:
        """Handle a new connection; its streams may differ from those before."""

    def add(self, packet: Packet[Any], time_s: float) -> None:
        """Take a packet of any stream; ``time_s``: its arrival in seconds of the feed."""

    def place(self, stamp_s: float, time_s: float) -> None:
        """Take the time in the feed, ``time_s``, of the data stamped ``stamp_s``."""


@dataclass(frozen=True)
class ConnectionOptions:
    """Connection settings of a live feed."""

    timeout_s: float = 10.0  # lost after this long without data
    retries: int = -1  # consecutive failed attempts before giving up; -1: no limit
    transport: Literal["tcp", "udp"] = "tcp"  # RTSP
    speed: float | None = None  # play files as feeds at this factor; None: do not
    keeper: PacketListener | None = None
    name: str = ""  # of the feed, in messages; empty: its address, without a password
    follow: bool = False  # text files: read only appended lines, as tail -F does
    tls_verify: bool = False  # refuse servers with invalid certificates
    zero_s: float | None = None  # time.monotonic() at 0 s of the source; None: when opened

    def age_s(self) -> float:
        """Return the start time of a source that is opened now: 0 s without ``zero_s``."""
        return 0.0 if self.zero_s is None else time.monotonic() - self.zero_s


@dataclass(frozen=True)
class SourceOptions:
    """Options for opening a source.

    Times are seconds on the clock of the container; transport streams count from their start.
    """

    start_s: float = 0.0
    end_s: float | None = None
    box: tuple[int, int] | None = None  # width, height that frames are fitted into; None = as is
    motion_vectors: bool = False
    drawing: tuple[int, int] | None = None  # also provide frames fitted into this, to draw on
    rate_hz: float | None = None  # rows per second, for sources without time stamps (features)
    frame_rate_hz: float | None = None  # skeletons without time stamps: frames per second
    input_hz: float | None = None  # video without time stamps: frames per second
    stream: str | None = None  # which video stream, by number (from 1) or size: 2, 320x240
    layout: str | None = None  # skeletons: name of the joint layout, or a TOML file; None = detect
    columns: str | None = None  # skeletons: roles of the columns of a table; None = detect
    persons: int = 2  # skeletons: number of person slots per frame
    sound: AudioFormat | None = None  # read the sound of media in this format; None: the video
    extra_audio: AudioFormat | None = None  # also read the sound of video, in this format
    channel: int | None = None  # audio channel, from 1; None: the mean of all channels
    # Video files: skip frames that are not shown at this rate and that no other frame needs.
    sampled_hz: float | None = None  # None: decode all frames
    decoder: DecoderChoice = "software"  # of video; fast: software without loop filters
    prefetch: bool = False  # decode some frames of video files in advance, in a thread
    raw: RawAudioFormat | None = None  # read "-" and pipes as headerless samples
    text: Literal["line", "word"] | None = None  # read text by lines or words; None: not text
    arrival: bool = False  # text: use arrival times instead of line numbers
    tls_verify: bool = False  # media files on web servers: refuse invalid certificates
    connecting: ConnectionOptions | None = None  # accept live feeds; None: files only


def before_start(options: SourceOptions, begin_s: float) -> str | None:
    """Return an error message if the range ends before the recording begins, else None."""
    if options.end_s is None or options.end_s > begin_s:
        return None
    begin, end = format_time(math.floor(begin_s)), format_time(options.end_s)
    length = format_time(max(1.0, options.end_s - options.start_s))
    return (
        f"the range ends at {end}, before the recording begins (at {begin}); try "
        f"--start {begin} --duration {length}"
    )


@runtime_checkable
class Source(Protocol):
    """One input: ``open`` once, iterate ``items`` once, ``close`` always (any number of times).

    ``open`` raises SourceError if the input cannot be read. ``items`` yields data in time order,
    with Gap and Fault items where data is missing or damaged, and never raises for bad data:
    damage that ends the stream is a last Fault with ``fatal=True``. ``stop`` may be called
    from a signal handler or another thread: ``items`` then ends soon, even while it waits for
    data. ``close`` is called by the thread that iterates.
    """

    def open(self) -> SourceInfo: ...  # noqa: D102

    def items(self) -> Iterator[Item]: ...  # noqa: D102

    def stop(self) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


def first_frame(source: Source, where: str, empty: str) -> tuple[SourceInfo, VideoFrame]:
    """Open a source, return its information and first frame, and close it.

    Raises:
        SourceError: there is none, because of a fault or, if there was no fault, for the reason
            ``empty``. ``where`` names the source.
    """
    why = empty
    try:
        info = source.open()
        for item in source.items():
            if isinstance(item, VideoFrame):
                _ = item.rgb  # before the decoder is closed
                return info, item
            if isinstance(item, Fault):
                why = item.message
                if item.fatal:
                    break
    finally:
        source.close()
    raise SourceError(why, where=where)


def shifted(items: Iterable[Item], by_s: float) -> Iterator[Item]:
    """Yield items with ``by_s`` added to their times."""
    for item in items:
        if isinstance(item, Gap):
            yield replace(item, start_s=item.start_s + by_s, end_s=item.end_s + by_s)
        elif by_s and item.time_s is not None:
            yield replace(item, time_s=item.time_s + by_s)
        else:
            yield item


# Sources by name. Keywords of ``@source``:
# kind: kind of its data; live sources without it yield sound if the options ask for it, else video
# order: place in which sources of files are asked whether they read some data (sources/file.py);
#     sources without it are asked first
# address: live sources: pattern of their names on the command line
# connecting: live sources that need ``SourceOptions.connecting``
SOURCES = Registry[type[Source]]("costream.sources", "source")
source = SOURCES.register


@dataclass(frozen=True)
class Connection:
    """Connection state of a live source."""

    state: ConnectionState
    message: str = ""  # why it is not live: one line without credentials
    reconnects: int = 0  # successful reconnections
    received_s: float | None = None  # time.monotonic() of the newest data; None: see its items


@runtime_checkable
class LiveSource(Protocol):
    """Additional properties of a live source; any thread may read them."""

    @property
    def connection(self) -> Connection:
        """State of the connection."""

    @property
    def dropped(self) -> int:
        """Number of blocks or frames dropped because they were not consumed in time."""

    @property
    def drift_ppm(self) -> float | None:
        """Drift of its clock against this machine's, in ppm; > 0: faster; None: unknown."""
