"""The seam between the world and a model: what a source is asked for and what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from costream.records import Item

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer

SourceKind = Literal["video", "audio", "features", "skeleton"]
# "waiting": lost, to be tried again; "lost": given up; "ended": over, or stopped
ConnectionState = Literal["connecting", "live", "waiting", "lost", "ended"]


@dataclass(frozen=True)
class Sound:
    """The sound a model takes: mono, in blocks of one step each."""

    rate_hz: int  # samples a second
    block: int  # samples of a step


@dataclass(frozen=True)
class RawSound:
    """What bare samples without a header are (raw PCM on a pipe)."""

    form: str  # FFmpeg's name of a sample format: s16le, f32le, ...
    rate_hz: int
    channels: int = 1


class PacketKeeper(Protocol):
    """Is shown every packet of a live feed, before it is decoded; called by the reading thread."""

    def begin(self, container: InputContainer) -> None:
        """A connection was made; its streams may differ from those before."""

    def add(self, packet: Packet[Any], time_s: float) -> None:
        """Take a packet of any stream; ``time_s``: the feed's time when it came."""


@dataclass(frozen=True)
class Connecting:
    """How a live feed is connected to."""

    timeout_s: float = 10.0  # without data for so long, it is lost
    retries: int = -1  # attempts in a row before it is given up; -1: for ever
    transport: Literal["tcp", "udp"] = "tcp"  # RTSP
    speed: float | None = None  # play files as feeds, so many times as fast; None: do not
    keeper: PacketKeeper | None = None


@dataclass(frozen=True)
class SourceOptions:
    """What a source is asked for.

    Times are seconds on the container's own clock; transport streams count from their start.
    """

    start_s: float = 0.0
    end_s: float | None = None
    box: tuple[int, int] | None = None  # width, height that pictures are fitted into; None = as is
    motion_vectors: bool = False
    drawing: tuple[int, int] | None = None  # give pictures fitted into this as well, to draw upon
    rate_hz: float | None = None  # rows a second, for sources without time stamps (features)
    frame_rate_hz: float | None = None  # skeletons without time stamps: frames a second, if told
    layout: str | None = None  # skeletons: name of the joint layout, or a TOML file; None = found
    columns: str | None = None  # skeletons: what the columns of a table are; None = found
    persons: int = 2  # skeletons: how many persons a frame has room for
    sound: Sound | None = None  # give the sound of media, like this; None: their pictures
    beside: Sound | None = None  # give the sound of video files as well, like this
    channel: int | None = None  # take this channel of the sound, from 1; None: the mean of all
    raw: RawSound | None = None  # read "-" and pipes as bare samples
    connecting: Connecting | None = None  # take live feeds (URLs, cameras); None: files only


@dataclass(frozen=True)
class SourceInfo:
    """What is known of a source once it is open."""

    name: str  # file name that outputs are named after, e.g. "clip.mp4"
    uri: str  # redacted
    kind: SourceKind
    duration_s: float | None  # whole length; None when unknown (streams, stdin)
    rate_hz: float | None  # nominal frames or rows a second
    size: tuple[int, int] | None = None  # upright width, height of the pictures
    width: int | None = None  # features: values a row
    layout: str | None = None  # skeletons: name of the joint layout
    axes: int | None = None  # skeletons: coordinates a joint, 2 or 3
    beside: bool = False  # sound comes beside the pictures
    silent: str | None = None  # why it does not, where that is known
    live: bool = False  # data come when they happen: nothing may wait for more of them
    began_s: float | None = None  # live: time.time() at 0 s


class Source(Protocol):
    """One input. ``open`` once, iterate ``items`` once, ``close`` always (any number of times).

    ``open`` raises SourceError when nothing can be read. ``items`` yields data in order of
    time, with Gap and Fault items where data is missing or damaged, and never raises for bad
    data: damage that ends the stream is a last Fault with ``fatal=True``. ``stop`` may be
    called from a signal handler or another thread: ``items`` then ends soon, also while it
    waits for data. ``close`` is called by the thread that iterates.
    """

    def open(self) -> SourceInfo: ...  # noqa: D102

    def items(self) -> Iterator[Item]: ...  # noqa: D102

    def stop(self) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Connection:
    """How a live source is doing."""

    state: ConnectionState
    message: str = ""  # why it is not live; one line, redacted
    reconnects: int = 0  # connections made again after a loss


@runtime_checkable
class LiveSource(Protocol):
    """What a source of live data knows besides. Read by other threads than the one that reads."""

    @property
    def connection(self) -> Connection:
        """How it is doing."""

    @property
    def dropped(self) -> int:
        """Blocks or frames that were lost here because nobody took them in time."""

    @property
    def drift_ppm(self) -> float | None:
        """How much faster its clock runs than this machine's, 1e-6; None while unknown."""
