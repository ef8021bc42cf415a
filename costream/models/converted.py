"""Networks of parts, or converted ones, as classifiers that the commands run."""

from __future__ import annotations

from torch import Tensor, nn

from costream.models.oad.cooadtr import OadOutput
from costream.nn.block import EncoderStack
from costream.nn.continual import Continual
from costream.nn.layers import GRU, LSTM, RNN
from costream.nn.network import PartGraph, PartGraphState


class ContinualClassifier(nn.Module):
    """A composition or a converted network whose outputs [B, K] are logits.

    It has the methods that a registered network needs: derive from it, and build the network in
    the constructor. ``network``: a converted network, or parts with the shape of their frames.
    """

    def __init__(self, network: PartGraph) -> None:
        super().__init__()
        self.network = network
        self.window, self.delay = network.receptive_field, network.delay
        self.stride = network.stride

    def init_state(self, batch_size: int = 1) -> PartGraphState:
        """Return the initial state of ``batch_size`` streams."""
        state: PartGraphState = self.network.init_state(batch_size)
        return state

    def warmup(self, state: PartGraphState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether it has fewer frames than an output depends on."""
        return tuple(steps - ago < self.window for steps in state.steps.tolist())

    def forward_step(self, x: Tensor, state: PartGraphState) -> OadOutput | None:
        """Take a frame [B, ...] of every stream, return logits [B, K], or None."""
        out = self.network.forward_step(x, state)
        return None if out is None else OadOutput(out, None)

    @property
    def exact(self) -> bool:
        """Whether its outputs equal a recomputation of the window.

        False with approximations, unlimited memory, or stacks whose blocks have a window each.
        """
        network = self.network
        if isinstance(network, Continual) and network.report().change is not None:
            return False
        recurrent = (nn.RNNBase, RNN, GRU, LSTM)
        return not any(
            isinstance(m, recurrent) or (isinstance(m, EncoderStack) and not m.exact)
            for m in network.modules()
        )

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream."""
        return self.network.count_macs()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of all frames that an output depends on; a mean over the stride."""
        return self.window * self.count_macs() // self.stride
