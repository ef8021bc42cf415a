"""Networks of pictures that compute only the places that have changed, while that is faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from costream.nn.eventful.convolutional import EventfulConvolutions, KeptMaps

THRESHOLD = 4.0  # root mean square of the change of a square, of 255, above which it is computed
MARGIN = 16  # pixels around it that are computed, too
FIRST = 2  # looks at complete pictures before places are compared ...
PAUSE, LONGEST = 8, 64  # ... and later ones
ENOUGH = 2 * PAUSE  # looks by place after which the next pause is a short one
RENEWED = 32  # looks after the first change, after which everything is computed once


@dataclass
class Kept:
    """What looks by place keep of a stream. Its copies share it, and it is not saved.

    A stream for which it is empty begins with complete pictures.
    """

    maps: KeptMaps | None = None
    shape: tuple[int, ...] = ()  # of the picture, [C, H, W]
    frame: int = 0  # number of the newest frame that was looked at
    pause: int = 0  # looks at complete pictures before places are compared; 0: the least
    waited: int = 0  # looks at complete pictures in a row; by place, since one of them
    by_place: int = 0  # looks by place in a row
    changed: int = 0  # looks since the first change after everything was computed

    def begin(self, shape: tuple[int, ...], frame: int, pause: int = 0) -> None:
        """Begin with complete pictures, in place, for the stream's copies too."""
        self.maps, self.shape, self.frame, self.pause = None, shape, frame, pause
        self.waited = self.by_place = self.changed = 0


class Changed(NamedTuple):
    """A look by place: the network's output, its operations, and the share of the squares."""

    output: Any
    macs: int
    share: float


class ChangedPlaces:
    """Computes the places that have changed, where that is faster than the complete picture.

    What is computed depends on the pictures, not on measured times. After ``FIRST`` looks at
    complete pictures, squares of 8 x 8 pixels are compared with what was last computed. Where too
    many have changed twice within ``PAUSE`` looks, complete pictures follow: twice as many as
    before, unless there were ``ENOUGH`` looks by place, so that a moving camera costs nothing.
    """

    def __init__(self, network: nn.Module) -> None:
        """``network``: as for ``EventfulConvolutions``, which sees its first pictures here."""
        self._network = network
        self._eventful: dict[float, EventfulConvolutions] = {}  # by threshold

    def look(self, picture: Tensor, kept: Kept, frame: int, threshold: float) -> Changed | None:
        """Return what the network makes of the next picture; None: compute the complete picture.

        ``picture`` [1, C, H, W] as the network takes it, ``threshold`` in its units: see
        ``THRESHOLD``. ``kept``: of the stream, ``frame``: the number of its pictures before.
        """
        shape = tuple(picture.shape[1:])
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
            output = eventful.forward_step(picture.clone(), kept.maps, renew=renew)
        macs = eventful.every if eventful.in_full else eventful.operations.total
        found = Changed(output, macs, eventful.share)
        if eventful.in_full and kept.by_place and kept.waited < PAUSE:
            pause = PAUSE if kept.by_place >= ENOUGH else min(LONGEST, 2 * max(PAUSE, kept.pause))
            kept.begin(shape, frame, pause)
        else:
            _count(kept, eventful, renew)
        return found

    def _of(self, picture: Tensor, threshold: float) -> EventfulConvolutions:
        if threshold not in self._eventful:
            from costream.nn.eventful.convolutional import EventfulConvolutions

            self._eventful[threshold] = EventfulConvolutions(
                self._network, picture, threshold, MARGIN
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
