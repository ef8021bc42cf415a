"""Identity network, to run a frontend by itself for ``costream features``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from costream.nn.state import State, zeros


@dataclass
class FeaturesState(State):
    """Step count of each stream."""

    steps: Tensor  # int64 [B]


class Features(nn.Module):
    """Identity network for a frontend whose tokens are ``embed_dim`` wide."""

    delay = 0
    window = 1
    dense_macs = 0

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.embed_dim = embed_dim

    def init_state(self, batch_size: int = 1) -> FeaturesState:
        """Return the initial state of a batch of streams."""
        return FeaturesState(zeros(batch_size))

    def warmup(self, state: FeaturesState, ago: int = 0) -> tuple[bool, ...]:
        """Return False for each stream: there is no window to fill."""
        return (False,) * state.batch_size

    def forward_step(self, x: Tensor, state: FeaturesState) -> Tensor:
        """Return the tokens [B, D] unchanged."""
        state.steps += 1
        return x

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step: 0."""
        return 0
