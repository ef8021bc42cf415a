"""Plain vision transformers of other libraries, computing only the tokens that have changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costream.nn.block import ACTIVATIONS
from costream.nn.encoder_layers import EncoderLayer, find_layers, match
from costream.nn.eventful.block import EventfulBlock, EventfulBlockState, GatedState
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.own_attention import GatedRows
from costream.nn.eventful.policies import Policy, TopTokens
from costream.nn.operation import ConversionError
from costream.nn.state import State, zeros
from costream.nn.timing import check_shape

_OWN = "attention='own' gates the linear layers of any transformer"


@dataclass
class EventfulState(State):
    """State of a network of eventful blocks."""

    steps: Tensor  # int64 [B], frames with a policy since the start, or since one without
    exact: Tensor  # int64 [B], frames without
    blocks: tuple[EventfulBlockState, ...]
    kept: tuple[GatedState, ...]  # tokens before and after each block in the last exact frame


def _changed(x: Tensor, kept: GatedState, fresh: Sequence[bool]) -> list[int]:
    """Return the streams whose tokens [B, N, C] are not those that are kept."""
    check_shape(x.shape, kept.reference.shape)
    rows = []
    for k, (new, old) in enumerate(zip(x, kept.reference, strict=True)):
        # The first token is compared first: attention among all spreads a change to it.
        same = not fresh[k] and torch.equal(new[:1], old[:1]) and torch.equal(new, old)
        rows += [] if same else [k]
    return rows


def _kept_or_new(
    x: Tensor, kept: GatedState, rows: Sequence[int], compute: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the results [B, N, O] for tokens [B, N, C], computed for these streams.

    ``kept``: tokens and results, which these become.
    """
    if len(rows) == len(x):
        new = compute(x)
        kept.buffer.copy_(new)
        kept.reference.copy_(x)
        return new
    if rows:
        kept.buffer[rows] = compute(x[rows])
        kept.reference[rows] = x[rows]
    return kept.buffer.clone()


class _Step:
    """Context of the blocks while the network takes a frame; ``state`` None: a clip."""

    state: EventfulState | None = None
    policy: Policy | None
    operations: Operations
    fresh: Sequence[bool]
    moving = False  # without a policy: the tokens of all streams have changed
    tokens = 0  # of the last frame


class _Gated(nn.Module):
    """An eventful block in the place of a layer, which computes whole frames itself.

    The block ignores the layer's further arguments.
    """

    def __init__(
        self, block: EventfulBlock, layer: nn.Module, number: int, step: _Step, several: bool
    ) -> None:
        super().__init__()
        self.block, self.layer, self.number = block, layer, number
        self.step, self.several = step, several
        self._counted = torch.Size(), Operations()  # of tokens of this shape, in full

    def forward(self, x: Tensor, *others: Any, **named: Any) -> Any:
        step, state = self.step, self.step.state
        step.tokens = x.shape[1]
        if state is None:
            return self.layer(x, *others, **named)
        if step.policy is not None:
            row, kept = x.unsqueeze(1), state.blocks[self.number]  # a picture of one row
            new = self.block.forward_step(row, kept, step.fresh, step.policy, step.operations)
            out = new.squeeze(1)
        else:
            out = self._exactly(x, state, lambda some: self.layer(some, *others, **named))
        return (out,) if self.several else out

    def _exactly(self, x: Tensor, state: EventfulState, layer: Callable[[Tensor], Any]) -> Tensor:
        """Return the tokens [B, N, C] after ``layer``, computed for the streams that changed."""
        step = self.step

        def compute(some: Tensor) -> Tensor:
            self._count(some)
            if len(some) < len(x):  # what else the layer is given may be of all streams
                return torch.squeeze(self.block(some.unsqueeze(1)), 1)
            out: Tensor = layer(some)[0] if self.several else layer(some)
            return out

        if self.number and step.moving and not any(step.fresh):
            return compute(x)  # kept once nothing has changed
        kept = state.kept[self.number]
        rows = _changed(x, kept, step.fresh)
        if not self.number:
            step.moving = len(rows) == len(x)
        return _kept_or_new(x, kept, rows, compute)

    def _count(self, x: Tensor) -> None:
        """Count the operations of the tokens [B, N, C] of frames that are computed in full."""
        shape, operations = self._counted
        if shape != x.shape:
            operations = Operations()
            self.block.count_full(x[:, None], operations)
            self._counted = x.shape, operations
        self.step.operations.add_all(operations)


class EventfulTransformer(nn.Module):
    """A network whose encoder layers compute the tokens that have changed (``to_eventful``).

    Embedding and head are the network's, and are computed in full. ``operations``: counts of
    the blocks in the last step.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[EncoderLayer], policy: Policy | None
    ) -> None:
        super().__init__()
        self._step, self.policy = _Step(), policy
        memo: dict[int, Any] = {}
        self._blocks = []
        with torch.no_grad():
            for k, layer in enumerate(layers):
                block = _block(layer)
                self._blocks.append(block)
                several = isinstance(layer.call(layer.out.weight[None]), tuple)
                whole = copy.deepcopy(layer.module)
                memo[id(layer.module)] = _Gated(block, whole, k, self._step, several)
        self.model = copy.deepcopy(model, memo)
        self.operations = Operations()

    def forward(self, x: Tensor) -> Any:
        """Return the network's output for frames [B, ...], computed in full."""
        self._step.state = None
        return self.model(x)

    def init_state(self, batch_size: int, frame: Tensor) -> EventfulState:
        """Return the initial state of streams of frames like ``frame`` [*, ...]."""
        with torch.no_grad():
            self(frame[:1])
        tokens = self._step.tokens
        blocks = tuple(block.init_state(batch_size, 1, tokens) for block in self._blocks)
        kept: tuple[GatedState, ...] = ()
        if self.policy is None:
            shapes = [(block.dim, block.input_layer_norm.weight) for block in self._blocks]
            kept = tuple(
                GatedState(*(zeros(batch_size, tokens, dim, like=like) for _ in range(2)))
                for dim, like in shapes
            )
        return EventfulState(zeros(batch_size), zeros(batch_size), blocks, kept)

    @torch.no_grad()
    def forward_step(self, x: Tensor, state: EventfulState, policy: Policy | None = None) -> Any:
        """Take a frame [B, ...] of every stream, return the network's output.

        The first frame of a stream is computed in full, as is one after a frame without a policy.
        ``policy``: for this frame, which tokens each gate passes.
        """
        step, self.operations = self._step, Operations()
        step.policy, step.operations = policy or self.policy, self.operations
        steps = state.exact if step.policy is None else state.steps
        step.fresh, step.state = [not n for n in steps.tolist()], state
        try:
            out = self.model(x)
        finally:
            step.state = None
        steps += 1
        if step.policy is None:
            state.steps.zero_()
        return out

    def count_macs(self, updated: int | None = None) -> int:
        """Return the operations of the blocks for a frame of which every gate passes ``updated``.

        None: all tokens. For frames of the size of the last one. Raises ValueError before one.
        """
        if not self._step.tokens:
            raise ValueError(
                "the number of tokens is set when a stream begins: call init_state first"
            )
        return sum(block.count_macs(1, self._step.tokens, updated) for block in self._blocks)


def _block(layer: EncoderLayer) -> EventfulBlock:
    """Return an eventful block with the weights of a layer."""
    options, order = match(layer)
    if not options["norm_first"]:
        raise ConversionError("its norms come last", where=layer.name, hint="as a ViT, first")
    block = EventfulBlock(layer.width, layer.heads, None)
    linear = [copy.deepcopy(x) for x in (layer.out, layer.down)]
    for own, scale in zip(linear, layer.scales, strict=False):
        own.weight.mul_(scale[:, None])
        own.bias.mul_(scale)
    block.qkv.weight.copy_(torch.cat(tuple(m.weight for m in layer.qkv)))
    zero = layer.out.weight.new_zeros(layer.width)
    biases: list[Tensor] = [zero if m.bias is None else m.bias for m in layer.qkv]
    if layer.has_bias:
        block.qkv.bias.copy_(torch.cat(biases))
    else:
        block.qkv.bias.zero_()
    block.projection, block.mlp_2 = linear
    block.mlp_1, block.activate = copy.deepcopy(layer.up), ACTIVATIONS[options["activation"]]
    first, second = (copy.deepcopy(layer.norms[k]) for k in (order, 1 - order))
    block.input_layer_norm, block.mlp_layer_norm = first, second
    return block.to(layer.out.weight).eval()


def to_eventful(
    model: nn.Module, policy: Policy | None = None, *, attention: str = "exact"
) -> EventfulTransformer | GatedRows:
    """Return a vision transformer that computes only what has changed.

    Without a policy, outputs equal the network's: a block is computed again, in full, where any of
    its tokens has changed since the last frame (among all tokens, one that changes changes all).
    With a policy, gates pass the tokens that it chooses, and the others keep their last results; it
    is faster than the network if the products are large enough (see the manual). Class tokens
    and registers are gated like the others.

    Args:
        model: DeiT, DINOv2, SigLIP, ViT and others of their structure, of transformers or timm,
            with softmax attention among all tokens and any head; see ``encoder_layers``.
        policy: which tokens pass, such as ``TopShare(0.25)``. Each step may have another one, such
            as one that ``policy_within`` makes of a budget.
        attention: "exact" updates it where tokens have changed; "own" leaves it to the network,
            which computes it in full, and gates every linear layer over tokens: for any network,
            with windows, shifted ones too, relative positions or norms after the branches.

    Raises ConversionError for networks without such layers, with "exact" also for windows,
    relative positions and norms after their branches. ValueError for another ``attention``.
    """
    if attention not in ("exact", "own"):
        raise ValueError(f"attention {attention!r} is neither 'exact' nor 'own'")
    if attention == "own":
        return GatedRows(model, policy).eval()
    try:
        return EventfulTransformer(model, find_layers(model), policy).eval()
    except ConversionError as error:
        raise ConversionError(f"{error}; {_OWN}") from error


def policy_within(network: EventfulTransformer | GatedRows, macs: int) -> TopTokens:
    """Return the policy that passes as many tokens at each gate as ``macs`` operations allow.

    At least one. By ``count_macs``, so for frames of the size that a state was made for, after
    their first; ``operations`` has what a step took. Raises ValueError if there was no state.
    """
    least, most = 1, 1
    while most < 1 << 20 and network.count_macs(most) <= macs:
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if network.count_macs(middle) <= macs else (least, middle)
    return TopTokens(least)
