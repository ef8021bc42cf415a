"""RF-DETR: 80 kinds of objects, token-gated: a windowed vision transformer and a light decoder.

Robinson et al., "RF-DETR: Neural Architecture Search for Real-Time Detection Transformers" (2025).

Checkpoints are those of the package ``rfdetr`` and of ``transformers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import OBJECT_DETECTION
from costream.models.eventful.backbone import BackboneState, GatedBlocks, PositionEncoding
from costream.models.eventful.block_rules import EventfulBlockNames, eventful_block_rules
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.deformable import DeformableDecoder, FeatureProjector
from costream.models.eventful.detector import Size
from costream.models.eventful.frame_detector import CategoryDetector
from costream.models.eventful.yolos import COCO_CATEGORIES
from costream.models.spec import register_model
from costream.nn.boxes import corners_of
from costream.nn.eventful.attention import TokenWindows, WindowAttention
from costream.nn.eventful.block import VARIANTS, EventfulBlock
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import Policy, start_tokens
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    TensorRule,
    apply,
    linear,
    norm,
    shape_of,
)

PAPER = "https://arxiv.org/abs/2511.09554"
LONG = 1152  # pixels; a longer side is made this long before the picture becomes a square
# Side of the picture and number of decoder layers.
SIZES = {"rf-detr-nano": (384, 2), "rf-detr-small": (512, 3), "rf-detr-medium": (576, 4)}


def _paper(name: str) -> dict[str, Any]:
    side, layers = SIZES[name]
    return {
        "arguments": {"categories": COCO_CATEGORIES, "layers": layers, "position_size": side // 16},
        "task": OBJECT_DETECTION,
        "rate_hz": 30.0,
        "frontend": "resized",
        "frontend_arguments": {"short": side, "long": LONG, "patch": 32, "square": True},
    }


@register_model(
    "rf-detr",
    order=29,
    gated=True,
    model="costream.models.eventful.yolos:YolosModel",
    **_paper("rf-detr-nano"),
)
@register_model(
    "rf-detr-nano",
    architecture="rf-detr",
    bench="costream.bench.published:published_steps_table",
    **_paper("rf-detr-nano"),
)
@register_model("rf-detr-small", architecture="rf-detr", **_paper("rf-detr-small"))
@register_model("rf-detr-medium", architecture="rf-detr", **_paper("rf-detr-medium"))
class RfDetr(CategoryDetector):
    """Patches attend within windows, in some blocks to all; queries then attend to their map.

    Each window has a class token. In video, gates pass the patches that their policy selects, and
    always the class tokens. Feature map and decoder are computed for every frame. The sides of
    pictures are multiples of ``patch`` x ``windows``.

    Args:
        categories: output columns of the classes, ascending.
        dim, heads, depth: D, H and the number of blocks.
        patch: side of a token in pixels. ``windows``: along each side of the picture.
        outputs: numbers of the blocks, from 1, whose tokens make the feature map. The block after
            each of them attends among all tokens.
        position_size: height and width, in tokens, of the table of positions.
        channels, layers, queries, self_heads, cross_heads, points, hidden: see
            ``DeformableDecoder``.
        variant: of attention among all tokens, a name of ``VARIANTS``; no weight depends on it.
        score: detections below are dropped.
        scene_cut, refresh: see ``ViTDetBackbone``.
    """

    def __init__(  # noqa: PLR0913 - the sizes of the network
        self,
        categories: Sequence[int],
        dim: int = 384,
        heads: int = 6,
        depth: int = 12,
        patch: int = 16,
        windows: int = 2,
        outputs: Sequence[int] = (3, 6, 9, 12),
        position_size: int = 24,
        channels: int = 256,
        layers: int = 2,
        queries: int = 300,
        self_heads: int = 8,
        cross_heads: int = 16,
        points: int = 2,
        hidden: int = 2048,
        variant: str = "rows",
        score: float = 0.05,
        scene_cut: float | None = 0.8,
        refresh: int | None = None,
    ) -> None:
        super().__init__(categories, dim, patch, score, scene_cut, refresh)
        if not outputs or not set(outputs) <= set(range(1, depth + 1)):
            raise ValueError(f"outputs {outputs} are not among the blocks 1 to {depth}")
        self.windows, self.outputs = windows, tuple(outputs)
        self.position = PositionEncoding(dim, (position_size, position_size), antialias=True)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 1, dim))
        for parameter in (self.position.encoding, self.class_token):
            nn.init.trunc_normal_(parameter, std=0.02)
        self.blocks = nn.ModuleList(
            EventfulBlock(dim, heads, None, variant=VARIANTS[variant])
            if number in outputs
            else RowsBlock(dim, heads)
            for number in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.projector = FeatureProjector(len(outputs) * dim, channels)
        sizes = (layers, queries, self_heads, cross_heads, points, hidden)
        self.decoder = DeformableDecoder(channels, max(categories) + 1, *sizes)

    def encode(self, patches: Tensor) -> WindowedView:
        """Return the encoded patches of independent frames, for patches [B, h, w, D]."""
        x, outputs = self.arrange(patches), []
        for number, block in enumerate(self.blocks, 1):
            x = block(x)
            if number in self.outputs:
                outputs.append(self._output(x, patches))
        return WindowedView(torch.cat(outputs, 3))

    def arrange(self, patches: Tensor) -> Tensor:
        """Return the tokens [B, windows², 1 + n, D] of patches [B, h, w, D], a window in each row.

        Positions are added; the class token comes first.
        """
        windows, height, width, _ = self._layout(patches)
        rows = self.position(patches).flatten(1, 2)[:, windows_of(height, width, self.windows)]
        first = self.class_token.expand(len(rows), windows, -1, -1)
        return torch.cat([first, rows], 2)

    def init_state(self, batch_size: int, height: int, width: int) -> BackboneState:
        """Return the initial state of streams of frames of this size, in pixels."""
        self.check_size(height, width)
        windows = self.windows**2
        tokens = height // self.patch * (width // self.patch) // windows + 1
        return GatedBlocks.init_state(self, batch_size, windows, tokens)

    @torch.no_grad()
    def view_step(
        self, tokens: Tensor, state: BackboneState, policy: Policy, operations: Operations
    ) -> WindowedView:
        """Take the patches [B, h, w, D] of the next frame, return them encoded.

        ``policy``: which patches are computed at each gate.
        """
        _, height, width, count = self._layout(tokens)
        places = places_of(height, width, self.windows).to(tokens.device)
        chooses = _InWindows(policy, places, count)
        operations.add += tokens.numel()
        x, outputs = self.arrange(tokens), []
        fresh = self.begin(x, state, chooses)
        for number, (block, kept) in enumerate(zip(self._blocks, state.blocks, strict=True), 1):
            x = block.forward_step(x, cast(Any, kept), fresh, chooses, operations)
            if number in self.outputs:
                outputs.append(self._output(x, tokens))
        seen = start_tokens(policy, height * width)
        hidden = torch.ones(height * width, dtype=torch.bool).index_fill_(0, seen.cpu(), False)
        return WindowedView(torch.cat(outputs, 3), hidden)

    def predict(
        self, view: WindowedView, operations: Operations | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return logits [B, Q, columns] and boxes [B, Q, 4], as ``DeformableDecoder`` does."""
        maps = self.projector(view.patches.permute(0, 3, 1, 2), operations)
        return cast(tuple[Tensor, Tensor], self.decoder(maps, view.hidden, operations))

    def detect(
        self, view: WindowedView, size: Size, operations: Operations | None = None
    ) -> list[Detections]:
        """Return the objects for encoded patches, in pixels of pictures of this ``size``."""
        return self.objects(*self.predict(view, operations), size)

    def objects(self, logits: Tensor, boxes: Tensor, size: Size) -> list[Detections]:
        """Return the objects of ``predict``, in pixels of pictures of this ``size``.

        A query may find several classes; the best detections are kept, as many as queries.
        """
        probabilities, found = logits.sigmoid()[..., self.categories], []
        for rows, places in zip(probabilities, corners_of(boxes, *size), strict=True):
            scores, order = rows.flatten().topk(len(places))
            order = order[scores >= self.score]
            queries, labels = order // self.classes, order % self.classes
            found.append(Detections(places[queries], scores[: len(order)], labels))
        return found

    def check_size(self, height: int, width: int) -> None:
        """Raise ValueError unless these are multiples of the windows' patches."""
        side = self.patch * self.windows
        if height % side or width % side:
            raise ValueError(f"{width}x{height} pixels are not multiples of {side}")

    def count_macs(self, height: int, width: int, updated: int | None = None) -> int:
        """Return the cost of ``view_step`` for one stream of frames of this size, in tokens.

        ``updated``: patches that pass every gate; None: the stream begins.
        """
        windows = self.windows**2
        rows = height * width // windows + 1
        passed = None if updated is None else min(updated, height * width) + windows
        blocks = (block.count_macs(windows, rows, passed) for block in self._blocks)
        return height * width * self.dim + sum(blocks)

    def _layout(self, patches: Tensor) -> tuple[int, int, int, int]:
        """Return the number of windows, height and width in patches, and the number of tokens."""
        _, height, width, _ = patches.shape
        windows = self.windows**2
        return windows, height, width, height * width + windows

    def _output(self, x: Tensor, patches: Tensor) -> Tensor:
        """Return the normalised patches [B, h, w, D] among the tokens after a block."""
        _, height, width, _ = patches.shape
        rows = x.flatten(1, 2)[:, places_of(height, width, self.windows).to(x.device)]
        return torch.unflatten(self.norm(rows), 1, (height, width))


class WindowedView(NamedTuple):
    """Encoded patches of frames, and those that are hidden."""

    patches: Tensor  # of several blocks, [B, h, w, blocks D]
    hidden: Tensor | None = None  # bool [h w]


class RowsBlock(EventfulBlock):
    """A block whose tokens [B, windows, n, D] attend within their window."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, None)
        self._attention = WindowAttention()

    def _frame(self, height: int, width: int) -> TokenWindows:
        products = self.qkv.weight.dtype
        return TokenWindows(height, width, self.heads, (1, width), products, relative=False)


class _InWindows:
    """Passes the class tokens of windows and the patches that a policy selects.

    ``places``: the place of each patch among the ``count`` tokens.
    """

    def __init__(self, policy: Policy, places: Tensor, count: int) -> None:
        self._policy, self._places = policy, places
        others = torch.ones(count, dtype=torch.bool, device=places.device)
        self._others = others.index_fill_(0, places, False).nonzero().flatten()

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        return self._with_others(self._policy.choose(errors[self._places]))

    def start(self, count: int) -> Tensor:
        """Return the tokens to compute where the stream starts."""
        return self._with_others(start_tokens(self._policy, len(self._places)))

    def _with_others(self, patches: Tensor) -> Tensor:
        chosen = self._places[patches.to(self._places.device)]
        return torch.cat([self._others, chosen]).sort().values


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def windows_of(height: int, width: int, windows: int) -> Tensor:
    """Return the patches of each window, int64 [windows², n], both row by row."""
    patches = torch.arange(height * width)
    grid = patches.view(windows, height // windows, windows, width // windows)
    return grid.transpose(1, 2).reshape(windows**2, -1)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def places_of(height: int, width: int, windows: int) -> Tensor:
    """Return the place of each patch among the tokens, int64 [h w], after its class token."""
    patches = windows_of(height, width, windows)
    tokens = torch.arange(patches.numel()).view_as(patches)
    places = torch.empty(patches.numel(), dtype=torch.int64)
    places[patches.flatten()] = (tokens + torch.arange(1, windows**2 + 1)[:, None]).flatten()
    return places


_BACKBONE = "backbone.0.encoder.encoder"
_EMBEDDINGS = f"{_BACKBONE}.embeddings"
_PATCHES = f"{_EMBEDDINGS}.patch_embeddings.projection"
_TABLE, _CLASS = f"{_EMBEDDINGS}.position_embeddings", f"{_EMBEDDINGS}.cls_token"
_PROJECTOR = "backbone.0.projector.stages.0"
_DECODER = "transformer.decoder"
_PATCH, _WINDOWS, _POINTS, _HEAD_DIM, _SELF_DIM = 16, 2, 2, 64, 32
_QKV = {"q": "query", "k": "key", "v": "value"}
# Names of transformers -> those of rfdetr, one after the other.
_RENAMED = (
    (r"^model\.", ""),
    (r"^backbone\.backbone\.", f"{_BACKBONE}."),
    (r"^backbone\.projector\.layer_norm", f"{_PROJECTOR}.1"),
    (r"^backbone\.projector\.projector_layer\.(.*)\.norm\.", rf"{_PROJECTOR}.0.\1.bn."),
    (r"^backbone\.projector\.projector_layer\.", f"{_PROJECTOR}.0."),
    (r"(stages\.0\.0\.)bottlenecks", r"\1m"),
    (r"(stages\.0\.0\..*)conv([12])\.", r"\1cv\2."),
    (r"attention\.([qkv])_proj", lambda m: f"attention.attention.{_QKV[m[1]]}"),
    (r"attention\.o_proj", "attention.output.dense"),
    (r"^decoder\.", f"{_DECODER}."),
    (r"(decoder\.layers\.\d+)\.self_attn_layer_norm", r"\1.norm1"),
    (r"(decoder\.layers\.\d+)\.cross_attn_layer_norm", r"\1.norm2"),
    (r"(decoder\.layers\.\d+)\.layer_norm", r"\1.norm3"),
    (r"(decoder\.layers\.\d+)\.mlp\.fc", r"\1.linear"),
    (r"self_attn\.o_proj", "self_attn.out_proj"),
    (r"decoder\.layernorm", "decoder.norm"),
    (r"^(enc_out)", r"transformer.\1"),
    (r"^reference_point_embed", "refpoint_embed"),
)
_is_of_query = re.compile(r"(model\.)?query_feat\.weight$").match
_is_of_place = re.compile(r".*decoder\.layers\.0\.cross_attn\.sampling_offsets\.weight$").match


@importer(
    "rf-detr",
    summary="RF-DETR (nano, small, medium) of Roboflow",
    keys=(),
    detect=lambda tensors: any(map(_is_of_query, tensors)) and any(map(_is_of_place, tensors)),
    order=20,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    tensors = _renamed(foreign.tensors)
    dim, _, patch, _ = shape_of(tensors, f"{_PATCHES}.weight", 4)
    if patch != _PATCH:
        raise ModelError(
            f"the checkpoint has patches of {patch} pixels, not {_PATCH}",
            hint="RF-DETR nano, small and medium can be imported",
        )
    _, rows, _ = shape_of(tensors, _TABLE, 3)
    side = round((rows - 1) ** 0.5)
    columns, channels = shape_of(tensors, "class_embed.weight", 2)
    if columns != COCO_CATEGORIES[-1] + 1:
        raise ModelError(f"the checkpoint has {columns - 1} classes, which are not those of COCO")
    _, width, *_ = shape_of(tensors, f"{_PROJECTOR}.0.cv1.conv.weight", 4)
    depth = _count(tensors, rf"{re.escape(_BACKBONE)}\.encoder\.layer\.(\d+)\.")
    parts = width // dim
    if width % dim or not depth or depth % parts or side**2 != rows - 1:
        raise ModelError("the checkpoint does not fit: it has another backbone")
    layers = _count(tensors, rf"{re.escape(_DECODER)}\.layers\.(\d+)\.")
    groups = _count(tensors, r"transformer\.enc_output\.(\d+)\.")
    queries = shape_of(tensors, "query_feat.weight", 2)[0] // max(1, groups)
    first = f"{_DECODER}.layers.0"
    weights = shape_of(tensors, f"{first}.cross_attn.attention_weights.weight", 2)[0]
    hidden = shape_of(tensors, f"{first}.linear1.weight", 2)[0]
    pairs = _count(tensors, rf"{re.escape(_PROJECTOR)}\.0\.m\.(\d+)\.")
    named = apply(
        [
            *_backbone(dim, depth, side),
            *_projector(width, channels, pairs),
            TensorRule("decoder.queries", ("query_feat.weight",), (queries, channels)),
            TensorRule("decoder.offsets", ("refpoint_embed.weight",), (queries, 4)),
            *_decoder(channels, columns, layers, weights, hidden),
        ],
        _prepared(tensors, dim, depth, channels, layers, queries),
        [
            f"{_EMBEDDINGS}.mask_token",
            "_kp_active_mask",
            *(k for k in tensors if re.match(r"transformer\.enc_out\w*\.(?!0\.)\d+\.", k)),
        ],
    )
    return ImportedNetwork(
        "rf-detr",
        {
            "categories": COCO_CATEGORIES,
            "dim": dim,
            "heads": max(1, dim // _HEAD_DIM),
            "depth": depth,
            "patch": _PATCH,
            "windows": _WINDOWS,
            "outputs": [depth // parts * (k + 1) for k in range(parts)],
            "position_size": side,
            "channels": channels,
            "layers": layers,
            "queries": queries,
            "self_heads": max(1, channels // _SELF_DIM),
            "cross_heads": weights // _POINTS,
            "points": _POINTS,
            "hidden": hidden,
        },
        named,
        len(COCO_CATEGORIES),
        paper=PAPER,
        task=OBJECT_DETECTION,
        frontend="resized",
        frontend_arguments={
            "short": side * _PATCH,
            "long": max(LONG, side * _PATCH),
            "patch": _PATCH * _WINDOWS,
            "square": True,
        },
        rate_hz=30.0,
    )


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names of the package ``rfdetr``."""
    out = {}
    for name, tensor in tensors.items():
        for pattern, theirs in _RENAMED:
            name = re.sub(pattern, theirs, name)
        out[name] = tensor
    for name in [k for k in out if ".self_attn.q_proj." in k]:
        three = [out.pop(name.replace("q_proj", f"{part}_proj"), None) for part in "qkv"]
        if all(isinstance(part, Tensor) for part in three):
            out[name.replace("q_proj.", "in_proj_")] = torch.cat(three)  # type: ignore[arg-type]
    return out


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """Return one more than the largest number in names that begin like this."""
    found = (re.match(pattern, name) for name in tensors)
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def _prepared(
    tensors: Mapping[str, Tensor], dim: int, depth: int, channels: int, layers: int, queries: int
) -> dict[str, Tensor]:
    """Return the tensors with scales multiplied into weights, and without the groups of training.

    Tensors that are missing or misshapen are not changed; ``apply`` reports them.
    """
    out = dict(tensors)
    for k in range(depth):
        block = f"{_BACKBONE}.encoder.layer.{k}"
        _scale(out, f"{block}.layer_scale1.lambda1", f"{block}.attention.output.dense", dim)
        _scale(out, f"{block}.layer_scale2.lambda1", f"{block}.mlp.fc2", dim)
    if _TABLE in out and _CLASS in out and out[_CLASS].shape == (1, 1, dim):
        out[_CLASS] = (out[_CLASS] + out[_TABLE][:, :1])[None]
        out[_TABLE] = out[_TABLE][:, 1:]
    for name in ("query_feat.weight", "refpoint_embed.weight"):
        if name in out:
            out[name] = out[name][:queries]
    for k in range(layers):
        attention = f"{_DECODER}.layers.{k}.self_attn"
        for end, shape in (("weight", (3 * channels, channels)), ("bias", (3 * channels,))):
            rows = out.get(f"{attention}.in_proj_{end}")
            if rows is not None and rows.shape == shape:
                del out[f"{attention}.in_proj_{end}"]
                out[f"{attention}.query_key.{end}"] = rows[: 2 * channels]
                out[f"{attention}.value.{end}"] = rows[2 * channels :]
    return out


def _scale(tensors: dict[str, Tensor], factor: str, layer: str, dim: int) -> None:
    """Multiply a layer's output by a factor [D] of the checkpoint, if both have this width."""
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    scales = tensors.get(factor)
    if scales is None or scales.shape != (dim,):
        return
    if all(name in tensors and len(tensors[name]) == dim for name in (weight, bias)):
        del tensors[factor]
        tensors[weight] = tensors[weight] * scales[:, None]
        tensors[bias] = tensors[bias] * scales


def _backbone(dim: int, depth: int, side: int) -> list[TensorRule]:
    rules = [
        TensorRule("embedding.conv.weight", (f"{_PATCHES}.weight",), (dim, 3, _PATCH, _PATCH)),
        TensorRule("embedding.conv.bias", (f"{_PATCHES}.bias",), (dim,)),
        TensorRule("class_token", (_CLASS,), (1, 1, 1, dim)),
        TensorRule("position.encoding", (_TABLE,), (1, side**2, dim)),
        *norm("norm", f"{_BACKBONE}.layernorm", dim),
    ]
    for k in range(depth):
        block = f"{_BACKBONE}.encoder.layer.{k}"
        attention = f"{block}.attention.attention"
        names = EventfulBlockNames(
            (f"{attention}.query", f"{attention}.key", f"{attention}.value"),
            f"{block}.attention.output.dense",
            (f"{block}.norm1", f"{block}.norm2"),
            (f"{block}.mlp.fc1", f"{block}.mlp.fc2"),
        )
        rules += eventful_block_rules(f"blocks.{k}", names, dim)
    return rules


def _projector(width: int, channels: int, pairs: int) -> list[TensorRule]:
    half, theirs = channels // 2, f"{_PROJECTOR}.0"
    convolutions: list[tuple[str, str, Sequence[int]]] = [
        ("reduce", "cv1", (2 * half, width, 1, 1)),
        ("merge", "cv2", (channels, (2 + pairs) * half, 1, 1)),
    ]
    for k in range(pairs):
        both = [(f"pairs.{k}.{n}", f"m.{k}.cv{n + 1}", (half, half, 3, 3)) for n in (0, 1)]
        convolutions += both
    rules = norm("projector.norm", f"{_PROJECTOR}.1", channels)
    for ours, layer, shape in convolutions:
        name = f"projector.{ours}"
        rules.append(TensorRule(f"{name}.weight", (f"{theirs}.{layer}.conv.weight",), tuple(shape)))
        rules += norm(f"{name}.norm", f"{theirs}.{layer}.bn", shape[0])
    return rules


def _decoder(
    channels: int, columns: int, layers: int, weights: int, hidden: int
) -> list[TensorRule]:
    rules = [
        *linear("decoder.token", "transformer.enc_output.0", channels, channels),
        *norm("decoder.token_norm", "transformer.enc_output_norm.0", channels),
        *linear("decoder.token_scores", "transformer.enc_out_class_embed.0", columns, channels),
        *_mlp("decoder.token_corners", "transformer.enc_out_bbox_embed.0", channels, 4, 3),
        *_mlp("decoder.position", f"{_DECODER}.ref_point_head", channels, channels, 2, 2),
        *norm("decoder.norm", f"{_DECODER}.norm", channels),
        *linear("decoder.scores", "class_embed", columns, channels),
        *_mlp("decoder.corners", "bbox_embed", channels, 4, 3),
    ]
    for k in range(layers):
        ours, theirs = f"decoder.layers.{k}", f"{_DECODER}.layers.{k}"
        attention, cross = f"{theirs}.self_attn", f"{theirs}.cross_attn"
        rules += linear(f"{ours}.query_key", f"{attention}.query_key", 2 * channels, channels)
        rules += linear(f"{ours}.value", f"{attention}.value", channels, channels)
        rules += linear(f"{ours}.out", f"{attention}.out_proj", channels, channels)
        rules += linear(f"{ours}.places", f"{cross}.sampling_offsets", 2 * weights, channels)
        rules += linear(f"{ours}.weights", f"{cross}.attention_weights", weights, channels)
        rules += linear(f"{ours}.map_value", f"{cross}.value_proj", channels, channels)
        rules += linear(f"{ours}.map_out", f"{cross}.output_proj", channels, channels)
        rules += linear(f"{ours}.up", f"{theirs}.linear1", hidden, channels)
        rules += linear(f"{ours}.down", f"{theirs}.linear2", channels, hidden)
        for n in range(3):
            rules += norm(f"{ours}.norms.{n}", f"{theirs}.norm{n + 1}", channels)
    return rules


def _mlp(
    ours: str, theirs: str, width: int, out: int, layers: int, first: int = 1
) -> list[TensorRule]:
    """Return the rules of linear layers; the input is ``first`` times as wide as the others."""
    rules = []
    for k in range(layers):
        rows = out if k == layers - 1 else width
        columns = first * width if k == 0 else width
        rules += linear(f"{ours}.{2 * k}", f"{theirs}.layers.{k}", rows, columns)
    return rules
