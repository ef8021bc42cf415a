"""Saved state of feeds, from which the next watch resumes: ``--state-dir``."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Lock
from typing import Any

from costream.core.errors import UsageError
from costream.core.locks import append_own, try_lock
from costream.models.base import Model
from costream.runtime.saved_state import UnfitStateError, read_state, write_state
from costream.runtime.watch.feed_list import FeedSpec
from costream.weights_io.file import SUFFIX

log = logging.getLogger("costream")

SAME_S = 1.0  # a clock that is behind by less was only adjusted


@dataclass(frozen=True)
class Snapshot:
    """The position of a feed."""

    next_step: int  # number of the next step
    began_s: float  # time.time() at 0 s of the feed's times
    now_s: float  # the feed's time
    time_s: float  # of the newest step
    smoothed: tuple[float, ...]  # see StreamRecorder.smoothed
    newest: int  # the last number of a person or an object


@dataclass(frozen=True)
class SavedState(Snapshot):
    """The position of a feed as saved by an earlier watch, and the network's state for it."""

    saved_s: float  # time.time()
    state: Any = field(repr=False)  # of one stream, as from ``model.init_state(1)``

    def away_s(self, clock_s: float) -> float | None:
        """Return how long ago it was saved; ``clock_s``: ``time.time()``.

        None: the clock is behind the saved state, as after a power failure on a machine without a
        battery for its clock.
        """
        away_s = clock_s - self.saved_s
        return max(0.0, away_s) if away_s > -SAME_S else None

    def began_at(self, clock_s: float) -> float:
        """Return ``began_s`` on the clock of this machine as it is set now; ``clock_s``: its time.

        It is unchanged unless the clock was set, and such that times never go back.
        """
        began_s = self.saved_s - self.now_s
        began_s = self.began_s if abs(began_s - self.began_s) < SAME_S else began_s
        return min(began_s, clock_s - self.now_s)

    def age_s(self, clock_s: float) -> float:
        """Return how old the newest step is; infinite if unknown."""
        away_s = self.away_s(clock_s)
        return math.inf if away_s is None else away_s + self.now_s - self.time_s


class StateDirectory:
    """Two files per feed in ``folder``: the newer valid one counts.

    ``NAME.safetensors`` is replaced atomically and durable, ``.NAME.recent.safetensors`` is
    overwritten more often (see ``write_state``). A file is valid for the same weights and the same
    source, whatever its login. An invalid or damaged one is moved to ``....aside``.

    Raises UsageError when the folder cannot be written or another watch uses it.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        self._folder, self._model = folder, model
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = append_own(folder / ".lock")
        except OSError as error:
            raise UsageError(f"cannot be written ({error.strerror})", where=folder) from error
        if not try_lock(self._lock):
            self._lock.close()
            raise UsageError("another watch uses this state directory", where=folder)
        self._writing = ThreadPoolExecutor(1, "state")
        self._guard = Lock()
        self._newest: dict[str, tuple[dict[str, str], Any, bool]] = {}  # to be written
        self._failing: set[Path] = set()  # files that could not be written

    def restore(self, spec: FeedSpec) -> SavedState | None:
        """Return the newest saved state of a feed, bit for bit; None if no file is valid.

        Invalid files are moved aside with a warning. The newer of two is found by the feed's clock,
        as the clock of this machine may have been set meanwhile.
        """
        found = [self._valid(path, spec) for path in self._paths(spec.name)]
        saved = max(filter(None, found), key=lambda saved: saved.now_s, default=None)
        if saved is not None and saved.away_s(time.time()) is None:
            what = "the clock of this machine is behind the saved state"
            then = "times continue from the saved one, and the state of the network is reset"
            log.warning("%s: %s: %s", spec.name, what, then)
        return saved

    def _valid(self, path: Path, spec: FeedSpec) -> SavedState | None:
        try:
            return self._read(path, spec)
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror or type(error).__name__
        except UnfitStateError as error:
            reason = str(error)
        except Exception as error:  # the watch begins whatever the file holds
            reason = f"it is damaged ({type(error).__name__})"
        aside = path.with_name(f"{path.name}.aside")
        try:
            os.replace(path, aside)
            done = f"moved to {aside.name}"
        except OSError as error:
            done = f"it cannot be moved ({error.strerror})"
        log.warning("%s: this saved state is not used: %s; %s", path, reason, done)
        return None

    def save(self, spec: FeedSpec, at: Snapshot, state: Any, *, durable: bool = True) -> None:
        """Write the position of a feed and the state of its one stream, in a thread.

        ``durable``: see ``write_state``. ``state`` must not be changed afterwards. When the disk is
        slower than the calls, only the newest state of a feed is written. A failure is logged once,
        until every file can be written again.
        """
        metadata = {**self._about(spec), "saved_s": repr(time.time())}
        metadata |= {f.name: json.dumps(getattr(at, f.name)) for f in fields(Snapshot)}
        with self._guard:
            waiting = self._newest.get(spec.name)
            self._newest[spec.name] = (metadata, state, durable or bool(waiting and waiting[2]))
        if waiting is None:
            self._writing.submit(self._write, spec.name)

    def close(self) -> None:
        """Wait until everything is written, and unlock the folder."""
        self._writing.shutdown()
        self._lock.close()

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self._folder / f"{name}{SUFFIX}", self._folder / f".{name}.recent{SUFFIX}"

    def _about(self, spec: FeedSpec) -> dict[str, str]:
        """Return the values that must match for a state to be valid."""
        info = self._model.info
        return {"model": info.card.name, "weights": info.weights_sha256, "source": spec.shown}

    def _write(self, name: str) -> None:
        with self._guard:
            metadata, state, durable = self._newest.pop(name)
        path = self._paths(name)[0 if durable else 1]
        try:
            write_state(path, metadata, state.tensors(), durable=durable)
        except Exception as error:  # any error is logged, and the watch continues
            if not self._failing:
                log.warning("the state of the feeds cannot be saved: %s", error)
            self._failing.add(path)
        else:
            self._failing.discard(path)

    def _read(self, path: Path, spec: FeedSpec) -> SavedState:
        metadata, tensors = read_state(path, self._about(spec))
        try:
            times = (float(metadata[k]) for k in ("began_s", "time_s", "saved_s"))
            began_s, time_s, saved_s = times
            now_s = float(metadata.get("now_s", saved_s - began_s))  # earlier versions had none
            next_step, newest = int(metadata["next_step"]), int(metadata.get("newest", 0))
            smoothed = tuple(map(float, json.loads(metadata.get("smoothed", "[]"))))
        except (KeyError, TypeError, ValueError) as error:
            raise UnfitStateError("it is damaged") from error
        fits = len(smoothed) in (0, 1 + len(self._model.info.card.labels))
        if not fits or not all(map(math.isfinite, smoothed)):
            raise UnfitStateError("it is damaged")
        is_finite = math.isfinite(began_s + saved_s + now_s)
        if (
            not is_finite
            or not time_s >= 0
            or now_s < time_s - SAME_S
            or min(next_step, newest) < 0
        ):
            raise UnfitStateError("it is damaged")
        state = self._model.init_state(1)
        try:
            state.load_tensors(tensors)
        except (KeyError, ValueError) as error:
            raise UnfitStateError("its tensors do not fit the model") from error
        return SavedState(next_step, began_s, now_s, time_s, smoothed, newest, saved_s, state)
