"""A linear classifier of the mean of the newest feature rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.records import IMAGE_CLASSIFICATION
from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.nn.state import State, zeros


@dataclass
class NewestRows(State):
    """The newest feature rows of each stream."""

    rows: Tensor  # [B, window - 1, C], the newest last
    count: Tensor  # int64 [B], rows so far


@register_model(
    "linear",
    order=31,
    arguments={"input_width": 1280, "num_classes": 1000},
    task=IMAGE_CLASSIFICATION,
    whole=True,
    frontend="efficientnet-lite",
)
class LinearClassifier(nn.Module):
    """Logits of the mean of the newest ``window`` feature rows: one linear layer.

    At the beginning of a stream the mean is that of the rows that there are.

    Args:
        input_width: C. ``num_classes``: K.
        window: rows. ``unit``: whether the mean is divided by its Euclidean norm, so that the
            logits are cosines to the rows of the weight, times the norms of these.

    Raises ValueError unless the window is positive.
    """

    delay = 0
    exact = True

    def __init__(
        self, input_width: int, num_classes: int, window: int = 1, unit: bool = False
    ) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window {window} is not positive")
        self.window, self.unit = int(window), bool(unit)
        self.classifier = nn.Linear(input_width, num_classes)

    @property
    def receptive_field(self) -> int:
        """Feature rows that an output depends on; their middle is what it describes."""
        return self.window

    def init_state(self, batch_size: int = 1) -> NewestRows:
        """Return the initial state of a batch of streams."""
        weight = self.classifier.weight
        rows = zeros(batch_size, self.window - 1, self.classifier.in_features, like=weight)
        return NewestRows(rows, zeros(batch_size))

    def warmup(self, state: NewestRows, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its window was not full ``ago`` steps before."""
        return tuple(count - ago < self.window for count in state.count.tolist())

    def forward(self, means: Tensor) -> Tensor:
        """Return the logits [..., K] of means [..., C]."""
        means = F.normalize(means, dim=-1) if self.unit else means
        logits: Tensor = self.classifier(means)
        return logits

    def forward_step(self, x: Tensor, state: NewestRows) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the logits [B, K]."""
        return OadOutput(self.forward_steps(x[:, None], state).logits[:, 0], None)

    def forward_steps(self, x: Tensor, state: NewestRows) -> OadOutput:
        """Take T feature rows [B, T, C] of every stream, return the logits [B, T, K]."""
        steps, held = x.shape[1], self.window - 1
        rows = torch.cat([state.rows, x], 1)
        state.rows.copy_(rows[:, steps:])
        counts = state.count[:, None] + torch.arange(1, steps + 1)
        state.count += steps
        if not held:
            return OadOutput(self(x), None)
        # Rows before a stream's first are zeros.
        sums = rows.unfold(1, self.window, 1).sum(-1)
        return OadOutput(self(sums / counts.clamp(max=self.window)[..., None].to(x)), None)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step of one stream."""
        return self.classifier.weight.numel()

    dense_macs = property(count_macs)
