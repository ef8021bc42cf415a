"""Live feed source: a stream URL or a camera, with reconnection."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from costream.core.errors import SourceError, UsageError
from costream.core.records import Fault, Gap, Item, SourceInfo, VideoFrame
from costream.sources.base import (
    Connection,
    ConnectionOptions,
    ConnectionState,
    SourceOptions,
    source,
)
from costream.sources.live.address import display_feed, feed_name, is_camera
from costream.sources.live.audio_track import AudioTrack
from costream.sources.live.backoff import Backoff
from costream.sources.live.connection import FeedConnection
from costream.sources.live.failures import ConnectionFailedError, ConnectionFailure
from costream.sources.live.feed_track import FeedTrack
from costream.sources.live.paired_audio import PairedAudio
from costream.sources.live.recent_packets import RecentPackets
from costream.sources.live.video_track import VideoTrack
from costream.sources.waiting import StopEvent

log = logging.getLogger("costream")

# The backoff restarts if the feed was live for this long before it was lost.
LIVELY_S = 10.0


@dataclass
class _Outage:
    """Reason why a feed is down, and the number of attempts since."""

    first: str
    last: str
    failures: int  # attempts that failed

    @property
    def reason(self) -> str:
        """Reason text of the Gap record."""
        then = "" if self.last == self.first else f", then {self.last}"
        tries = "" if self.failures == 0 else f"; {_attempts(self.failures)} failed"
        return f"{self.first}{then}{tries}"


@source(
    "feed",
    address=r"(?s:(?!file:)[A-Za-z][A-Za-z0-9+.-]+://.*)|(?i:camera:)?[0-9]+|(?i:camera:).+|"
    r"/dev/(?:video[0-9]+|v4l/.+)",
    connecting=True,
)
class FeedSource:
    """Video frames or sound of a live feed, or both.

    ``items`` connects; when the connection is lost, for whatever reason, it reconnects with
    growing waits and yields a Gap once the feed is back. Time is seconds since ``open``, or
    ``zero_s``; see FeedClock. A refusal (a wrong password, no such path) at the very first attempt,
    or ``retries`` consecutive failures, end it with a fatal Fault; later on a refusal is waited out
    like any loss, but longer. The thread that iterates opens, reads and closes everything. While
    FFmpeg connects or waits for data there, a stop takes effect when that times out, after
    ``timeout_s`` at the latest.
    """

    dropped = 0  # everything received is yielded

    def __init__(self, uri: str, options: SourceOptions | None = None) -> None:
        """``uri``: a URL or a camera. Without ``options.connecting`` its defaults apply.

        Raises UsageError for the sound of a camera.
        """
        self._uri = uri
        self._where = display_feed(uri)
        self._options = options or SourceOptions()
        if self._options.sound is not None and is_camera(uri):
            raise UsageError(
                "a camera has no sound",
                where=self._where,
                hint="use its microphone: mic or mic:NAME",
            )
        self._connecting = self._options.connecting or ConnectionOptions()
        self._called = self._connecting.name or self._where
        self._stop = StopEvent()
        self._backoff = Backoff()
        self._state = Connection("connecting")
        self._retry_s = 0.0  # time.monotonic() of the next attempt
        self._outage: _Outage | None = None
        self._live_s: float | None = None  # time.monotonic() when it became live
        self._been_live = False
        self._received_s: float | None = None
        self._choice = ""  # the last logged remark on the choice of a video stream
        self._track: FeedTrack | None = None
        self._paired_audio: PairedAudio | None = None
        self._link: FeedConnection | None = None
        self._recent = RecentPackets()

    @staticmethod
    def name_of(uri: str) -> str:
        """Return the base name of its output files."""
        return feed_name(uri)

    @property
    def connection(self) -> Connection:
        """State of the connection."""
        state = replace(self._state, received_s=self._received_s)
        if state.state != "waiting":
            return state
        left_s = max(0.0, self._retry_s - time.monotonic())
        message = f"{state.message}; next attempt in {left_s:.0f} s"
        return replace(state, message=message)

    @property
    def drift_ppm(self) -> float | None:
        """Drift of its clock against this machine's in ppm; None in the first minute."""
        return None if self._track is None else self._track.clock.drift_ppm

    @property
    def errors(self) -> int:
        """Number of errors found so far."""
        return 0 if self._track is None else self._track.damage.total

    def open(self) -> SourceInfo:
        """Start the clock. Does not connect yet, and never fails."""
        sound, age_s = self._options.sound, self._connecting.age_s()
        began_s = time.monotonic() - age_s
        if sound is None:
            self._track = VideoTrack(self._options, self._where, began_s)
        else:
            self._track = AudioTrack(self._options, self._where, began_s, sound)
        extra_audio = None if is_camera(self._uri) else self._options.extra_audio
        if extra_audio is not None:
            self._paired_audio = PairedAudio(self._options, self._where, began_s, extra_audio)
        return SourceInfo(
            name=feed_name(self._uri),
            uri=self._where,
            kind="video" if sound is None else "audio",
            duration_s=None,
            rate_hz=None,
            live=True,
            began_s=time.time() - age_s,
            extra_audio=extra_audio is not None,
            silent="a camera has none" if is_camera(self._uri) else None,
        )

    def items(self) -> Iterator[Item]:
        """Yield VideoFrame or AudioBlock, Gap and Fault items, until the requested end, if any."""
        if self._track is None:
            return
        for item in self._items(self._track):
            if self._track is None:  # closed
                return
            if isinstance(item, Gap | Fault) or not self._stop.is_set:
                yield item
        if self._track is not None:
            yield from self._track.damage.flush()
        if self._state.state != "lost":
            self._set_state("ended")

    def stop(self) -> None:
        """End ``items`` soon; safe in a signal handler."""
        self._stop.set()

    def close(self) -> None:
        """Close the connection. Frames already yielded stay usable."""
        self._stop.set()
        self._unlink()
        self._track = None

    def _items(self, track: FeedTrack) -> Iterator[Item]:
        while not (self._stop.is_set or track.over):
            loss = yield from self._attempt(track)
            if self._stop.is_set or track.over:
                break
            before = self._outage
            reported = () if before is None else (before.first, before.last)
            final = loss.refused and before is None and not self._been_live
            outage = self._note(loss)
            if final or 0 <= self._connecting.retries <= outage.failures:
                yield from track.leave(outage.reason)
                message = loss.message
                if not final:
                    message += f"; gave up after {_attempts(outage.failures)}"
                self._set_state("lost", message)
                yield Fault(track.now_s(), message, fatal=True)
                return
            if loss.message not in reported:  # at once; its Gap follows when the feed is back
                yield Fault(track.now_s(), loss.message)
            self._wait(track, loss)
        if self._outage is not None and self._track is not None:
            yield from track.leave(self._outage.reason)

    def _attempt(self, track: FeedTrack) -> Generator[Item, None, ConnectionFailure]:
        """Connect once and yield its items; return why the connection ended."""
        outage = self._outage
        self._set_state("connecting", "" if outage is None else outage.last)
        try:
            link = FeedConnection(
                *(self._uri, self._connecting, self._options, self._stop, track.began_s),
                paired_audio=self._paired_audio,
                recent=self._recent,
            )
        except ConnectionFailedError as error:
            return error.loss
        self._link, self._live_s = link, None
        if link.choice != self._choice:
            self._choice = link.choice
            log.warning("%s: %s", self._called, link.choice)
        try:
            for item in track.run(link, "" if outage is None else outage.reason):
                if not isinstance(item, Fault):
                    self._received_s = link.arrived_s
                    if self._live_s is None:
                        self._arrive()
                if self._paired_audio is not None and isinstance(item, VideoFrame):
                    yield from self._paired_audio.take(item.time_s)
                yield item
        except SourceError as error:  # its format is unusable
            return ConnectionFailure(str(error).removeprefix(f"{self._where}: "), refused=True)
        finally:
            self._unlink()
        return link.loss

    def _arrive(self) -> None:
        """Record that the feed is live."""
        if self._outage is not None:
            log.info("%s: live again (%s)", self._called, self._outage.reason)
        again = self._state.reconnects + (1 if self._been_live else 0)
        self._live_s, self._been_live, self._outage = time.monotonic(), True, None
        self._state = Connection("live", reconnects=again)

    def _note(self, loss: ConnectionFailure) -> _Outage:
        """Record why the feed is down."""
        message, outage, live_s = loss.message, self._outage, self._live_s
        self._live_s = None
        if live_s is not None and time.monotonic() - live_s >= LIVELY_S:
            self._backoff.reset()
        if outage is None:
            outage = self._outage = _Outage(message, message, 1 if live_s is None else 0)
        else:
            outage.last = message
            outage.failures += 1
        return outage

    def _wait(self, track: FeedTrack, loss: ConnectionFailure) -> None:
        wait_s = min(self._backoff.next_s(refused=loss.refused), track.left_s)
        self._retry_s = time.monotonic() + wait_s
        self._set_state("waiting", loss.message)
        self._stop.wait(wait_s)

    def _set_state(self, state: ConnectionState, message: str = "") -> None:
        self._state = Connection(state, message, self._state.reconnects)

    def _unlink(self) -> None:
        if self._track is not None:
            self._track.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"
