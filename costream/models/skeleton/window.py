"""Skeleton networks over a sliding window, as a baseline for the continual ones."""

from __future__ import annotations

from typing import Any

from costream.models.skeleton.network import SkeletonNet, ntu_model
from costream.models.spec import register_model
from costream.models.window import SlidingWindow, WindowState


@register_model("stgcn", order=14, **ntu_model("stgcn", window=300))
@register_model("agcn", order=15, **ntu_model("agcn", window=300, attention="clip"))
@register_model("str", order=16, **ntu_model("str", window=300))
class WindowSkeletonNet(SlidingWindow, SkeletonNet):  # type: ignore[misc]
    """A ``SkeletonNet`` that is recomputed over the last ``window`` frames, or fewer at first.

    The attention of adaptive graphs may be that of clips.

    Args:
        window: n, frames. ``hop``: steps from one output to the next.
        arguments: those of ``SkeletonNet``; all features of the window are averaged, or ``pool``
            with padding "causal", of which the newest logits are used.
    """

    def __init__(self, *arguments: Any, window: int = 300, hop: int = 1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        least = self.layer_timing.receptive_field if self.form == "none" else 1
        self._slide(window, least, hop)

    def init_state(self, batch_size: int = 1) -> WindowState:  # type: ignore[override]
        """Return the initial state of a batch of streams."""
        shape = (batch_size, 2 * self.window, self.persons, self.joints, self.channels)
        return self._window_state(*shape, like=self.fc.weight)
