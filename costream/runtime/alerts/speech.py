"""Whether somebody speaks in a clip, by the scores of the steps of its time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.core.spelling import folded

SPEECH = 0.2  # a step with this score of a label of speech, or more, may have speech
MOST_APART_S = 3.0  # between two steps; what was heard in a longer time is not known
HOLD_S = 1300.0  # as long as the longest clip
PATIENCE_S = 10.0  # time that the steps of a clip may be late
_WORDS = ("speech", "conversation", "talk", "whisper", "shout", "voice")


class SpeechLog:
    """The steps of a feed, and in which of them somebody may speak.

    ``add`` is called by the thread of the steps, ``reason`` by the one that writes clips.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        """``labels``: of the scores. Raises UsageError if there is none of speech."""
        names = [folded(label) for label in labels]
        self._columns = [k for k, name in enumerate(names) if any(w in name for w in _WORDS)]
        if not self._columns:
            hint = "add a model of sound that does, as in -m nanodet,mn04"
            raise UsageError(
                "the model does not recognise speech", where="--no-speech-clips", hint=hint
            )
        self._steps: deque[tuple[float, bool]] = deque()
        self._closed = False
        self._changed = threading.Condition()  # guards the above

    def add(self, time_s: float, scores: npt.NDArray[np.floating]) -> None:
        """Take the scores [C] of a step."""
        speaks = bool(np.nanmax(scores[self._columns], initial=0.0) >= SPEECH)
        with self._changed:
            self._steps.append((time_s, speaks))
            while self._steps[0][0] < time_s - HOLD_S:
                self._steps.popleft()
            self._changed.notify_all()

    def close(self) -> None:
        """Wait for no more steps."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def reason(self, start_s: float, end_s: float) -> str:
        """Return why a clip of this time must not be kept; "" if nobody speaks in it.

        Waits for the steps up to its end. What was not heard by the model may be speech.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (bool(self._steps) and self._steps[-1][0] >= end_s),
                PATIENCE_S,
            )
            steps = list(self._steps)
        inside = [step for step in steps if start_s - 1 <= step[0] <= end_s + 1]
        if any(speaks for _, speaks in inside):
            return "somebody speaks"
        times_s = [start_s, *sorted(min(max(t, start_s), end_s) for t, _ in inside), end_s]
        if max(b - a for a, b in pairwise(times_s)) > MOST_APART_S:
            return "not all of it was heard by the model"
        return ""
