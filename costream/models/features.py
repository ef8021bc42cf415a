"""A frontend by itself: tokens in, the same tokens out. For ``costream features``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from costream.nn.state import State, zeros


@dataclass
class FeaturesState(State):
    """Nothing is kept of a stream but how long it is."""

    steps: Tensor  # int64 [B]


class Features(nn.Module):
    """No network behind a frontend whose tokens are ``embed_dim`` wide."""

    delay = 0
    window = 1
    dense_macs = 0

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.embed_dim = embed_dim

    def init_state(self, batch_size: int = 1) -> FeaturesState:
        """Give the state of streams that have seen nothing."""
        return FeaturesState(zeros(batch_size))

    def warmup(self, state: FeaturesState, ago: int = 0) -> tuple[bool, ...]:
        """Say for each stream whether more is to come: no."""
        return (False,) * state.batch_size

    def forward_step(self, x: Tensor, state: FeaturesState) -> Tensor:
        """Give the tokens [B, D] back."""
        state.steps += 1
        return x

    def count_macs(self) -> int:
        """Multiply-accumulates of a step: none."""
        return 0
