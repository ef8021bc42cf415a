"""Looks of a detector that compute only the places of a picture that have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from costream.models.eventful.box_heads import Detections
from costream.models.image_values import IMAGENET_STD
from costream.models.objects.looks import DetectorState
from costream.models.objects.nanodet import NanoDetPlus

if TYPE_CHECKING:
    from costream.nn.eventful.convolutional import EventfulConvolutions

THRESHOLD = 4.0  # root mean square of the change of a square, of 255, above which it is computed
MARGIN = 16  # pixels around it that are computed, too
PIXELS = 90_000  # of the network's input, below which complete pictures are computed by default
PAUSE, LONGEST_PAUSE = 8, 64  # looks at complete pictures before places are compared
ENOUGH = 2 * PAUSE  # looks by place after which the next pause is a short one
RENEWED = 32  # looks after the first change, after which everything is computed once
_LEVEL = sum(IMAGENET_STD) / 3  # of 255, for a normalised picture's 1


class ChangedPlaces:
    """Computes the places that have changed, where that is faster than the complete picture.

    What is computed depends on the pictures, not on measured times. After ``PAUSE`` looks at
    complete pictures, squares of 8 x 8 pixels are compared with what was last computed. Where too
    many have changed twice within ``PAUSE`` looks, complete pictures follow: twice as many as
    before, unless there were ``ENOUGH`` looks by place, so that a moving camera costs nothing.
    """

    def __init__(self, network: NanoDetPlus) -> None:
        self._network = network
        self._eventful: dict[float, EventfulConvolutions] = {}  # by threshold

    def look(
        self, picture: Tensor, row: int, state: DetectorState, threshold: float
    ) -> tuple[Detections, int, float] | None:
        """Return the objects in the next picture of a stream, the operations and the share.

        ``picture`` [1, 3, H, W], normalised. ``threshold``: see ``THRESHOLD``. None: look at the
        complete picture.
        """
        if self._pauses(picture, row, state):
            return None
        kept, shape, size = state.kept[row], tuple(picture.shape[1:]), tuple(picture.shape[2:])
        with torch.inference_mode(False), torch.no_grad():
            eventful = self._of(picture, threshold)
            if kept.maps is None:
                kept.maps, kept.shape = eventful.init_state(1, shape), shape
                state.by_place[row] = state.changed[row] = state.waited[row] = 0
            renew = bool(state.changed[row] > RENEWED)
            rows = eventful.forward_step(picture.clone(), kept.maps, renew=renew)[0]
        found = self._network.objects(rows.float(), (size[0], size[1]))
        spent, share = eventful.operations.total, eventful.share
        if eventful.in_full and state.by_place[row] and state.waited[row] < PAUSE:
            _pause(row, state)
        else:
            state.waited[row] = 0 if eventful.in_full else state.waited[row] + 1
            state.by_place[row] += 1
            if renew or state.by_place[row] <= 2:  # the first keeps the picture, the next all maps
                state.changed[row] = 0
            elif state.changed[row] or share:
                state.changed[row] += 1
        return found, spent, share

    def _pauses(self, picture: Tensor, row: int, state: DetectorState) -> bool:
        """Return whether to look at the complete picture, after which there is another look."""
        kept, count = state.kept[row], int(state.by_place[row])
        if kept.maps is not None and (
            kept.shape != tuple(picture.shape[1:]) or int(kept.maps.frames) != count
        ):
            kept.maps = None  # of a picture of another size, or the stream has begun again
        if kept.maps is not None or count:
            return False
        state.waited[row] += 1
        return bool(state.waited[row] <= max(PAUSE, int(state.pause[row])))

    def _of(self, picture: Tensor, threshold: float) -> EventfulConvolutions:
        if threshold not in self._eventful:
            from costream.nn.eventful.convolutional import EventfulConvolutions

            self._eventful[threshold] = EventfulConvolutions(
                self._network, picture, threshold / _LEVEL, MARGIN
            )
        return self._eventful[threshold]


def _pause(row: int, state: DetectorState) -> None:
    """Look at complete pictures for a while: for longer if looks by place were few."""
    longer = min(LONGEST_PAUSE, 2 * max(PAUSE, int(state.pause[row])))
    state.pause[row] = longer if state.by_place[row] < ENOUGH else PAUSE
    state.kept[row].maps = None
    state.by_place[row] = state.changed[row] = state.waited[row] = 0


def threshold_of(tokens: int | str | None, pixels: int) -> float | None:
    """Return the threshold that ``--tokens`` gives; None: complete pictures are computed.

    ``pixels``: of the network's input.
    """
    if tokens is None:
        return THRESHOLD if pixels >= PIXELS else None
    return float(str(tokens)[1:]) if str(tokens).startswith(">") else None
