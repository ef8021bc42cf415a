"""Interfaces of sources: the protocols, their options and their information."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from costream.core.clock import format_time
from costream.core.records import AudioFormat, Gap, Item, RawAudioFormat, SourceInfo
from costream.core.registry import Registry

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer


# "auto": hardware where there is a device that decodes the stream
DecoderChoice = Literal["auto", "software", "hardware", "fast"]

# "waiting": lost, will be retried; "lost": given up; "ended": over, or stopped
ConnectionState = Literal["connecting", "live", "waiting", "lost", "ended"]

# Times within half of Matroska's resolution are equal: "--start 0.067" selects the frame there.
SAME_TIME_S = 0.5e-3


class PacketListener(Protocol):
    """Receives every packet of a live feed before it is decoded; called by the reading thread."""

    def begin(self, container: InputContainer) -> None:
        """Handle a new connection; its streams may differ from those before."""

    def add(self, packet: Packet[Any], time_s: float) -> None:
        """Take a packet of any stream; ``time_s``: the feed's time of arrival."""

    def place(self, stamp_s: float, time_s: float) -> None:
        """Take the feed's time of the data that have this stamp in their container."""


@dataclass(frozen=True)
class ConnectionOptions:
    """Connection settings of a live feed."""

    timeout_s: float = 10.0  # lost after this long without data
    retries: int = -1  # consecutive attempts before giving up; -1: no limit
    transport: Literal["tcp", "udp"] = "tcp"  # RTSP
    speed: float | None = None  # play files as feeds at this factor; None: do not
    keeper: PacketListener | None = None
    follow: bool = False  # text files: only what is appended, also to a new file of the name
    tls_verify: bool = False  # refuse servers whose certificates are not valid
    zero_s: float | None = None  # time.monotonic() at 0 s of its times; None: when it is opened

    def age_s(self) -> float:
        """Return the time at which a source begins that is opened now: 0 s without ``zero_s``."""
        return 0.0 if self.zero_s is None else time.monotonic() - self.zero_s


@dataclass(frozen=True)
class SourceOptions:
    """Options for opening a source.

    Times are seconds on the container's own clock; transport streams count from their start.
    """

    start_s: float = 0.0
    end_s: float | None = None
    box: tuple[int, int] | None = None  # width, height that frames are fitted into; None = as is
    motion_vectors: bool = False
    drawing: tuple[int, int] | None = None  # also provide frames fitted into this, to draw on
    rate_hz: float | None = None  # rows per second, for sources without time stamps (features)
    frame_rate_hz: float | None = None  # skeletons without time stamps: frames per second
    input_hz: float | None = None  # video without time stamps: frames per second
    stream: str | None = None  # of several of video, by number (from 1) or size: 2, 320x240
    layout: str | None = None  # skeletons: name of the joint layout, or a TOML file; None = detect
    columns: str | None = None  # skeletons: roles of the columns of a table; None = detect
    persons: int = 2  # skeletons: number of person slots per frame
    sound: AudioFormat | None = None  # read the sound of media in this format; None: the video
    extra_audio: AudioFormat | None = None  # also read the sound of video, in this format
    channel: int | None = None  # audio channel, from 1; None: the mean of all
    sampled_hz: float | None = None  # video files: frames that no tick of this rate shows are not
    # decoded if no other refers to them; None: all are
    decoder: DecoderChoice = "software"  # of video; fast: in software, without loop filters
    prefetch: bool = False  # decode some frames of video files in advance, in a thread
    raw: RawAudioFormat | None = None  # read "-" and pipes as headerless samples
    text: Literal["line", "word"] | None = None  # read text, an item for each of these; None: no
    arrival: bool = False  # text: times are when it came, not the numbers of lines
    tls_verify: bool = False  # media files on web servers: refuse certificates that are not valid
    connecting: ConnectionOptions | None = (
        None  # accept live feeds (URLs, cameras); None: files only
    )


def before_start(options: SourceOptions, begin_s: float) -> str | None:
    """Return a message if the range ends before a recording begins; None if it does not."""
    if options.end_s is None or options.end_s > begin_s:
        return None
    begin, end = format_time(math.floor(begin_s)), format_time(options.end_s)
    length = format_time(max(1.0, options.end_s - options.start_s))
    return (
        f"the range ends at {end}, before the recording begins, at {begin} by its own clock; try "
        f"--start {begin} --duration {length}"
    )


@runtime_checkable
class Source(Protocol):
    """One input: ``open`` once, iterate ``items`` once, ``close`` always (any number of times).

    ``open`` raises SourceError if nothing can be read. ``items`` yields data in time order,
    with Gap and Fault items where data is missing or damaged, and never raises for bad data:
    damage that ends the stream is a last Fault with ``fatal=True``. ``stop`` may be called
    from a signal handler or another thread: ``items`` then ends soon, even while it waits for
    data. ``close`` is called by the thread that iterates.
    """

    def open(self) -> SourceInfo: ...  # noqa: D102

    def items(self) -> Iterator[Item]: ...  # noqa: D102

    def stop(self) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


def shifted(items: Iterable[Item], by_s: float) -> Iterator[Item]:
    """Yield items ``by_s`` later: of a source whose own times begin at 0 s when it is opened."""
    for item in items:
        if isinstance(item, Gap):
            yield replace(item, start_s=item.start_s + by_s, end_s=item.end_s + by_s)
        elif by_s and item.time_s is not None:
            yield replace(item, time_s=item.time_s + by_s)
        else:
            yield item


# Sources by name. Keywords of ``@source``:
# kind: of its data; a live source without one has sound if the options request it, else video
# order: place in which sources of files (sources/file.py) are asked whether they read some data;
#     those without one are asked first
# address: live sources: pattern of what the command line names them by
# connecting: live sources that need ``SourceOptions.connecting``
SOURCES = Registry[type[Source]]("costream.sources", "source")
source = SOURCES.register


@dataclass(frozen=True)
class Connection:
    """Connection state of a live source."""

    state: ConnectionState
    message: str = ""  # why it is not live; one line, redacted
    reconnects: int = 0  # successful reconnections
    received_s: float | None = None  # time.monotonic() of its newest data; None: of its newest item


@runtime_checkable
class LiveSource(Protocol):
    """Additional properties of a live source; read by threads other than the reading one."""

    @property
    def connection(self) -> Connection:
        """State of the connection."""

    @property
    def dropped(self) -> int:
        """Number of blocks or frames dropped because they were not consumed in time."""

    @property
    def drift_ppm(self) -> float | None:
        """Drift of its clock against this machine's in ppm, > 0: faster; None while unknown."""
