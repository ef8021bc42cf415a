"""The backbone of ViTDet: a plain vision transformer with mostly windowed attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.boxes import ChannelNorm, MapLayout, convolve, layout_of, places_affected
from costream.nn.cuda_graph import GraphedStep
from costream.nn.eventful.block import VARIANTS, EventfulBlock, EventfulBlockState
from costream.nn.eventful.gates import (
    Operations,
    Policy,
    StartPolicy,
    TopShare,
    TopTokens,
    distances,
)
from costream.nn.state import State, zeros
from costream.nn.timing import check_shape

_GRAPHS = 4  # kept at most, each with memory of its own
_MOVED = 0.5  # relative distance from its reference above which a token has changed


@dataclass
class BackboneState(State):
    """State of a backbone for frames of one size."""

    steps: Tensor  # int64 [B], frames since the last one computed in full
    blocks: tuple[State, ...]

    def __post_init__(self) -> None:
        self.graphs: dict[Policy, GraphedStep] = {}  # of steps on a GPU
        self.newest: Policy | None = None  # that of the last step


@dataclass
class GatedBlocksState(State):
    """State of the blocks alone."""

    blocks: tuple[State, ...]


class _GatedSteps:
    """Steps of blocks with a number of tokens that does not change, for ``GraphedStep``."""

    def __init__(self, blocks: Sequence[EventfulBlock], policy: Policy) -> None:
        self._blocks, self._policy = blocks, policy

    def graph_key(self, x: Tensor, state: GatedBlocksState) -> bool:
        return True

    def warmup(self, state: GatedBlocksState) -> tuple[bool, ...]:
        return ()

    def forward_step(self, x: Tensor, state: GatedBlocksState) -> tuple[Tensor, Operations]:
        operations, fresh = Operations(), [False] * len(x)
        for block, own in zip(self._blocks, state.blocks, strict=True):
            kept = cast(EventfulBlockState, own)
            x = block.forward_step(x, kept, fresh, self._policy, operations)
        return x, operations


class _Resized(NamedTuple):
    """A resized table and its source, which is referenced so that ``key`` stays unique."""

    key: tuple[int, ...]
    source: Tensor
    table: Tensor


class PositionEncoding(nn.Module):
    """Adds a learned table of positions, resized bicubically to the frame.

    ``size``: height and width of the table. ``antialias``: as images are, when it gets smaller.
    """

    def __init__(self, dim: int, size: tuple[int, int], antialias: bool = False) -> None:
        super().__init__()
        self.size, self.antialias = size, antialias
        self.encoding = nn.Parameter(torch.zeros(1, size[0] * size[1], dim))
        self._held: _Resized | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens [B, h, w, D] with positions added."""
        return x + self.table(x.shape[1], x.shape[2])

    def table(self, height: int, width: int) -> Tensor:
        """Return positions [1, h, w, D] for frames of this size."""
        source, table = self.encoding, self.encoding.view(1, *self.size, -1)
        if (height, width) == self.size:
            return table
        # A tensor created in inference mode has no version counter to detect changes.
        hold = not torch.is_grad_enabled() and not source.is_inference()
        key = (height, width, source.data_ptr(), source._version) if hold else None
        if self._held is not None and self._held.key == key:
            return self._held.table
        images = table.permute(0, 3, 1, 2)
        table = F.interpolate(
            images, (height, width), mode="bicubic", antialias=self.antialias
        ).permute(0, 2, 3, 1)
        if key is not None:
            self._held = _Resized(key, source.detach(), table)
        return table


class GatedBlocks(nn.Module):
    """Base of networks of ``EventfulBlock``s: when their streams are computed in full.

    ``scene_cut``, ``refresh``: see ``ViTDetBackbone``.
    """

    blocks: nn.ModuleList
    scene_cut: float | None
    refresh: int | None

    def init_state(self, batch_size: int, height: int, width: int) -> BackboneState:
        """Return the initial state of streams of frames of this size, in tokens."""
        blocks = tuple(b.init_state(batch_size, height, width) for b in self._blocks)
        return BackboneState(zeros(batch_size), blocks)

    @property
    def _blocks(self) -> list[EventfulBlock]:
        return [cast(EventfulBlock, block) for block in self.blocks]

    def begin(self, x: Tensor, state: BackboneState, policy: Policy) -> list[bool]:
        """Count a frame [B, h, w, D]; return of each stream whether it is computed in full.

        ``policy``: one that leaves tokens out also says which ones tell that the scene has changed.
        """
        steps: list[int] = state.steps.tolist()
        fresh = [not t or t == self.refresh for t in steps]
        if self.scene_cut is not None and not all(fresh):
            moved = self._moved(x, state)
            if isinstance(policy, StartPolicy):
                moved = moved[:, policy.start(moved.shape[1]).to(moved.device)]
            shares = moved.float().mean(1).tolist()
            fresh = [begins or m > self.scene_cut for begins, m in zip(fresh, shares, strict=True)]
        state.steps.add_(1)
        state.steps[torch.tensor(fresh)] = 1
        return fresh

    def _moved(self, x: Tensor, state: BackboneState) -> Tensor:
        """Return which tokens have changed from their reference, bool [B, N]."""
        first = cast(EventfulBlockState, state.blocks[0])
        normed = self._blocks[0].input_layer_norm(x).flatten(1, 2)
        lengths = torch.linalg.vector_norm(normed, dim=-1)
        moved: Tensor = distances(normed, first.qkv.reference) > _MOVED * lengths
        return moved


class ViTDetBackbone(GatedBlocks):
    """Transformer blocks over the tokens of frames; a step computes those that have changed.

    Li et al., "Exploring plain vision transformer backbones for object detection" (ECCV 2022);
    Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023).

    Args:
        dim, heads, depth: D, H and the number of blocks. ``mlp_ratio``: of the feed-forward.
        size: height and width of typical frames, in tokens; others are possible. None: positions
            are only added to the tokens, not to global attention.
        window: height and width of windows, in tokens.
        global_blocks: which blocks attend among all tokens.
        position_size: height and width of the table of absolute positions.
        rule: resizing of relative positions to other sizes, see ``RelativePosition``.
        variant: a name of ``VARIANTS``; no weight depends on it.
        scene_cut: a frame is computed in full if more than this share of its tokens has
            changed by more than half; None: never.
        refresh: and after this number of frames; None: never.
    """

    def __init__(
        self,
        dim: int = 768,
        heads: int = 12,
        depth: int = 12,
        size: tuple[int, int] | None = (64, 64),
        window: tuple[int, int] = (14, 14),
        global_blocks: Sequence[int] = (2, 5, 8, 11),
        position_size: tuple[int, int] = (14, 14),
        mlp_ratio: int = 4,
        rule: str = "bicubic",
        variant: str = "exact",
        scene_cut: float | None = None,
        refresh: int | None = None,
    ) -> None:
        super().__init__()
        if variant not in VARIANTS:
            raise ValueError(f"variant {variant!r} is not one of {tuple(VARIANTS)}")
        self.dim, self.scene_cut, self.refresh = dim, scene_cut, refresh
        self.position_encoding = PositionEncoding(dim, position_size)
        self.blocks = nn.ModuleList(
            EventfulBlock(
                dim,
                heads,
                size,
                None if number in global_blocks else window,
                mlp_ratio,
                rule,
                VARIANTS[variant],
            )
            for number in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [B, h, w, D] of independent frames, computed in full."""
        x = self.position_encoding(x)
        for block in self.blocks:
            x = block(x)
        return x

    @torch.no_grad()
    def forward_step(
        self,
        x: Tensor,
        state: BackboneState,
        policy: Policy | Sequence[Policy],
        operations: Operations | None = None,
    ) -> Tensor:
        """Take the tokens [B, h, w, D] of the next frame of every stream, return them encoded.

        There is no gradient; train with ``forward``, which is the same for all tokens.
        ``policy``: which tokens are computed, one for all blocks or one for each; it may change at
        every step. ``operations``: counts the operations. Raises ValueError if the number of
        tokens is not that of the state.
        """
        first = cast(EventfulBlockState, state.blocks[0])
        check_shape((len(x), x.shape[1] * x.shape[2]), first.qkv.reference.shape[:2])
        operations = Operations() if operations is None else operations
        policies = policy if isinstance(policy, Sequence) else [policy] * len(self.blocks)
        operations.add += x.numel()
        x = self.position_encoding(x)
        fresh = self.begin(x, state, policies[0])
        if (graph := self._graph(x, state, policy, any(fresh))) is not None:
            out, counted = graph(x)
            operations.add_all(counted)
            return cast(Tensor, out)
        for block, block_state, chooses in zip(self._blocks, state.blocks, policies, strict=True):
            x = block.forward_step(
                x, cast(EventfulBlockState, block_state), fresh, chooses, operations
            )
        return x

    def _graph(
        self, x: Tensor, state: BackboneState, policy: Any, fresh: bool
    ) -> GraphedStep | None:
        """Return the steps on a GPU for a policy that stays the same, or None."""
        stays, state.newest = policy == state.newest, policy
        if not x.is_cuda or fresh or not isinstance(policy, TopTokens | TopShare):
            return None
        if policy not in state.graphs and stays:
            while len(state.graphs) >= _GRAPHS:
                state.graphs.pop(next(iter(state.graphs)))
            steps = _GatedSteps(self._blocks, policy)
            state.graphs[policy] = GraphedStep(steps, GatedBlocksState(state.blocks))
        return state.graphs.get(policy)

    def count_macs(
        self, height: int, width: int, updated: int | None = None, columns: int | None = None
    ) -> int:
        """Return the cost of a step of one stream, see ``EventfulBlock.count_macs``."""
        blocks = (b.count_macs(height, width, updated, columns) for b in self._blocks)
        return height * width * self.dim + sum(blocks)


# Simple feature pyramid: several scales from the output of a plain vision transformer.


_TOKENS_PER_SQUARE = 4  # selected tokens per square, assumed in estimates


class SimplePyramid(nn.Module):
    """Feature maps at strides 4, 8, 16, 32 and 64 from tokens at stride 16.

    Li et al., "Exploring plain vision transformer backbones for object detection" (ECCV 2022).

    Args:
        dim: D of the tokens, a multiple of 4. ``channels``: of the feature maps.
        first: number of the largest maps that are left out, at most 2.
    """

    def __init__(self, dim: int, channels: int, first: int = 0) -> None:
        super().__init__()
        self.channels, self.first = channels, first
        self.strides = (4, 8, 16, 32, 64)[first:]
        ways: list[tuple[list[nn.Module], int]] = [
            (
                [
                    nn.ConvTranspose2d(dim, dim // 2, 2, 2),
                    ChannelNorm(dim // 2),
                    nn.GELU(),
                    nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2),
                ],
                dim // 4,
            ),
            ([nn.ConvTranspose2d(dim, dim // 2, 2, 2)], dim // 2),
            ([], dim),
            ([nn.MaxPool2d(2)], dim),
        ]
        self.stages = nn.ModuleList(
            nn.Sequential(
                *scaling,
                nn.Conv2d(width, channels, 1, bias=False),
                ChannelNorm(channels),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                ChannelNorm(channels),
            )
            for scaling, width in ways[first:]
        )

    def forward(self, tokens: Tensor, operations: Operations | None = None) -> list[Tensor]:
        """Return the feature maps [B, C, H, W], the largest first, for tokens [B, h, w, D].

        ``operations``: counts the operations.
        """
        maps = []
        for stage in self.stages:
            x = tokens.permute(0, 3, 1, 2)
            for layer in cast(nn.Sequential, stage):
                before, x = x, layer(x)
                if operations is not None and isinstance(layer, nn.ConvTranspose2d):
                    operations.linear += before[:, 0].numel() * layer.weight.numel()
                    operations.bias += x.numel()
                elif operations is not None and isinstance(layer, nn.Conv2d):
                    operations.count_linear(x[:, 0].numel(), layer)
            maps.append(x)
        return [*maps, maps[-1][:, :, ::2, ::2]]

    def layout(self, height: int, width: int) -> MapLayout:
        """Return the layout of the feature maps of frames of this size, in tokens."""
        h, w = height // 2, width // 2
        sizes = [(4 * height, 4 * width), (2 * height, 2 * width), (height, width), (h, w)]
        return layout_of((*sizes[self.first :], (-(-h // 2), -(-w // 2))))

    def renew(
        self,
        tokens: Tensor,
        chosen: Tensor,
        narrow: Tensor,
        rows: Tensor,
        operations: Operations,
    ) -> Tensor:
        """Update the feature maps of one frame in place, where they depend on the chosen tokens.

        ``tokens`` [h, w, D]; ``chosen`` int64 [M]: those that are new. ``rows`` [places + 1, C]:
        the feature maps; ``narrow``, like ``rows``: input of their last convolutions. Returns
        which places were computed, bool [places + 1].
        """
        layout = self.layout(*tokens.shape[:2])
        computed = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        for level, stage in enumerate(self.stages):
            *scaling, convolution, norm = cast(nn.Sequential, stage)
            x, places = _take(tokens, chosen, level + self.first)
            for layer in scaling:
                x = _of_rows(layer, x, operations)
            places = places + layout.starts[level]
            narrow.index_copy_(0, places, x)
            new = torch.zeros_like(computed)
            new[places] = True
            levels = range(level, level + 1)
            new = places_affected(new, layout, levels)
            places, x = convolve(
                narrow, layout, levels, new, cast(nn.Conv2d, convolution), operations
            )
            rows.index_copy_(0, places, cast(ChannelNorm, norm).of_rows(x))
            computed |= new
        last, places = len(self.stages), torch.arange(len(rows), device=rows.device)
        start = layout.starts[last]
        below = layout.part(places[None, :, None], last - 1)[0, 0, ::2, ::2].flatten()
        rows[start:-1], computed[start:-1] = rows[below], computed[below]
        return computed

    def count_macs(self, height: int, width: int, updated: int | None = None) -> int:
        """Return the cost of the feature maps of one frame; ``updated``: number of new tokens.

        With ``updated`` it is an estimate, see ``touched``.
        """
        layout, operations = self.layout(height, width), Operations()
        for level, stage in enumerate(self.stages):
            *scaling, convolution, _ = cast(nn.Sequential, stage)
            doublings = max(0, 2 - level - self.first)
            rows = math.ceil(self.estimate_places(layout, level, updated, 0) / 4**doublings)
            for layer in scaling:
                rows = _count(layer, rows, operations)
            rows = self.estimate_places(layout, level, updated, 1)
            operations.count_linear(rows, cast(nn.Conv2d, convolution))
        return operations.total

    def estimate_places(
        self, layout: MapLayout, level: int, updated: int | None, margin: int
    ) -> int:
        """Return an estimate of the places of a feature map that depend on ``updated`` tokens.

        None: all. Tokens are assumed to be in squares of four. ``margin``: 3x3 convolutions
        between.
        """
        if updated is None:
            return layout.counts[level]
        side = 2.0 ** (2 - level - self.first) * math.sqrt(_TOKENS_PER_SQUARE) + 2 * margin
        return min(layout.counts[level], math.ceil(updated / _TOKENS_PER_SQUARE * side**2))


def _of_rows(layer: nn.Module, x: Tensor, operations: Operations) -> Tensor:
    """Return a layer's output for rows [n, C]; four rows for each if it doubles the map's size."""
    _count(layer, len(x), operations)
    if isinstance(layer, nn.ConvTranspose2d):
        out = x @ layer.weight.permute(0, 2, 3, 1).flatten(1)
        return torch.unflatten(out, 1, (4, -1)).add_(cast(Tensor, layer.bias)).flatten(0, 1)
    if isinstance(layer, nn.Conv2d):
        return F.linear(x, layer.weight.flatten(1))
    if isinstance(layer, ChannelNorm):
        return layer.of_rows(x)
    return F.gelu(x) if isinstance(layer, nn.GELU) else x


def _count(layer: nn.Module, rows: int, operations: Operations) -> int:
    """Count a layer's operations for ``rows`` rows; return the number of output rows."""
    if isinstance(layer, nn.ConvTranspose2d):
        operations.linear += rows * layer.weight.numel()
        operations.bias += 4 * rows * layer.out_channels
        return 4 * rows
    if isinstance(layer, nn.Conv2d):
        operations.count_linear(rows, layer)
    return rows


def _take(tokens: Tensor, chosen: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """Return the input rows [n, D] of a feature map and their places in it.

    In a feature map larger than the grid of tokens each row has several places.
    """
    height, width = tokens.shape[:2]
    if level < 3:
        children = _children(height, width, 2 - level).to(tokens.device)
        return tokens.flatten(0, 1).index_select(0, chosen), children[chosen].flatten()
    h, w = height // 2, width // 2
    new = torch.zeros(height * width, dtype=torch.bool, device=tokens.device)
    new[chosen] = True
    squares = new.view(height, width)[: 2 * h, : 2 * w].reshape(h, 2, w, 2)
    places = squares.any(3).any(1).flatten().nonzero().flatten()
    corners = places // w * 2 * width + places % w * 2
    square = torch.tensor((0, 1, width, width + 1), device=tokens.device)
    return tokens.flatten(0, 1)[corners[:, None] + square].amax(1), places


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _children(height: int, width: int, doublings: int) -> Tensor:
    """Return the places [tokens, 4**doublings] of each token in a larger feature map."""
    tokens, two = torch.arange(height * width), torch.arange(2)
    y, x = tokens[:, None] // width, tokens[:, None] % width
    for _ in range(doublings):
        y = (2 * y[..., None, None] + two[:, None]).expand(*y.shape, 2, 2).flatten(1)
        x = (2 * x[..., None, None] + two).expand(*x.shape, 2, 2).flatten(1)
    return y * (width << doublings) + x
