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

from costream.checkpoints.file import SUFFIX
from costream.errors import UsageError
from costream.locks import try_lock
from costream.models.base import Model
from costream.runtime.saved_state import UnfitStateError, read_state, write_state
from costream.runtime.watch.feed_list import FeedSpec

log = logging.getLogger("costream")


@dataclass(frozen=True)
class Snapshot:
    """The position of a feed."""

    next_step: int  # number of the next step
    began_s: float  # time.time() at 0 s of the feed's times
    time_s: float  # of the newest step
    smoothed: tuple[float, ...]  # see StreamRecorder.smoothed
    newest: int  # the last number of a person or an object


@dataclass(frozen=True)
class SavedState(Snapshot):
    """The position of a feed as saved by an earlier watch, and the network's state for it."""

    saved_s: float  # time.time()
    state: Any = field(repr=False)  # of one stream, as from ``model.init_state(1)``

    def age_s(self, now_s: float) -> float:
        """Return how old the newest step is, or the file: a lost feed is saved, too."""
        return now_s - min(self.saved_s, self.began_s + self.time_s)


class StateDirectory:
    """Two files per feed in ``folder``: the newer valid one counts.

    ``NAME.safetensors`` is replaced atomically and durable, ``.NAME.recent.safetensors`` is
    overwritten more often (see ``write_state``). A file is valid while the weights and the source,
    its login apart, are the same. An invalid or damaged one is moved to ``....aside``.

    Raises UsageError when the folder cannot be written or another watch uses it.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        self._folder, self._model = folder, model
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / ".lock").is_fifo():  # would be waited for
                raise UsageError("is no file", where=folder / ".lock")
            self._lock = (folder / ".lock").open("a", encoding="utf-8")
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
        """Return the newest saved state of a feed, bit for bit; None when there is no valid one.

        Invalid files are moved aside with a warning.
        """
        found = [self._valid(path, spec) for path in self._paths(spec.name)]
        return max(filter(None, found), key=lambda saved: saved.saved_s, default=None)

    def _valid(self, path: Path, spec: FeedSpec) -> SavedState | None:
        try:
            return self._read(path, spec)
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror or type(error).__name__
        except UnfitStateError as error:
            reason = str(error)
        except Exception as error:  # whatever is in the file, the watch begins
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
        except Exception as error:  # any error is logged, and the watch goes on
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
            next_step, newest = int(metadata["next_step"]), int(metadata.get("newest", 0))
            smoothed = tuple(map(float, json.loads(metadata.get("smoothed", "[]"))))
        except (KeyError, TypeError, ValueError) as error:
            raise UnfitStateError("it is damaged") from error
        fits = len(smoothed) in (0, 1 + len(self._model.info.card.labels))
        if not fits or not all(map(math.isfinite, smoothed)):
            raise UnfitStateError("it is damaged")
        latest_s = time.time() + 1
        if not (saved_s <= latest_s and began_s + time_s <= latest_s):
            raise UnfitStateError("its time is in the future")
        if min(began_s, time_s, next_step, newest) < 0:
            raise UnfitStateError("it is damaged")
        state = self._model.init_state(1)
        try:
            state.load_tensors(tensors)
        except (KeyError, ValueError) as error:
            raise UnfitStateError("its tensors do not fit the model") from error
        return SavedState(next_step, began_s, time_s, smoothed, newest, saved_s, state)
