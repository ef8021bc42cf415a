"""Models of text: a label for each line, from the tokens of its words in their context."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from costream.core.records import Data, TextLine
from costream.models.base import StepResult
from costream.models.devices import synchronize
from costream.models.oad.deepcot import DeepCoT
from costream.models.spec import register_model
from costream.models.streaming import ModelState, StreamingModel
from costream.nn.block import EncoderConfig

_AT_ONCE = 256  # tokens


class ReadingModel(StreamingModel):
    """A frontend and network for text, ready to step.

    An item is a line or a word (``TextLine``) of one or more tokens, which pass through the network
    one after another; the result is the output after the last token.
    """

    @torch.inference_mode()
    def step(self, items: Sequence[Data], state: ModelState) -> StepResult:
        """Take one item per stream, return the output after its last token.

        Feature rows are tokens, as for other models.
        """
        if not all(isinstance(item, TextLine) for item in items):
            return super().step(items, state)
        if len(items) == 1:
            return self.steps(items, state)[0]
        results = []
        for k, item in enumerate(items):  # of different lengths
            row_state = state.take([k])
            results += self.steps([item], row_state)
            state.put([k], row_state)
        rows = [r.probabilities for r in results if r.probabilities is not None]
        failed = tuple(bool(r.overflowed) for r in results)
        return StepResult(
            np.concatenate(rows),
            None,
            tuple(flag for r in results for flag in r.warmup),
            macs=sum(r.macs for r in results),
            dense_macs=sum(r.dense_macs for r in results),
            frontend_s=sum(r.frontend_s for r in results),
            network_s=sum(r.network_s for r in results),
            overflowed=failed if any(failed) else None,
        )

    @torch.inference_mode()
    def steps(self, items: Sequence[Data], state: ModelState) -> list[StepResult]:
        """Take consecutive items of one stream, return the same results as calls of ``step``."""
        lines = [item for item in items if isinstance(item, TextLine)]
        if len(lines) < len(items):
            return [self.step([item], state) for item in items]
        began = time.perf_counter()
        rows = [self.frontend.prepare(line) for line in lines]
        counts = [len(row) for row in rows]
        given = torch.from_numpy(np.concatenate(rows))[None].to(self.device)
        tokens = self.frontend.forward_steps(given, state.frontend)
        synchronize(self.device)
        seen = time.perf_counter()
        parts = tokens.split(_AT_ONCE, 1)
        logits = [self.network.forward_steps(part, state.network).logits[0] for part in parts]
        last = torch.cat(logits)[torch.from_numpy(np.cumsum(counts) - 1)]
        return self._results(last, state, (began, seen), counts)


@register_model(
    "cotext",
    summary="labels of lines of text, DeepCoT; see 'costream help read'",
    listed=11,
    order=7,
    model="costream.models.text.cotext:ReadingModel",
    arguments={"num_classes": 10},
    task="text classification",
    rate_hz=1.0,
    frontend="text",
)
class CoText(DeepCoT):
    """DeepCoT (Carreto Picon et al., 2025) for the words of a stream of text.

    Two single-output blocks with rotary positions, each with a window of 64 tokens. Lines are
    separated only by the token that ends a line: earlier lines are context.

    Args: as for ``DeepCoT``.
    """

    config = EncoderConfig(48, 4, 96, 2, 64, final_norm=True, dropout=0.1)

    def __init__(
        self,
        num_classes: int,
        input_width: int = 32,
        *,
        positions: str = "rotary",
        **options: Any,
    ) -> None:
        super().__init__(input_width, num_classes, positions=positions, **options)
