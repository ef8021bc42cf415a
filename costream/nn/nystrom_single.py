"""Single-output Nyström attention: the newest row of the window."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.fast import linear
from costream.nn.nystrom.continual import ContinualNystrom, NystromState
from costream.nn.nystrom.summary import mean_rows_seen

_SPAN = 32  # steps of a clip at once: each has weights for all landmarks


class SingleOutputNystrom(ContinualNystrom):
    """Nyström attention whose output is the newest row of the window."""

    def forward(self, x: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return each row of a clip [B, T, d] as stepping through it would.

        ``segments`` belong to the window form and are not supported here: ValueError.
        """
        if segments is not None:
            raise ValueError("segments are not supported, a clip has the segments of its stream")
        q, k, v = self.split(x)
        out = [
            self._band(q, k, v, landmarks, low, min(low + _SPAN, stop))
            for start, stop, landmarks in self.spans(q, k)
            for low in range(start, stop, _SPAN)
        ]
        return linear(self, "out_proj", torch.cat(out, 2).transpose(1, 2).flatten(2))

    def _band(
        self, q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, start: int, stop: int
    ) -> Tensor:
        """Return the heads' outputs [B, h, stop - start, e] for some steps of a clip."""
        low = max(0, start + 1 - self.window)
        k, v = k[:, :, low:stop], v[:, :, low:stop]
        age = torch.arange(start, stop)[:, None] - torch.arange(low, stop)
        hidden = ((age < 0) | (age >= self.window)).to(q.device)
        queries, keys = landmarks.unbind(2)
        inverse = self.inverse[None] if self.fixed else self.invert(landmarks)
        asked = (q[:, :, start:stop] @ keys.mT).softmax(-1) @ inverse
        logits = (queries @ k.mT)[:, :, None].masked_fill(hidden[:, None], -math.inf)
        weights = (asked[:, :, :, None] @ logits.softmax(-1))[:, :, :, 0]
        return F.dropout(weights, self.dropout, self.training) @ v

    def init_state(self, batch_size: int = 1) -> NystromState:
        """Return the initial state of ``batch_size`` streams."""
        return NystromState(*self.keep(batch_size))

    def forward_step(self, x: Tensor, state: NystromState) -> Tensor:
        """Take one row [B, d] of every stream, return it after attention, [B, d].

        Streams that are not in step are processed one by one except for their projections.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.forward_step(x, state)
        return linear(self, "out_proj", self._heads(self.project_row(x, state)))

    def forward_steps(self, x: Tensor, state: NystromState) -> Tensor:
        """Take T rows [B, T, d], return what T calls of ``forward_step`` would, [B, T, d]."""
        with torch.no_grad():
            rows = F.linear(x, *self.projection()).unbind(1)
            heads = [self._heads(self.hand(row, state)) for row in rows]
            return linear(self, "out_proj", torch.stack(heads, 1)) if heads else x

    def _heads(self, states: Sequence[NystromState]) -> Tensor:
        """Take the projected row of these streams, return the heads' outputs [B, d]."""
        out = []
        for state in states:
            taken = self.take(state)
            rows = torch.bmm(torch.bmm(taken.asked, taken.weights), taken.values)
            out.append(rows.view(-1, self.embed_dim))
        return out[0] if len(out) == 1 else torch.cat(out)

    def count_macs(self, rows: int | None = None, newest: bool = True) -> int:
        """Return the multiply-accumulates of a full-window step of one stream, averaged over n."""
        m, seen = self.num_landmarks, self.num_landmarks + mean_rows_seen(self.window)
        heads = m * seen * self.num_heads + seen * self.embed_dim
        return round(self.row_macs() + heads + self.embed_dim**2)
