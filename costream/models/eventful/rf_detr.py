"""RF-DETR: 80 kinds of objects, token-gated: a windowed vision transformer and a light decoder.

Robinson et al., "RF-DETR: Neural Architecture Search for Real-Time Detection Transformers" (2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from costream.core.records import OBJECT_DETECTION
from costream.models.eventful.backbone import BackboneState, GatedBlocks, PositionEncoding
from costream.models.eventful.deformable import DeformableDecoder, FeatureProjector
from costream.models.eventful.detector import Size
from costream.models.eventful.rcnn import Detections
from costream.models.eventful.yolos import COCO_CATEGORIES, CategoryDetector
from costream.models.spec import register_model
from costream.nn.boxes import corners_of
from costream.nn.eventful.attention import TokenWindows, WindowAttention
from costream.nn.eventful.block import VARIANTS, EventfulBlock
from costream.nn.eventful.gates import Operations, Policy, start_tokens

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
    """Patches attend within windows, in some blocks to all; queries then look at their map.

    Each window has a class token. In video, gates pass patches as their policy says, and always the
    class tokens. Feature map and decoder are computed for every frame. The sides of pictures are
    multiples of ``patch`` x ``windows``.

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

    def __init__(
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
        """Return the encoded patches of frames alone, for patches [B, h, w, D]."""
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
        """Return the objects for encoded patches, in pixels of pictures of this ``size``.

        A query may find several classes; as many of the best are kept as there are queries.
        """
        logits, boxes = self.predict(view, operations)
        probabilities, found = logits.sigmoid()[..., self.categories], []
        for own, places in zip(probabilities, corners_of(boxes, *size), strict=True):
            scores, order = own.flatten().topk(len(places))
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
        """Return the patches [B, h, w, D] of tokens after a block, normalised."""
        _, height, width, _ = patches.shape
        rows = x.flatten(1, 2)[:, places_of(height, width, self.windows).to(x.device)]
        return torch.unflatten(self.norm(rows), 1, (height, width))


class WindowedView(NamedTuple):
    """Encoded patches of frames, and those that are hidden."""

    patches: Tensor  # of several blocks, [B, h, w, blocks D]
    hidden: Tensor | None = None  # bool [h w]


class RowsBlock(EventfulBlock):
    """A block whose tokens [B, windows, n, D] attend to those of their own window."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, None)
        self._attention = WindowAttention()

    def _frame(self, height: int, width: int) -> TokenWindows:
        products = self.qkv.weight.dtype
        return TokenWindows(height, width, self.heads, (1, width), products, relative=False)


class _InWindows:
    """Passes the class tokens of windows, and of the patches those that a policy chooses.

    ``places``: of each patch among the ``count`` tokens.
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
