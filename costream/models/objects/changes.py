"""Looks of a detector that compute only the places of a picture that have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from costream.models.eventful.box_heads import Detections
from costream.models.gated import least_change
from costream.models.image_values import IMAGENET_STD
from costream.models.objects.looks import DetectorState, Kept
from costream.models.objects.nanodet import NanoDetPlus

if TYPE_CHECKING:
    from costream.nn.eventful.convolutional import EventfulConvolutions

THRESHOLD = 4.0  # root mean square of the change of a square, of 255, above which it is computed
MARGIN = 16  # pixels around it that are computed, too
PIXELS = 90_000  # of the network's input, below which complete pictures are computed by default
FIRST = 2  # looks at complete pictures before places are compared ...
PAUSE, LONGEST = 8, 64  # ... and later ones
ENOUGH = 2 * PAUSE  # looks by place after which the next pause is a short one
RENEWED = 32  # looks after the first change, after which everything is computed once
_LEVEL = sum(IMAGENET_STD) / 3  # of 255, for a normalised picture's 1


class ChangedPlaces:
    """Computes the places that have changed, where that is faster than the complete picture.

    What is computed depends on the pictures, not on measured times. After ``FIRST`` looks at
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
        kept, frame = state.kept[row], int(state.frames[row])
        shape, size = tuple(picture.shape[1:]), tuple(picture.shape[2:])
        if frame < kept.frame or shape != kept.shape:  # the stream has begun again
            kept.begin(shape, frame)
        kept.frame = frame
        if kept.maps is None and kept.waited < max(FIRST, kept.pause):
            kept.waited += 1
            return None
        with torch.inference_mode(False), torch.no_grad():
            eventful = self._of(picture, threshold)
            if kept.maps is None:
                kept.maps = eventful.init_state(1, shape)
                kept.waited = 0
            renew = kept.changed > RENEWED
            rows = eventful.forward_step(picture.clone(), kept.maps, renew=renew)[0]
        found = self._network.objects(rows.float(), (size[0], size[1]))
        spent, share = eventful.operations.total, eventful.share
        if eventful.in_full and kept.by_place and kept.waited < PAUSE:
            pause = PAUSE if kept.by_place >= ENOUGH else min(LONGEST, 2 * max(PAUSE, kept.pause))
            kept.begin(shape, frame, pause)
        else:
            _count(kept, eventful, renew)
        return found, spent, share

    def _of(self, picture: Tensor, threshold: float) -> EventfulConvolutions:
        if threshold not in self._eventful:
            from costream.nn import suppression_kernels  # noqa: F401  # ``objects`` then uses them
            from costream.nn.eventful.convolutional import EventfulConvolutions

            self._eventful[threshold] = EventfulConvolutions(
                self._network, picture, threshold / _LEVEL, MARGIN
            )
        return self._eventful[threshold]


def _count(kept: Kept, eventful: EventfulConvolutions, renew: bool) -> None:
    """Count a look by place."""
    kept.waited = 0 if eventful.in_full else kept.waited + 1
    kept.by_place += 1
    if renew or kept.by_place <= 2:  # the first keeps the picture, the next all maps
        kept.changed = 0
    elif kept.changed or eventful.share:
        kept.changed += 1


def threshold_of(tokens: int | str | None, pixels: int) -> float | None:
    """Return the threshold that ``--tokens`` gives; None: complete pictures are computed.

    ``pixels``: of the network's input.
    """
    if tokens is None:
        return THRESHOLD if pixels >= PIXELS else None
    return least_change(tokens)
