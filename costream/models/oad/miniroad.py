"""MiniROAD: online action detection with a recurrent network.

Checkpoints are those of the authors (An et al., Minimal RNN Framework for OAD, ICCV 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.label_sets import class_names
from costream.models.oad.cooadtr import THUMOS14, OadOutput
from costream.models.spec import register_model
from costream.nn.state import State, zeros
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    TensorRule,
    apply,
    linear,
    norm,
    shape_of,
)


@dataclass
class MiniRoadState(State):
    """State of the network for each stream."""

    hidden: Tensor  # [B, H]


@register_model(
    "miniroad",
    summary="online action detection, recurrent network",
    listed=4,
    order=7,
    arguments=THUMOS14,
)
class MiniRoad(nn.Module):
    """Linear, LayerNorm, ReLU, a gated recurrent unit, ReLU, Linear.

    An, Kang, Han, Yang, Kim, "MiniROAD: minimal RNN framework for online action detection" (ICCV
    2023). An output depends on all rows since the stream began, so there is no window to fill, and
    nothing is computed twice: a step costs as much as a row in the offline network.

    Args:
        input_width: width of a feature row; 3072 or 4096 for RGB and flow. ``num_classes``: K.
        embed_dim: width of a token. ``hidden``: H, of the recurrent unit.
        dropout: of the tokens, in training.
    """

    delay = 0
    window = 1  # input rows of a step, besides the state

    def __init__(
        self,
        input_width: int,
        num_classes: int,
        embed_dim: int = 2048,
        hidden: int = 1024,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.input_projection = nn.Linear(input_width, embed_dim)
        self.norm = nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(embed_dim, hidden, batch_first=True)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor, offset: int | Tensor = 0, last: int | None = None) -> OadOutput:
        """Return the output of every step of a clip [B, T, C], as stepping through it would.

        ``offset`` has no effect; it is for compatibility with other networks. ``last``: return only
        this number of last steps.
        """
        rows, _ = self.gru(self._embed(x))
        return self._classify(rows if last is None else rows[:, -last:])

    def init_state(self, batch_size: int = 1) -> MiniRoadState:
        """Return the initial state of a batch of streams."""
        return MiniRoadState(zeros(batch_size, self.gru.hidden_size, like=self.head.weight))

    def warmup(self, state: MiniRoadState, ago: int = 0) -> tuple[bool, ...]:
        """Return False for each stream: there is no window to fill."""
        return (False,) * state.batch_size

    def forward_step(self, x: Tensor, state: MiniRoadState) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it."""
        return OadOutput(self.forward_steps(x[:, None], state).logits[:, 0], None)

    def forward_steps(self, x: Tensor, state: MiniRoadState) -> OadOutput:
        """Take T feature rows [B, T, C], return the outputs of T calls of ``forward_step``."""
        rows, hidden = self.gru(self._embed(x), state.hidden[None])
        state.hidden.copy_(hidden[0].detach())
        return self._classify(rows)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step for one stream."""
        return sum(p.numel() for p in self.parameters() if p.dim() == 2)

    @property
    def dense_macs(self) -> int:
        """The same as ``count_macs``: there is no window to recompute."""
        return self.count_macs()

    def _embed(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.dropout(F.relu(self.norm(self.input_projection(x))))
        return tokens

    def _classify(self, rows: Tensor) -> OadOutput:
        return OadOutput(self.head(F.relu(rows)), None)


PAPER = "https://arxiv.org/abs/2308.16444"
_RATES_HZ = {22: 4.0, 31: 4.0}  # of the features, by the classes: THUMOS14 and TVSeries


@importer(
    "miniroad",
    summary="MiniROAD",
    detect=has_tensors("layer1.0.weight", "gru.weight_ih_l0", "f_classification.0.weight"),
    keys=("input_width", "embed_dim", "num_classes"),
    order=2,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and contradictory settings.

    A network with more than one recurrent layer, or with anticipation, has unused tensors.
    """
    tensors = foreign.tensors
    d, width = shape_of(tensors, "layer1.0.weight", 2)
    classes, hidden = shape_of(tensors, "f_classification.0.weight", 2)
    rules = [
        *linear("input_projection", "layer1.0", d, width),
        *norm("norm", "layer1.1", d),
        *linear("head", "f_classification.0", classes, hidden),
    ]
    for part, columns in (("ih", d), ("hh", hidden)):
        for kind, shape in (("weight", (3 * hidden, columns)), ("bias", (3 * hidden,))):
            name = f"gru.{kind}_{part}_l0"
            rules.append(TensorRule(name, (name,), shape))
    arguments = {
        "input_width": settings.check("input_width", width),
        "num_classes": settings.check("num_classes", classes),
        "embed_dim": settings.check("embed_dim", d),
        "hidden": hidden,
    }
    if classes in _RATES_HZ:
        settings.suggest({"rate_hz": _RATES_HZ[classes]})
    names = class_names(foreign.args, classes)
    return ImportedNetwork("miniroad", arguments, apply(rules, tensors), classes, names, PAPER)
