"""YOLOS: 80 kinds of objects, by a plain vision transformer alone, token-gated.

Fang et al., "You Only Look at One Sequence: Rethinking Transformer in Vision through Object
Detection" (NeurIPS 2021).

Checkpoints are the model hub's files, with the names of the package ``transformers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import OBJECT_DETECTION, VideoFrame
from costream.models.eventful.backbone import BackboneState, GatedBlocks, PositionEncoding
from costream.models.eventful.block_rules import EventfulBlockNames, eventful_block_rules
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.detector import ObjectModel, Size
from costream.models.eventful.frame_detector import CategoryDetector
from costream.models.images import Resized
from costream.models.spec import register_model
from costream.nn.boxes import corners_of
from costream.nn.eventful.attention import TokenGrid, attend_rows, count_dense_attention
from costream.nn.eventful.block import VARIANTS, EventfulBlock, GatedState, begin_buffer
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.gates import pass_tokens
from costream.nn.eventful.policies import Policy, start_tokens
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

PAPER = "https://arxiv.org/abs/2106.00666"
PATCH = 16
# COCO numbers its 80 categories from 1 to 90; these numbers are not used.
_UNUSED = {0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
COCO_CATEGORIES = [k for k in range(91) if k not in _UNUSED]
SIZES: dict[str, dict[str, Any]] = {
    "yolos-tiny": {"dim": 192, "heads": 3, "position_size": [50, 83]},
    "yolos-small": {"dim": 384, "heads": 6, "position_size": [32, 54], "middle": True},
}
PICTURES = {192: (512, 853), 384: (800, 1333)}  # sides they were evaluated at, by dim


def _paper(name: str) -> dict[str, Any]:
    arguments = SIZES[name]
    short, long = PICTURES[arguments["dim"]]
    return {
        "arguments": {"categories": COCO_CATEGORIES, **arguments},
        "task": OBJECT_DETECTION,
        "rate_hz": 30.0,
        "frontend": "resized",
        "frontend_arguments": {"short": short, "long": long},
    }


@register_model(
    "yolos",
    order=28,
    gated=True,
    model="costream.models.eventful.yolos:YolosModel",
    **_paper("yolos-tiny"),
)
@register_model(
    "yolos-tiny",
    architecture="yolos",
    bench="costream.bench.published:published_steps_table",
    **_paper("yolos-tiny"),
)
@register_model(
    "yolos-small",
    architecture="yolos",
    bench="costream.bench.published:published_steps_table",
    **_paper("yolos-small"),
)
class Yolos(CategoryDetector):
    """Patches and detection tokens attend to one another; each detection token becomes a box.

    Tokens are a class token, the patches row by row, and the detection tokens. In video, gates
    pass the patches that their policy selects, and always the other tokens, which depend on all of
    the picture. Pictures may have any size that is a multiple of the patch; nothing is padded.

    Args:
        categories: output columns of the classes, ascending; the last column of all is "none".
        dim, heads, depth: D, H and the number of blocks.
        detections: number of detection tokens.
        position_size: height and width, in tokens, of the tables of positions.
        middle: whether there is a table after each block except the last.
        norm_eps: of the layer norms.
        score: detections below are dropped.
        scene_cut, refresh: see ``ViTDetBackbone``.
    """

    def __init__(  # noqa: PLR0913 - the sizes of the network
        self,
        categories: Sequence[int],
        dim: int = 192,
        heads: int = 3,
        depth: int = 12,
        detections: int = 100,
        position_size: Sequence[int] = (50, 83),
        middle: bool = False,
        norm_eps: float = 1e-6,
        score: float = 0.05,
        scene_cut: float | None = 0.8,
        refresh: int | None = None,
    ) -> None:
        super().__init__(categories, dim, PATCH, score, scene_cut, refresh)
        size = (position_size[0], position_size[1])
        self.start = TokenTable(dim, size, detections)
        self.blocks = nn.ModuleList(
            EventfulBlock(dim, heads, None, variant=VARIANTS["rows"])
            if number < depth
            else FinalBlock(dim, heads, detections)
            for number in range(1, depth + 1)
        )
        self.middle = nn.ModuleList(
            TokenTable(dim, size, detections) for _ in range(depth - 1 if middle else 0)
        )
        self.norm = nn.LayerNorm(dim)
        self.scores = _head(dim, max(categories) + 2)
        self.corners = _head(dim, 4)
        for layer in self.modules():
            if isinstance(layer, nn.LayerNorm):
                layer.eps = norm_eps

    @property
    def always(self) -> int:
        """Number of tokens that are not patches."""
        return 1 + self.start.last.shape[1]

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the detection tokens [B, n, D] for patches [B, h, w, D] of independent frames."""
        size, x = (tokens.shape[1], tokens.shape[2]), self.start(tokens)
        for k, block in enumerate(self.blocks):
            x = self._after(k, block(x), size)
        return self._last(x)

    def predict(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, n, columns] and boxes [B, n, 4] for detection tokens [B, n, D].

        Boxes are centre x, y, width and height as parts of the picture.
        """
        return self.scores(view), self.corners(view).sigmoid()

    def init_state(self, batch_size: int, height: int, width: int) -> BackboneState:
        """Return the initial state of streams of frames of this size, in pixels."""
        self.check_size(height, width)
        tokens = height // PATCH * (width // PATCH) + self.always
        return GatedBlocks.init_state(self, batch_size, 1, tokens)

    @torch.no_grad()
    def view_step(
        self, tokens: Tensor, state: BackboneState, policy: Policy, operations: Operations
    ) -> Tensor:
        """Take the patches [B, h, w, D] of the next frame, return the detection tokens [B, n, D].

        ``policy``: which patches are computed at each gate.
        """
        size, chooses = (tokens.shape[1], tokens.shape[2]), _Around(policy, self.always - 1)
        x = self.start(tokens)
        fresh = self.begin(x, state, chooses)
        for k, (block, kept) in enumerate(zip(self._blocks, state.blocks, strict=True)):
            x = block.forward_step(x, cast(Any, kept), fresh, chooses, operations)
            x = self._after(k, x, size)
        return self._last(x)

    def detect(
        self, view: Tensor, size: Size, operations: Operations | None = None
    ) -> list[Detections]:
        """Return the objects for detection tokens, in pixels of pictures of this ``size``."""
        logits, boxes = self.predict(view)
        if operations is not None:
            for layer in (*self.scores, *self.corners):
                if isinstance(layer, nn.Linear):
                    operations.count_linear(view[..., 0].numel(), layer)
        probabilities = logits.float().softmax(-1)[..., self.categories]
        found = []
        for rows, places in zip(probabilities, corners_of(boxes, *size), strict=True):
            scores, labels = rows.max(-1)
            order = scores.argsort(descending=True)
            order = order[scores[order] >= self.score]
            found.append(Detections(places[order], scores[order], labels[order]))
        return found

    def count_macs(self, height: int, width: int, updated: int | None = None) -> int:
        """Return the cost of ``view_step`` for one stream of frames of this size, in tokens.

        ``updated``: patches that pass every gate; None: the stream begins.
        """
        count = height * width + self.always
        passed = None if updated is None else min(updated, height * width) + self.always
        return sum(block.count_macs(1, count, passed) for block in self._blocks)

    def _after(self, k: int, x: Tensor, size: Size) -> Tensor:
        """Return the tokens after block k for pictures of this size, in tokens."""
        if k >= len(self.middle):
            return x
        return x + cast(TokenTable, self.middle[k]).table(*size)

    def _last(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(x[:, 0]))


@dataclass
class FinalState(State):
    """State of a ``FinalBlock``."""

    qkv: GatedState


class FinalBlock(EventfulBlock):
    """A last block that returns only the ``count`` last tokens: [B, 1, count, D].

    Queries, keys and values are computed for all tokens, everything after them for these only.
    """

    def __init__(self, dim: int, heads: int, count: int) -> None:
        super().__init__(dim, heads, None, variant=VARIANTS["rows"])
        self.count = count

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the last tokens of frames [B, 1, N, D], computed in full."""
        operations = Operations() if operations is None else operations
        rows = x.flatten(1, 2)
        operations.count_linear(rows[..., 0].numel(), self.qkv)
        return self._finish(rows, self.qkv(self.input_layer_norm(rows)), operations)

    def init_state(  # type: ignore[override]
        self, batch_size: int, height: int, width: int
    ) -> FinalState:
        """Return the initial state of ``batch_size`` streams of frames of this size."""
        shape, like = (batch_size, height * width), self.input_layer_norm.weight
        qkv = (zeros(*shape, width, like=like) for width in (self.dim, 3 * self.dim))
        return FinalState(GatedState(*qkv))

    def forward_step(
        self,
        x: Tensor,
        state: Any,
        fresh: Sequence[bool],
        policy: Policy,
        operations: Operations,
    ) -> Tensor:
        """Take the tokens [B, 1, N, D] of a frame of every stream, return the last ones."""
        rows, gate = x.flatten(1, 2), state.qkv
        normed = self.input_layer_norm(rows)
        chosen = pass_tokens(normed, gate.reference, fresh, policy, operations)
        begin_buffer(gate.buffer, chosen, self.qkv.bias)
        chosen.put(self._project(self.qkv, chosen.take(normed), operations), gate.buffer)
        return self._finish(rows, gate.buffer, operations)

    def count_macs(
        self, height: int, width: int, updated: int | None = None, columns: int | None = None
    ) -> int:
        """Return the operations of a step of one stream, see ``EventfulBlock``."""
        count, d, hidden = height * width, self.dim, self.mlp_1.out_features
        passed, gate = (count, 0) if updated is None else (updated, count * d)
        after = d * d + 2 * d * hidden + d + hidden + d + 2 * count * d + 2 * d
        return passed * 3 * (d * d + d) + gate + self.count * after

    def _finish(self, rows: Tensor, qkv: Tensor, operations: Operations) -> Tensor:
        """Return the last tokens [B, 1, count, D] for tokens and their projections."""
        frame = TokenGrid(1, rows.shape[1], self.heads, products=qkv.dtype, relative=False)
        wanted = torch.arange(rows.shape[1], device=rows.device)[-self.count :]
        attended = torch.stack([attend_rows(one, wanted, frame, None) for one in qkv])
        count_dense_attention(frame, self.dim, 1, operations, attended[..., 0].numel())
        out = rows[:, -self.count :] + self._project(self.projection, attended, operations)
        for layer in (self.mlp_1, self.mlp_2):
            operations.count_linear(out[..., 0].numel(), layer)
        operations.add += 2 * out.numel()
        return (out + self._feedforward(self.mlp_layer_norm(out)))[:, None]


class TokenTable(nn.Module):
    """Learned vectors of all tokens; the table of patches is resized to the picture.

    ``size``: height and width of the table. ``detections``: number of detection tokens.
    """

    def __init__(self, dim: int, size: tuple[int, int], detections: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1, 1, dim))
        self.patches = PositionEncoding(dim, size)
        self.last = nn.Parameter(torch.zeros(1, detections, dim))
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [B, 1, N, D] of patches [B, h, w, D], with the vectors added."""
        rows = (self.first, self.last)
        first, last = (row.expand(len(x), -1, -1) for row in rows)
        return torch.cat([first, self.patches(x).flatten(1, 2), last], 1)[:, None]

    def table(self, height: int, width: int) -> Tensor:
        """Return the vectors [1, 1, N, D] for pictures of this size, in tokens."""
        patches = self.patches.table(height, width).flatten(1, 2)
        return torch.cat([self.first, patches, self.last], 1)[:, None]


class YolosModel(ObjectModel):
    """An ``ObjectModel`` whose pictures are resized, not padded."""

    frontend_type: ClassVar[type] = Resized

    def place(self, frame: VideoFrame, size: Size) -> Size:
        """Return height and width of the frame in the network's input: all of it."""
        return size


class _Around:
    """Passes the first token, the ``last`` last ones, and the patches that a policy selects."""

    def __init__(self, policy: Policy, last: int) -> None:
        self._policy, self._last = policy, last

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        return self._with_ends(self._policy.choose(errors[1 : -self._last]), len(errors))

    def start(self, count: int) -> Tensor:
        """Return the tokens to compute where the stream starts."""
        return self._with_ends(start_tokens(self._policy, count - 1 - self._last), count)

    def _with_ends(self, patches: Tensor, count: int) -> Tensor:
        ends = torch.arange(count - self._last, count, device=patches.device)
        return torch.cat([patches.new_zeros(1), patches + 1, ends])


def _head(dim: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))
    )


_EMBEDDINGS = "vit.embeddings"
_TABLE = f"{_EMBEDDINGS}.position_embeddings"
_MIDDLE = "vit.encoder.mid_position_embeddings"
_FIRST, _LAST = f"{_EMBEDDINGS}.cls_token", f"{_EMBEDDINGS}.detection_tokens"
_PARTS = ("first", "patches.encoding", "last")  # of a TokenTable
_HEAD_DIM = 64
# Number of patches in the tables -> height and width: 800 x 1333 and 512 x 864 pixels.
TABLES = {4150: (50, 83), 1728: (32, 54)}


@importer(
    "yolos",
    summary="YOLOS of the Hugging Face hub",
    detect=has_tensors(_LAST, _TABLE),
    keys=("num_heads", "norm_eps"),
    order=19,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    # transformers 5 has a module for the tables between blocks.
    tensors = {k.replace("interpolation.mid_", "mid_"): v for k, v in foreign.tensors.items()}
    _, detections, dim = shape_of(tensors, _LAST, 3)
    _, rows, _ = shape_of(tensors, _TABLE, 3)
    patches = rows - 1 - detections
    if patches not in TABLES:
        raise ModelError(f"the checkpoint does not fit: {_TABLE} has {rows} rows")
    columns = shape_of(tensors, "class_labels_classifier.layers.2.weight", 2)[0]
    if columns != COCO_CATEGORIES[-1] + 2:
        raise ModelError(f"the checkpoint has {columns - 1} classes, which are not those of COCO")
    depth = 1 + max(
        (int(m[1]) for m in (re.match(r"vit\.encoder\.layer\.(\d+)\.", k) for k in tensors) if m),
        default=-1,
    )
    middle = _MIDDLE in tensors
    # The hub's config.json says 1e-12, which is not what the authors trained with.
    settings.suggest({"norm_eps": 1e-6})
    heads = settings.get("num_heads") or max(1, dim // _HEAD_DIM)
    if dim % heads:
        settings.reject(f"num_heads={heads} does not divide the token width {dim}")
    named = apply(
        _rules(dim, depth, columns, detections, patches, middle),
        _with_positions(tensors, dim, depth, rows, detections),
        ["vit.pooler.dense.weight", "vit.pooler.dense.bias"],
    )
    short, long = PICTURES.get(dim, (800, 1333))
    return ImportedNetwork(
        "yolos",
        {
            "categories": COCO_CATEGORIES,
            "dim": dim,
            "heads": heads,
            "depth": depth,
            "detections": detections,
            "position_size": list(TABLES[patches]),
            "middle": middle,
            "norm_eps": settings.get("norm_eps"),
        },
        named,
        len(COCO_CATEGORIES),
        paper=PAPER,
        task=OBJECT_DETECTION,
        frontend="resized",
        frontend_arguments={"short": short, "long": long, "patch": PATCH},
        rate_hz=30.0,
    )


def _with_positions(
    tensors: Mapping[str, Tensor], dim: int, depth: int, rows: int, detections: int
) -> dict[str, Tensor]:
    """Return the tensors with the tables split; those of class and detection tokens are added."""
    out = dict(tensors)
    tables: dict[str, tuple[int, ...]] = {_TABLE: (1, rows, dim)}
    if _MIDDLE in out:
        tables[_MIDDLE] = (depth - 1, 1, rows, dim)
    for name, shape in tables.items():
        if tuple(out[name].shape) != shape:
            message = f"{name} is {tuple(out[name].shape)}, not {shape}"
            raise ModelError(f"the checkpoint does not fit: {message}")
    table = out.pop(_TABLE)
    out[_TABLE] = table[:, 1 : rows - detections]
    for name, part in ((_FIRST, table[:, :1]), (_LAST, table[:, rows - detections :])):
        if name in out and out[name].shape == part.shape:
            out[name] = out[name] + part
    counts = [1, rows - 1 - detections, detections]
    for k, middle in enumerate(out.pop(_MIDDLE, torch.empty(0))):
        tables_of = zip(_PARTS, middle.split(counts, 1), strict=True)
        out |= {f"{_MIDDLE}.{k}.{part}": rows_of for part, rows_of in tables_of}
    return out


def _rules(
    dim: int, depth: int, columns: int, detections: int, patches: int, middle: bool
) -> list[TensorRule]:
    """Return the rules of all tensors, after ``_with_positions``."""
    conv = f"{_EMBEDDINGS}.patch_embeddings.projection"
    rules = [
        TensorRule("embedding.conv.weight", (f"{conv}.weight",), (dim, 3, PATCH, PATCH)),
        TensorRule("embedding.conv.bias", (f"{conv}.bias",), (dim,)),
    ]
    counts = (1, patches, detections)
    tables: dict[str, tuple[str, ...]] = {"start": (_FIRST, _TABLE, _LAST)}
    if middle:
        tables |= {
            f"middle.{k}": tuple(f"{_MIDDLE}.{k}.{part}" for part in _PARTS)
            for k in range(depth - 1)
        }
    for ours, names in tables.items():
        rules += [
            TensorRule(f"{ours}.{part}", (name,), (1, count, dim))
            for part, name, count in zip(_PARTS, names, counts, strict=True)
        ]
    for k in range(depth):
        block = f"vit.encoder.layer.{k}"
        attention = f"{block}.attention.attention"
        layers = EventfulBlockNames(
            (f"{attention}.query", f"{attention}.key", f"{attention}.value"),
            f"{block}.attention.output.dense",
            (f"{block}.layernorm_before", f"{block}.layernorm_after"),
            (f"{block}.intermediate.dense", f"{block}.output.dense"),
        )
        rules += eventful_block_rules(f"blocks.{k}", layers, dim)
    rules += norm("norm", "vit.layernorm", dim)
    heads = {"scores": ("class_labels_classifier", columns), "corners": ("bbox_predictor", 4)}
    for ours, (theirs, out) in heads.items():
        for k in range(3):
            width = out if k == 2 else dim
            rules += linear(f"{ours}.{2 * k}", f"{theirs}.layers.{k}", width, dim)
    return rules
