"""ViTDet: object detection in images, or token-gated in video.

Checkpoints of detectron2 ((Cascade) Mask R-CNN) and of Eventful Transformers are the same network;
detectron2's tensors are renamed. They also differ in the interpolation of positions to other image
sizes, an argument of the network: detectron2 resizes the tables linearly, the Eventful
Transformers resize the matrices computed from them bicubically. Masks are not supported: their
tensors are dropped, which the card notes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from costream.core.errors import ModelError
from costream.core.records import OBJECT_DETECTION
from costream.models.eventful.backbone import BackboneState, ViTDetBackbone
from costream.models.eventful.box_heads import BoxHeads, Detections
from costream.models.eventful.feature_maps import View, ViewState, init_view_state, update_view
from costream.models.eventful.frame_detector import FrameDetector, PatchEmbedding
from costream.models.eventful.proposals import (
    SMALLEST,
    ProposalNetwork,
    Proposals,
    pyramid_anchors,
)
from costream.models.eventful.pyramid import SimplePyramid
from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.spec import register_model
from costream.nn.eventful.block import VARIANTS
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import Policy
from costream.nn.eventful.token_gate import TokenGate
from costream.nn.state import State
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    EVENTFUL_PAPER,
    ImportedNetwork,
    apply,
    rename,
    rename_rules,
    rows,
    shape_of,
)


@dataclass
class ViTDetState(State):
    """State of streams of frames of one size."""

    backbone: BackboneState
    view: ViewState | None  # None: feature maps are computed in full


@register_model(
    "vitdet",
    order=17,
    gated=True,
    model="costream.models.eventful.detector:ObjectModel",
    bench="costream.bench.eventful:object_steps_table",
    arguments={"classes": 30},
    task=OBJECT_DETECTION,
    rate_hz=30.0,
    frontend="pixels",
    frontend_arguments={"box": [1024, 1024]},
)
@register_model(
    "eventful-vitdet",
    summary="objects in video, token-gated transformer",
    listed=21,
    architecture="vitdet",
)
class ViTDet(FrameDetector):
    """A plain vision transformer, a feature pyramid, proposals and box heads.

    Li et al., "Exploring plain vision transformer backbones for object detection" (ECCV 2022),
    with the backbone of Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023). Images must be
    normalised, and their sides multiples of ``patch``.

    Args:
        classes: K.
        dim, heads, depth, global_blocks: of the backbone; the defaults are ViT-B.
        size: height and width, in tokens, that its relative positions are learned for.
        window, position_size, mlp_ratio, rule, variant, scene_cut, refresh: see
            ``ViTDetBackbone``.
        patch: side of a token in pixels. ``stem``: see ``PatchEmbedding``.
        channels: of the feature maps. ``width``, ``convolutions``, ``cascade``: see ``BoxHeads``.
        proposals: boxes per image for the heads, at most. ``candidates``: per feature map, from
            which these are selected.
        score: detections below it are dropped.
        shuffle, ghost: ``stages`` and ``width`` of a ``ShuffleEmbedding`` in place of a stem.
        first: see ``SimplePyramid``. ``anchor``: see ``pyramid_anchors``.
        token_gate: ``content``, ``changes`` and ``hidden`` of a ``TokenGate``, by which gates that
            pass fewer than all tokens choose them; none: by distances.
    """

    def __init__(  # noqa: PLR0913 - the sizes of the network
        self,
        classes: int,
        dim: int = 768,
        heads: int = 12,
        depth: int = 12,
        global_blocks: Sequence[int] = (2, 5, 8, 11),
        size: Sequence[int] = (64, 64),
        window: Sequence[int] = (14, 14),
        position_size: Sequence[int] = (14, 14),
        mlp_ratio: int = 4,
        rule: str = "bicubic",
        variant: str = "exact",
        scene_cut: float | None = 0.8,
        refresh: int | None = None,
        patch: int = 16,
        channels: int = 256,
        width: int = 1024,
        convolutions: int = 4,
        cascade: bool = False,
        proposals: int = 300,
        score: float = 0.05,
        stem: Sequence[int] = (),
        candidates: int = 1000,
        shuffle: Sequence[Sequence[int]] = (),
        ghost: int = 128,
        first: int = 0,
        anchor: float = SMALLEST,
        token_gate: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.patch, self.classes, self.anchor = patch, classes, anchor
        self.embedding = (
            ShuffleEmbedding(dim, patch, shuffle, ghost)
            if shuffle
            else PatchEmbedding(dim, patch, stem)
        )
        self.backbone = ViTDetBackbone(
            dim,
            heads,
            depth,
            (size[0], size[1]),
            (window[0], window[1]),
            global_blocks,
            (position_size[0], position_size[1]),
            mlp_ratio,
            rule,
            variant,
            scene_cut,
            refresh,
        )
        self.token_gate = TokenGate(dim, *token_gate) if token_gate else None
        self.gate_maps = VARIANTS[variant].gate_maps
        self.pyramid = SimplePyramid(dim, channels, first)
        # The pyramid's strides are for patches of 16 pixels; others are proportional.
        self.strides = [stride * patch // 16 for stride in self.pyramid.strides]
        self.proposal_generator = ProposalNetwork(channels, proposals, candidates)
        self.roi_heads = BoxHeads(channels, classes, width, convolutions, cascade, score)

    def forward(self, pictures: Tensor) -> list[Detections]:
        """Return the objects of each of the images [B, 3, H, W], processed independently."""
        view = self.view(self.backbone(self.embed(pictures)))
        return self.detect(view, (pictures.shape[2], pictures.shape[3]))

    def init_state(self, batch_size: int, height: int, width: int) -> ViTDetState:
        """Return the initial state of streams of frames of this size, in pixels."""
        self.check_size(height, width)
        size = (height // self.patch, width // self.patch)
        backbone, view = self.backbone.init_state(batch_size, *size), None
        if self.gate_maps:
            like = backbone.tensors()["blocks.0.qkv.reference"][0, 0]
            view = init_view_state(self.pyramid, self.proposal_generator, batch_size, *size, like)
        return ViTDetState(backbone, view)

    def view(self, tokens: Tensor, operations: Operations | None = None) -> View:
        """Return feature maps and anchor predictions for encoded tokens [B, h, w, D]."""
        maps = self.pyramid(tokens, operations)
        return View(maps, self.proposal_generator.predict(maps, operations))

    def view_step(
        self,
        tokens: Tensor,
        state: ViTDetState,
        policy: Policy | Sequence[Policy],
        operations: Operations,
    ) -> View:
        """Take the tokens [B, h, w, D] of the next frame of every stream, return its feature maps.

        ``policy``: which tokens are computed, see ``ViTDetBackbone``; the last gate, before the
        feature maps, has that of the last block.
        """
        encoded = self.backbone.forward_step(tokens, state.backbone, policy, operations)
        if state.view is None:
            return self.view(encoded, operations)
        fresh = [steps == 1 for steps in state.backbone.steps.tolist()]
        last = policy[-1] if isinstance(policy, Sequence) else policy
        parts = (self.pyramid, self.proposal_generator)
        return update_view(*parts, encoded, state.view, fresh, last, operations)

    def propose(self, view: View, size: tuple[int, int]) -> list[Proposals]:
        """Return the proposals for images of this ``size``, height and width in pixels."""
        anchors = pyramid_anchors(view.maps, self.strides, self.anchor)
        return self.proposal_generator.choose(view.predicted, anchors, size)

    def detect(
        self, view: View, size: tuple[int, int], operations: Operations | None = None
    ) -> list[Detections]:
        """Return the objects in images of this ``size``, height and width in pixels."""
        proposals = self.propose(view, size)
        found = self.roi_heads(view.maps, self.strides, proposals, size, operations)
        return cast(list[Detections], found)

    def count_macs(self, height: int, width: int, updated: int | None = None) -> int:
        """Return the cost of ``view_step`` for one stream of frames of this size, in tokens.

        ``updated``: tokens that pass every gate; None: the stream begins. With a number, the cost
        of the feature maps is an estimate, see ``SimplePyramid.count_macs``.
        """
        total = self.backbone.count_macs(height, width, updated)
        if not self.gate_maps:
            updated = None
        elif updated is not None:
            total += height * width * self.backbone.dim
        layout = self.pyramid.layout(height, width)
        total += self.pyramid.count_macs(height, width, updated)
        return total + self.proposal_generator.count_macs(self.pyramid, layout, updated)


PAPER = "https://arxiv.org/abs/2203.16527"
_DETECTRON2 = "backbone.net.blocks.0.attn.rel_pos_h"
_POSITIONS = "backbone.position_encoding.encoding"
# detectron2's layers of each feature map -> ours; it counts the norms as parts of convolutions
_PYRAMID = (
    {"0": 0, "1": 1, "3": 3, r"4\.norm": 5, "4": 4, r"5\.norm": 7, "5": 6},
    {"0": 0, r"1\.norm": 2, "1": 1, r"2\.norm": 4, "2": 3},
    {r"0\.norm": 1, "0": 0, r"1\.norm": 3, "1": 2},
    {r"1\.norm": 2, "1": 1, r"2\.norm": 4, "2": 3},
)
# detectron2's names -> the Eventful Transformers', which are ours
_RENAMED = (
    (r"backbone\.net\.patch_embed\.proj\.", "embedding.conv."),
    (r"backbone\.net\.pos_embed$", _POSITIONS),
    *(
        (rf"backbone\.net\.blocks\.(\d+)\.{theirs}", rf"backbone.blocks.\1.{ours}")
        for theirs, ours in (
            (r"norm1\.", "input_layer_norm."),
            (r"norm2\.", "mlp_layer_norm."),
            (r"attn\.qkv\.", "qkv."),
            (r"attn\.proj\.", "projection."),
            (r"attn\.rel_pos_h$", "relative_position.y_embedding"),
            (r"attn\.rel_pos_w$", "relative_position.x_embedding"),
            (r"mlp\.fc1\.", "mlp_1."),
            (r"mlp\.fc2\.", "mlp_2."),
        )
    ),
    *(
        (rf"backbone\.simfp_{stage + 2}\.{theirs}\.", f"pyramid.stages.{stage}.{ours}.")
        for stage, layers in enumerate(_PYRAMID)
        for theirs, ours in layers.items()
    ),
)
# Tensors of the mask head, and constants that are part of the network's code.
_UNUSED = re.compile(r"roi_heads\.mask_|pixel_(mean|std)$|.*anchor_generator\.")
_KNOWN = re.compile(r"(embedding|backbone|pyramid|proposal_generator|roi_heads)\.")


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of a ViTDet."""
    eventful = "backbone.blocks.0.relative_position.y_embedding" in tensors
    return eventful or _DETECTRON2 in tensors


@importer(
    "vitdet",
    summary="ViTDet of detectron2 or of the Eventful Transformers",
    detect=detect,
    keys=("num_heads",),
    order=11,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and contradictory settings."""
    of_detectron2 = _DETECTRON2 in foreign.tensors
    unused = sorted(name for name in foreign.tensors if _UNUSED.match(name))
    used = {name: value for name, value in foreign.tensors.items() if name not in unused}
    arguments = _arguments({_rename(name): value for name, value in used.items()}, settings)
    arguments["rule"] = "linear" if of_detectron2 else "bicubic"
    # from detectron2's configurations, and from that for video object detection
    arguments["proposals"] = 1000 if of_detectron2 or arguments["cascade"] else 300
    rules = rename_rules(
        used,
        lambda name: ours if _KNOWN.match(ours := _rename(name)) else None,
        lambda ours: _square if ours == _POSITIONS else rows,
    )
    return ImportedNetwork(
        "vitdet",
        arguments,
        apply(rules, foreign.tensors, unused),
        arguments["classes"],
        paper=PAPER if of_detectron2 else EVENTFUL_PAPER,
        task=OBJECT_DETECTION,
        frontend="pixels",
        frontend_arguments=_pixels(arguments),
        limits=f"Boxes only; not used: {', '.join(_summary(unused))}." if unused else "",
    )


def _arguments(tensors: Mapping[str, Tensor], settings: ImportSettings) -> dict[str, Any]:
    dim, _, patch, _ = shape_of(tensors, "embedding.conv.weight", 4)
    numbers = {int(m[1]) for name in tensors if (m := re.match(r"backbone\.blocks\.(\d+)\.", name))}
    depth = len(numbers)
    tables = [_sizes(tensors, number) for number in range(depth)]
    size = max(tables)
    head_dim = shape_of(tensors, "backbone.blocks.0.relative_position.y_embedding", 2)[1]
    if dim % head_dim:
        raise ModelError(f"the checkpoint does not fit: heads of {head_dim} in {dim}")
    cascade = "roi_heads.box_head.0.fc1.weight" in tensors
    stage = ".0" if cascade else ""
    convolution = re.compile(rf"roi_heads\.box_head{re.escape(stage)}\.conv\d+\.weight$")
    rows = shape_of(tensors, _POSITIONS, 3)[1]
    classes = shape_of(tensors, f"roi_heads.box_predictor{stage}.cls_score.weight", 2)[0] - 1
    return {
        "classes": classes,
        "dim": dim,
        "heads": settings.check("num_heads", dim // head_dim),
        "depth": depth,
        "global_blocks": [number for number, table in enumerate(tables) if table == size],
        "size": list(size),
        "window": list(min(tables)),
        "position_size": [math.isqrt(rows)] * 2,
        "mlp_ratio": shape_of(tensors, "backbone.blocks.0.mlp_1.weight", 2)[0] // dim,
        "patch": patch,
        "channels": shape_of(tensors, "pyramid.stages.2.0.weight", 4)[0],
        "width": shape_of(tensors, f"roi_heads.box_head{stage}.fc1.weight", 2)[0],
        "convolutions": sum(bool(convolution.match(name)) for name in tensors),
        "cascade": cascade,
    }


def _pixels(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the image frontend: the size that the positions were trained for."""
    (height, width), patch = arguments["size"], arguments["patch"]
    return {"box": [width * patch, height * patch], "patch": patch}


def _sizes(tensors: Mapping[str, Tensor], number: int) -> tuple[int, int]:
    """Return the number of tokens, down and across, that a block has positions for."""
    tables = (f"backbone.blocks.{number}.relative_position.{axis}_embedding" for axis in "yx")
    down, across = ((shape_of(tensors, name, 2)[0] + 1) // 2 for name in tables)
    return down, across


def _rename(name: str) -> str:
    return rename(name, _RENAMED) or name


def _square(parts: Sequence[Tensor]) -> Tensor:
    """Return positions [1, n n, D] without the position of a leading class token."""
    rows = parts[0].shape[1]
    return parts[0][:, rows - math.isqrt(rows) ** 2 :]


def _summary(names: Sequence[str]) -> list[str]:
    """Return the names of the modules of these tensors."""
    parts = (name.split(".") for name in names)
    return sorted({".".join(part[:2]) if len(part) > 2 else ".".join(part) for part in parts})
