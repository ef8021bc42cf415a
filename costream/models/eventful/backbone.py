"""The backbone of ViTDet: a plain vision transformer with mostly windowed attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.cuda_graph import GraphedStep
from costream.nn.eventful.block import VARIANTS, EventfulBlock, EventfulBlockState
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import Policy, StartPolicy, TopShare, TopTokens, distances
from costream.nn.state import State, zeros
from costream.nn.timing import check_shape

_GRAPHS = 4  # at most, because each holds memory
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
    """Steps of blocks with a constant number of tokens, for ``GraphedStep``."""

    def __init__(self, blocks: Sequence[EventfulBlock], policy: Policy) -> None:
        self._blocks, self._policy = blocks, policy

    def graph_key(self, x: Tensor, state: GatedBlocksState) -> bool:
        return True

    def warmup(self, state: GatedBlocksState) -> tuple[bool, ...]:
        return ()

    def forward_step(self, x: Tensor, state: GatedBlocksState) -> tuple[Tensor, Operations]:
        operations, fresh = Operations(), [False] * len(x)
        for block, memory in zip(self._blocks, state.blocks, strict=True):
            block_state = cast(EventfulBlockState, memory)
            x = block.forward_step(x, block_state, fresh, self._policy, operations)
        return x, operations


class _Resized(NamedTuple):
    """A resized table and its source, which is kept so that ``key`` stays unique."""

    key: tuple[int, ...]
    source: Tensor
    table: Tensor


class PositionEncoding(nn.Module):
    """Adds a learned table of positions, resized bicubically to the frame.

    ``size``: height and width of the table. ``antialias``: whether shrinking it uses antialiasing.
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
    """Base of networks of ``EventfulBlock``s, which decides when a stream is computed in full.

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
        """Count a frame [B, h, w, D]; return for each stream whether it is computed in full.

        ``policy``: tokens that a ``StartPolicy`` leaves out do not count in the scene test.
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

    def __init__(  # noqa: PLR0913 - the sizes of the network
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
        """Return the graph of steps on a GPU if the policy stays the same, else None."""
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
