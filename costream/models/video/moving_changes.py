"""EfficientNet-Lite on the changes of the part of a picture in which most moves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from costream.models.frontend import frontend
from costream.models.video.moving_part import MovementState, MovingPart
from costream.nn.state import zeros

_NEWEST = 3  # changes, which are the colours of a picture
_GAIN = 3.0  # changes are small


@dataclass
class ChangesState(MovementState):
    """Where the newest picture of each stream moved, and how it changed."""

    newest: Tensor  # [B, 2 S, 2 S], grey, 0 to 255
    changes: Tensor  # [B, 3, 2 S, 2 S], the newest last


@frontend("moving-changes", order=18)
class MovingChanges(MovingPart):
    """Video frontend: 1,280 features of how the moving part of the picture changes.

    The three newest absolute differences of successive grey pictures, three times as large, are
    red, green and blue of a picture: what stands still is black, and what moves leaves coloured
    edges. Its part is that of ``MovingPart``. A network that has learnt from photographs tells such
    pictures apart, too, and does not see what the place looks like. Weights and arguments are those
    of ``EfficientNetLite``.
    """

    def __init__(self, width: float = 1.0, depth: float = 1.0, size: int = 224) -> None:
        super().__init__(width, depth, size, picture=False)

    def init_state(self, batch_size: int = 1) -> ChangesState:  # type: ignore[override]
        """Return the initial state of a batch of streams."""
        like, side = self.stem.weight, 2 * self.size
        known = super().init_state(batch_size)
        return ChangesState(
            known.grey,
            known.moved,
            known.pictures,
            zeros(batch_size, side, side, like=like),
            zeros(batch_size, _NEWEST, side, side, like=like),
        )

    def _cut(self, pictures: Tensor, state: MovementState) -> Tensor:
        """Return the newest changes as pictures [B, 3, 2 size, 2 size], and update the state."""
        assert isinstance(state, ChangesState)
        grey = pictures.mean(1)
        is_known = (state.pictures > 1).to(grey.device)[:, None, None]  # there was one before
        change = (grey - state.newest).abs() * is_known
        state.changes.copy_(torch.cat([state.changes[:, 1:], change[:, None]], 1))
        state.newest.copy_(grey)
        return (_GAIN * state.changes).clamp(max=255.0)
