"""Tokens of a convolutional stem, computed where the picture has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.image_values import IMAGENET_STD
from costream.nn.eventful.counts import Operations

if TYPE_CHECKING:
    from costream.nn.eventful.convolutional import EventfulConvolutions, KeptMaps

THRESHOLD = 2.0  # root mean square of the change of a square, of 255, above which it is computed
MARGIN = 16  # pixels around it that are computed, too
RENEWED = 32  # frames after which everything is computed once
_LEVEL = sum(IMAGENET_STD) / 3  # of 255, for a normalised picture's 1


def complete_next(frames: int) -> bool:
    """Return whether all of a picture is computed after so many ones, changed or not."""
    return frames < 2 or frames % RENEWED == 0  # the second keeps the maps


class ChangedStem:
    """A stem that computes only the places near pixels that have changed.

    Squares of 8 x 8 pixels are compared with what was last computed.
    """

    def __init__(self, stem: ShuffleEmbedding) -> None:
        self._stem = stem
        self._eventful: EventfulConvolutions | None = None

    def init_state(self, height: int, width: int) -> KeptMaps:
        """Return the state of a stream of pictures of this size, in pixels."""
        with torch.inference_mode(False):
            return self._of(height, width).init_state(1, (3, height, width))

    def forward_step(
        self, picture: Tensor, state: KeptMaps, operations: Operations
    ) -> tuple[Tensor, int]:
        """Return tokens [1, h, w, D] for the next picture [1, 3, H, W], normalised.

        The number is that of the operations which the complete picture takes beyond those that are
        counted in ``operations``.
        """
        renew = complete_next(int(state.frames))
        with torch.inference_mode(False), torch.no_grad():
            eventful = self._of(picture.shape[2], picture.shape[3])
            tokens: Tensor = eventful.forward_step(picture.clone(), state, renew=renew)
        operations.add_all(eventful.operations)
        return tokens, eventful.every - eventful.operations.total

    def _of(self, height: int, width: int) -> EventfulConvolutions:
        if self._eventful is None:
            from costream.nn.eventful.convolutional import EventfulConvolutions

            example = torch.zeros(1, 3, height, width)
            self._eventful = EventfulConvolutions(self._stem, example, THRESHOLD / _LEVEL, MARGIN)
        return self._eventful
