"""CMeRT: a window with the rows before it, a memory of sampled rows, and a generated future.

Checkpoints are those of the authors' code (Pang et al., CVPR 2025). Its first stages are those of
LSTR: ``TeSTra`` with equal weights of remembered rows, of which there are so many and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.label_sets import class_names
from costream.models.oad.cooadtr import THUMOS14, OadOutput
from costream.models.oad.testra import (
    PUBLISHED_WIDTH,
    Queries,
    TeSTra,
    attend,
    count_parts,
    decoder_layer,
    layer_rules,
    positions_rule,
    read_sizes,
    sines,
    stage_rules,
)
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
class CMeRTState(State):
    """State of streams. The memory of a row is what the memory's queries read of it."""

    steps: Tensor  # int64 [B], rows seen
    rows: Tensor  # [B, c + n, d]: the last rows, projected for the window
    logits: Tensor  # [B, L, h, M]: of the last rows that are in the window or may be remembered
    values: Tensor  # [B, L, h, e]


@register_model(
    "cmert",
    summary="online action detection, a window, its past and a generated future",
    listed=5,
    order=7,
    arguments=THUMOS14,
)
class CMeRT(TeSTra):
    """A decoder over a window and its context, refined by a memory and a future made from it.

    Pang, Sener and Yao, "Context-enhanced memory-refined transformer for online action detection"
    (CVPR 2025). M learned queries attend to S rows before the window, every ``memory_every``-th
    one; other queries to the result, which is the memory. Queries of the future attend to the
    memory. A window of n rows, with c rows before it and learned rows for A steps after it,
    attends to the memory and itself; without its context, it then attends to memory, itself and
    future. Its newest row is classified, and the A rows after it.

    A step takes constant time and memory. Projection, keys and values of a row are computed once,
    as are the logits of a remembered row; the softmax over S rows, the memory, the future and the
    window are computed in each step, of the last layer only the rows that are classified. While
    the window is not full, its rows are at its beginning, and later ones are hidden.

    Args:
        motion_width: the last so many values of a row are of a second stream, projected by
            itself; 0: the row has one stream.
        context: c. ``memory_samples``: S. ``anticipated``: A.
        generated: queries of the future. ``generator_depth``: its layers.
        refinements: layers over memory, window and future.
        Further arguments are those of ``TeSTra``.

    ValueError for sizes below 1, of ``context`` below 0, and a ``motion_width`` as wide as rows.
    """

    def __init__(  # noqa: PLR0913 - the sizes of the network
        self,
        input_width: int,
        num_classes: int,
        *,
        motion_width: int = 0,
        embed_dim: int = 1024,
        num_heads: int = 8,
        feedforward: int = 1024,
        window: int = 16,
        context: int = 2,
        memory: int = 16,
        refined: int = 32,
        depth: int = 2,
        decoder_depth: int = 2,
        memory_every: int = 4,
        memory_samples: int = 256,
        anticipated: int = 8,
        generated: int = 32,
        generator_depth: int = 2,
        refinements: int = 1,
        dropout: float = 0.0,
    ) -> None:
        if min(memory_samples, anticipated, generated, generator_depth, refinements) < 1:
            raise ValueError(
                "memory_samples, anticipated, generated, generator_depth and refinements must be"
                " at least 1"
            )
        if context < 0:
            raise ValueError(f"context {context} must be at least 0")
        super().__init__(
            input_width,
            num_classes,
            embed_dim=embed_dim,
            num_heads=num_heads,
            feedforward=feedforward,
            window=window,
            memory=memory,
            refined=refined,
            depth=depth,
            decoder_depth=decoder_depth,
            memory_every=memory_every,
            memory_decay=1.0,
            dropout=dropout,
            projection=partial(StreamProjection, motion_width=motion_width),
        )
        self.context, self.samples = context, memory_samples
        sizes = (embed_dim, num_heads, feedforward, dropout)
        self.anticipation_queries = nn.Parameter(torch.randn(anticipated, embed_dim))
        self.future_queries = nn.Parameter(torch.randn(generated, embed_dim))
        self.generator = nn.ModuleList(decoder_layer(*sizes) for _ in range(generator_depth))
        self.generator_norm = nn.LayerNorm(embed_dim)
        self.fusions = nn.ModuleList(decoder_layer(*sizes) for _ in range(refinements))
        self.fusion_norms = nn.ModuleList(nn.LayerNorm(embed_dim) for _ in range(refinements))
        self.positions = sines(window + max(context, anticipated), embed_dim)

    @property
    def horizon(self) -> int:
        """Rows before the window of which some are remembered."""
        return self.every * self.samples

    def init_state(self, batch_size: int = 1) -> CMeRTState:
        """Return the initial state of a batch of streams."""
        (m, d), like = self.queries.shape, self.head.weight
        shape = (batch_size, self.window + self.horizon, self.num_heads)
        return CMeRTState(
            zeros(batch_size),
            zeros(batch_size, self.context + self.window, d, like=like),
            zeros(*shape, m, like=like),
            zeros(*shape, d // self.num_heads, like=like),
        )

    def _macs(self, remembered: int, projected: int) -> int:
        """Return the operations for so many remembered rows, and rows projected for the window."""
        (m, d), ahead = self.queries.shape, len(self.anticipation_queries)
        refined, future = len(self.refining), len(self.future_queries)
        decoded, kept = self.context + self.window + ahead, self.window + ahead
        total = self._memory_macs(remembered, projected) + (self.samples - remembered) * m * d
        total += len(self.decoder) * self._layer_macs(decoded, decoded, refined + decoded)
        total += len(self.generator) * self._layer_macs(future, future, refined)
        seen = refined + kept + future
        total += (len(self.fusions) - 1) * self._layer_macs(kept, kept, seen)
        total += self._layer_macs(1 + ahead, kept, seen)
        return total + (1 + ahead) * self.head.weight.numel()

    def _ages(self, steps: Tensor, count: int) -> Tensor:
        ages = super()._ages(steps, count)
        return torch.where(ages < self.samples, ages, torch.inf)

    def _advance(self, row: Tensor, state: Any, queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """Take a projected row [B, 2 d] of every stream.

        Return its window with context [B, c + n, d], the place of the newest row in the window,
        int64 [B], and the means [B, h, M, e] of its memory.
        """
        now, d = state.steps.clone(), row.shape[1] // 2
        streams = torch.arange(len(row))
        slots, held = state.rows.shape[1], state.logits.shape[1]
        keys, values = self._keys_values(row[:, d:])
        state.rows[streams, now % slots] = row[:, :d].detach()
        state.values[streams, now % held] = values.detach()
        logits = torch.einsum("hme,bhe->bhm", queries.heads, keys)
        state.logits[streams, now % held] = logits.detach()
        state.steps += 1
        begin = (now - self.window + 1).clamp(min=0)
        index = begin[:, None] - self.every * torch.arange(1, self.samples + 1)
        absent = index <= -self.every  # what is before row 0 is row 0, once
        absent[:, 0] = False
        at = streams[:, None], index.clamp(min=0) % held
        shares = state.logits[at].masked_fill(absent[..., None, None].to(row.device), -torch.inf)
        means = torch.einsum("bshm,bshe->bhme", shares.softmax(1), state.values[at])
        places = (begin[:, None] + torch.arange(-self.context, self.window)).clamp(min=0) % slots
        return state.rows[streams[:, None], places], now - begin, means

    def _decode(self, windows: Tensor, newest: Tensor, memory: Tensor) -> OadOutput:
        """Return logits of the newest rows of windows [B, S, c + n, d], and of those after them."""
        shape, memory = windows.shape[:2], memory.flatten(0, 1)
        c, ahead = self.context, len(self.anticipation_queries)
        coming = self.anticipation_queries + self.positions[self.window :][:ahead]
        rows = windows.flatten(0, 1) + self.positions[: c + self.window]
        y = rows = torch.cat([rows, coming.expand(len(rows), -1, -1)], 1)
        at = newest.flatten().to(rows.device)
        hidden = self._hidden(at)
        seen, wide = torch.cat([memory, rows], 1), F.pad(hidden, (memory.shape[1], 0))
        for layer in self.decoder:
            y = self._attend(layer, y, y, seen, hidden, wide)
        y, hidden = self.decoder_norm(y)[:, c:], hidden[:, c:, c:]
        future = self.future_queries.expand(len(memory), -1, -1)
        for layer in self.generator:
            future = attend(cast(nn.TransformerDecoderLayer, layer), future, future, memory)
        future = self.generator_norm(future)
        after = torch.arange(self.window, self.window + ahead, device=at.device)
        kept = torch.cat([at[:, None], after.expand(len(at), -1)], 1)
        streams = torch.arange(len(at), device=at.device)[:, None]
        wide = F.pad(hidden, (memory.shape[1], len(self.future_queries)))
        last = len(self.fusions) - 1
        for k, (layer, layer_norm) in enumerate(zip(self.fusions, self.fusion_norms, strict=True)):
            own, seen = y, torch.cat([memory, y, future], 1)
            if k == last:
                y, hidden, wide = (part[streams, kept] for part in (y, hidden, wide))
            y = layer_norm(self._attend(layer, y, own, seen, hidden, wide))
        logits = self.head(y).unflatten(0, shape)
        return OadOutput(logits[:, :, 0], logits[:, :, 1:])

    def _attend(
        self, layer: nn.Module, y: Tensor, own: Tensor, others: Tensor, hidden: Tensor, wide: Tensor
    ) -> Tensor:
        """Return ``attend`` with masks [N, rows, columns] that all heads share."""
        masks = (mask.repeat_interleave(self.num_heads, 0) for mask in (hidden, wide))
        return attend(cast(nn.TransformerDecoderLayer, layer), y, own, others, *masks)

    def _hidden(self, newest: Tensor) -> Tensor:
        """Return which rows are hidden from which, bool [N, rows, rows].

        Of context and window, those after a row; from the anticipated ones, those after the
        newest, which is at the places ``newest`` [N] of the window.
        """
        ahead, known = len(self.anticipation_queries), self.context + self.window
        size = known + ahead
        hidden = torch.ones(size, size, dtype=torch.bool, device=newest.device).triu(1)
        hidden[known:] = False
        hidden = hidden.repeat(len(newest), 1, 1)
        later = torch.arange(known, device=newest.device) > self.context + newest[:, None]
        hidden[:, known:, :known] = later[:, None]
        return hidden


class StreamProjection(nn.Module):
    """Linear and LayerNorm of each stream of a row; of two, a rectifier and both again.

    ``motion_width``: the last so many values are the second stream; 0: there is one.
    """

    def __init__(self, input_width: int, embed_dim: int, motion_width: int) -> None:
        super().__init__()
        if not 0 <= motion_width < input_width:
            raise ValueError(f"motion_width {motion_width} must be from 0 to below {input_width}")
        self.widths = [input_width - motion_width, *([motion_width] if motion_width else [])]
        self.streams = nn.ModuleList(_normed(width, embed_dim) for width in self.widths)
        self.both = _normed(2 * embed_dim, embed_dim) if motion_width else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the projections [..., d] of rows [..., input_width], before the last rectifier."""
        parts = [
            f(part) for f, part in zip(self.streams, torch.split(x, self.widths, -1), strict=True)
        ]
        if self.both is None:
            return cast(Tensor, parts[0])
        return cast(Tensor, self.both(F.relu(torch.cat(parts, -1))))


def _normed(width: int, embed_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, embed_dim), nn.LayerNorm(embed_dim))


PAPER = "https://arxiv.org/abs/2503.18359"
# The authors' settings for THUMOS14: 4 s of window after 0.5 s of context, a row of each second of
# the 256 s before the window, and 2 s after it, at 4 rows a second. They are not in the tensors.
_PUBLISHED = {
    "num_heads": 8,
    "window": 16,
    "context": 2,
    "memory_every": 4,
    "memory_samples": 256,
    "anticipated": 8,
    "rate_hz": 4.0,
}
_STREAMS = ("visual_linear", "motion_linear")


@importer(
    "cmert",
    summary="CMeRT, online action detection",
    detect=has_tensors("gen_query.weight", "enc_queries.0.weight", "work_fusions.0.norm.weight"),
    keys=(
        *("num_heads", "window", "context", "memory_every", "memory_samples", "anticipated"),
        *("input_width", "num_classes"),
    ),
    order=32,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and contradictory settings.

    The authors' settings are assumed where no tensor tells: positions in the window only, which
    also attends to itself. Networks without a generated future have other tensors.
    """
    tensors = foreign.tensors
    names = [s for s in _STREAMS if f"feature_head_work.{s}.0.weight" in tensors]
    at = f"feature_head_work.{names[0] if names else _STREAMS[0]}.0.weight"
    d = shape_of(tensors, at, 2)[0]
    widths = [shape_of(tensors, f"feature_head_work.{s}.0.weight", 2)[1] for s in names]
    settings.suggest(_PUBLISHED if d == PUBLISHED_WIDTH else {"rate_hz": _PUBLISHED["rate_hz"]})
    arguments = read_sizes(tensors, settings, d, sum(widths)) | {
        "motion_width": widths[1] if len(widths) > 1 else 0,
        "context": settings.require("context"),
        "memory_samples": settings.require("memory_samples"),
        "anticipated": settings.require("anticipated"),
        "generated": shape_of(tensors, "gen_query.weight", 2)[0],
        "generator_depth": count_parts(tensors, "gen_layer.layers"),
        "refinements": count_parts(tensors, "work_fusions"),
    }
    ahead = arguments["anticipated"]
    rows = arguments["window"] + max(arguments["context"], ahead)
    future = shape_of(tensors, "final_query.weight", 2)
    if ahead > future[0]:
        settings.reject(f"anticipated {ahead}: the checkpoint has {future[0]} rows of the future")
    rules = [
        *_projection_rules("remembered", "feature_head_long", names, widths, d),
        *_projection_rules("input_projection", "feature_head_work", names, widths, d),
        positions_rule(tensors, rows, f"window and context or anticipated rows, {rows}"),
        *stage_rules(arguments),
        TensorRule("anticipation_queries", ("final_query.weight",), future, lambda w: w[0][:ahead]),
        TensorRule("future_queries", ("gen_query.weight",), (arguments["generated"], d)),
        *norm("generator_norm", "gen_layer.norm", d),
    ]
    for k in range(arguments["generator_depth"]):
        rules += layer_rules(f"generator.{k}", f"gen_layer.layers.{k}", d, arguments["feedforward"])
    for k in range(arguments["refinements"]):
        theirs = f"work_fusions.{k}"
        rules += layer_rules(f"fusions.{k}", f"{theirs}.layers.0", d, arguments["feedforward"])
        rules += norm(f"fusion_norms.{k}", f"{theirs}.norm", d)
    classes = arguments["num_classes"]
    labels = class_names(foreign.args, classes)
    return ImportedNetwork("cmert", arguments, apply(rules, tensors), classes, labels, PAPER)


def _projection_rules(
    ours: str, theirs: str, names: list[str], widths: list[int], d: int
) -> list[TensorRule]:
    """Return the rules of a ``StreamProjection``."""
    parts = [
        (f"streams.{k}", name, w) for k, (name, w) in enumerate(zip(names, widths, strict=True))
    ]
    if len(names) > 1:
        parts.append(("both", "input_linear", 2 * d))
    rules: list[TensorRule] = []
    for part, name, width in parts:
        rules += linear(f"{ours}.{part}.0", f"{theirs}.{name}.0", d, width)
        rules += norm(f"{ours}.{part}.1", f"{theirs}.{name}.1", d)
    return rules
