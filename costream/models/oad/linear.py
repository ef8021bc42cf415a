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
        window: rows.
        unit: whether the mean is divided by its Euclidean norm, so that the logits are cosines to
            the rows of the weight, times the norms of these.
        changes: whether the mean absolute difference of successive rows of the window follows the
            mean, C more values; 0 before the second row.
        spread: whether the standard deviation of the rows of the window follows, C more values.

    Raises ValueError unless the window is positive, and at least 2 with ``changes`` or ``spread``.
    """

    delay = 0
    exact = True

    def __init__(
        self,
        input_width: int,
        num_classes: int,
        window: int = 1,
        unit: bool = False,
        changes: bool = False,
        spread: bool = False,
    ) -> None:
        super().__init__()
        if window < 1 + (changes or spread):
            raise ValueError(f"window {window} is not positive, or 1 with changes or spread")
        self.window, self.unit = int(window), bool(unit)
        self.changes, self.spread = bool(changes), bool(spread)
        self.input_width = int(input_width)
        width = input_width * (1 + self.changes + self.spread)
        self.classifier = nn.Linear(width, num_classes)

    @property
    def receptive_field(self) -> int:
        """Feature rows that an output depends on; their middle is what it describes."""
        return self.window

    def init_state(self, batch_size: int = 1) -> NewestRows:
        """Return the initial state of a batch of streams."""
        weight = self.classifier.weight
        rows = zeros(batch_size, self.window - 1, self.input_width, like=weight)
        return NewestRows(rows, zeros(batch_size))

    def warmup(self, state: NewestRows, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its window was not full ``ago`` steps before."""
        return tuple(count - ago < self.window for count in state.count.tolist())

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the logits [..., K] of the output of ``pool``."""
        pooled = F.normalize(pooled, dim=-1) if self.unit else pooled
        logits: Tensor = self.classifier(pooled)
        return logits

    def pool(self, x: Tensor, state: NewestRows) -> Tensor:
        """Take T feature rows [B, T, C], return mean, changes and spread of T windows.

        They are [B, T, C], [B, T, 2 C] or [B, T, 3 C].
        """
        steps, window = x.shape[1], self.window
        rows = torch.cat([state.rows, x], 1)
        state.rows.copy_(rows[:, steps:])
        before = state.count[:, None].clone()
        state.count += steps
        if window == 1:
            return x
        seen = (before + torch.arange(1, steps + 1)).clamp(max=window)[..., None].to(x)
        # Rows before a stream's first are zeros.
        pooled = [rows.unfold(1, window, 1).sum(-1) / seen]
        if self.changes:
            places = torch.arange(1, rows.shape[1])
            known = (places > window - 1 - before)[..., None].to(x.device)
            moved = (rows[:, 1:] - rows[:, :-1]).abs() * known
            pooled.append(moved.unfold(1, window - 1, 1).sum(-1) / (seen - 1).clamp(min=1))
        if self.spread:  # in float64, as the difference of two large numbers may be small
            exact = rows.double()
            mean, squares = (
                part.unfold(1, window, 1).sum(-1) / seen for part in (exact, exact.square())
            )
            pooled.append((squares - mean.square()).clamp(min=0).sqrt().to(x))
        return torch.cat(pooled, -1)

    def forward_step(self, x: Tensor, state: NewestRows) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the logits [B, K].

        The values of a row may have several axes, as those of joints have.
        """
        return OadOutput(self.forward_steps(x[:, None], state).logits[:, 0], None)

    def forward_steps(self, x: Tensor, state: NewestRows) -> OadOutput:
        """Take T feature rows [B, T, C] of every stream, return the logits [B, T, K]."""
        return OadOutput(self(self.pool(x.flatten(2), state)), None)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step of one stream."""
        return self.classifier.weight.numel()

    dense_macs = property(count_macs)
