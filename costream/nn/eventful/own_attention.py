"""Any transformer over the tokens of frames: its linear layers compute the rows that have changed.

The token-wise part of Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023), without looking into
a network: every linear layer over tokens gets a gate and a buffer, and what is between the layers
(attention in windows, shifted or not, with any positions, norms wherever they are) is the
network's, and computed in full.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costream.nn.eventful.block import GatedState, begin_buffer
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.gates import pass_tokens
from costream.nn.eventful.policies import Policy
from costream.nn.operation import ConversionError
from costream.nn.state import State, zeros
from costream.nn.timing import check_shape

_FEW = 0.25  # share of rows; a product of these is faster than one of all
SMALL = 10_000_000  # multiplications; a product of fewer is faster than to see what has changed


@dataclass
class GatedRowsState(State):
    """State of a network of gated linear layers, one of each call of a layer in a frame."""

    steps: Tensor  # int64 [B], frames since the start
    calls: tuple[GatedState, ...]


@dataclass(frozen=True)
class _Call:
    """A call of a linear layer: for each frame ``rows`` rows."""

    layer: nn.Linear
    rows: int


class _Frame:
    """Context of the gated layers while the network takes a frame; ``state`` None: a clip."""

    state: GatedRowsState | None = None
    policy: Policy | None
    operations: Operations
    fresh: Sequence[bool]
    call = 0  # number of the next call
    new: bool | None = None  # whether the rows of the first layer have changed
    dense = False  # the other layers compute all rows
    seen: list[_Call] | None = None  # calls are listed here


class _GatedLinear(nn.Module):
    """A linear layer that, in a stream, computes the rows that its gate passes."""

    def __init__(self, layer: nn.Linear, frame: _Frame) -> None:
        super().__init__()
        self._layer, self._frame = [layer], frame
        self.weight, self.bias = layer.weight, layer.bias
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows [..., O]; the mini-batch of frames is the outermost dimension."""
        frame, layer = self._frame, self._layer[0]
        if frame.seen is not None and x.dim() > 2:
            frame.seen.append(_Call(layer, x.numel() // x.shape[-1]))
        if frame.state is None or x.dim() < 3:
            return layer(x)  # type: ignore[no-any-return]
        frame.call += 1
        if frame.dense:
            frame.operations.count_linear(x.numel() // self.in_features, layer)
            return layer(x)  # type: ignore[no-any-return]
        gated = frame.state.calls[frame.call - 1]
        rows = x.reshape(len(gated.reference), -1, x.shape[-1])
        if frame.policy is None:
            return self._exactly(rows, gated).view(*x.shape[:-1], -1)
        chosen = pass_tokens(rows, gated.reference, frame.fresh, frame.policy, frame.operations)
        begin_buffer(gated.buffer, chosen, layer.bias)
        frame.operations.count_linear(sum(chosen.counts), layer)
        chosen.put(layer(chosen.take(rows)), gated.buffer)
        return gated.buffer.clone().view(*x.shape[:-1], -1)

    def _exactly(self, rows: Tensor, gated: GatedState) -> Tensor:
        """Return the layer of ``rows`` [B, N, C]; those that have not changed are not computed.

        Once many rows of a new frame have changed, the layers after that compute all, and keep what
        they have: references and results of a layer fit each other, whichever frame they are of.
        """
        frame, layer = self._frame, self._layer[0]
        check_shape(rows.shape, gated.reference.shape)
        flat, reference = rows.flatten(0, 1), gated.reference.flatten(0, 1)
        if len(flat) * layer.weight.numel() < SMALL:
            frame.operations.count_linear(len(flat), layer)
            return layer(rows)  # type: ignore[no-any-return]
        fresh, first = any(frame.fresh), frame.new is None
        same = not fresh and torch.equal(flat, reference)
        frame.new = not same if first else frame.new
        if same:
            return gated.buffer.clone()
        changed = (flat != reference).any(-1).nonzero().flatten()
        if fresh or len(changed) > _FEW * len(flat):
            frame.operations.count_linear(len(flat), layer)
            new: Tensor = layer(rows)
            frame.dense = bool(frame.new) and not fresh
            if first or not frame.dense:
                gated.buffer.copy_(new)
                gated.reference.copy_(rows)
            return new
        frame.operations.count_linear(len(changed), layer)
        gated.buffer.flatten(0, 1)[changed] = layer(flat[changed])
        reference[changed] = flat[changed]
        return gated.buffer.clone()


class GatedRows(nn.Module):
    """A network whose linear layers compute the tokens that have changed (``to_eventful``).

    ``operations``: counted in the linear layers and gates of the last step. The layers keep their
    weights, which are copies of the network's.
    """

    def __init__(self, model: nn.Module, policy: Policy | None) -> None:
        super().__init__()
        self._frame, self.policy, self._calls = _Frame(), policy, list[_Call]()
        self.model = copy.deepcopy(model)
        linear = [(n, m) for n, m in self.model.named_modules() if type(m) is nn.Linear]
        if not linear:
            raise ConversionError(f"{type(model).__name__} has no linear layers over tokens")
        for name, layer in linear:
            parent, _, own = name.rpartition(".")
            setattr(self.model.get_submodule(parent), own, _GatedLinear(layer, self._frame))
        self.operations = Operations()

    def forward(self, x: Tensor) -> Any:
        """Return the network's output for frames [B, ...], computed in full."""
        self._frame.state = None
        return self.model(x)

    @torch.no_grad()
    def init_state(self, batch_size: int, frame: Tensor) -> GatedRowsState:
        """Return the initial state of streams of frames like ``frame`` [*, ...].

        ConversionError if no linear layer is called with the tokens of a frame, [1, N, C].
        """
        self._frame.seen = []
        try:
            self(frame[:1])
        finally:
            calls, self._frame.seen = self._frame.seen, None
        if not calls:
            raise ConversionError(f"{type(self.model).__name__} has no linear layers over tokens")
        self._calls = calls

        def gated(call: _Call) -> GatedState:
            sizes = (call.layer.in_features, call.layer.out_features)
            rows = [zeros(batch_size, call.rows, n, like=call.layer.weight) for n in sizes]
            return GatedState(*rows)

        return GatedRowsState(zeros(batch_size), tuple(gated(call) for call in calls))

    @torch.no_grad()
    def forward_step(self, x: Tensor, state: GatedRowsState, policy: Policy | None = None) -> Any:
        """Take a frame [B, ...] of every stream, return the network's output.

        The first frame of a stream is computed in full. ``policy``: for this frame, which rows
        each gate passes; without one those that have changed, which is exact.
        """
        frame, self.operations = self._frame, Operations()
        frame.policy, frame.operations, frame.call = policy or self.policy, self.operations, 0
        frame.new, frame.dense = None, False
        frame.fresh, frame.state = [not n for n in state.steps.tolist()], state
        try:
            out = self.model(x)
        finally:
            frame.state = None
        state.steps += 1
        return out

    def count_macs(self, updated: int | None = None) -> int:
        """Return the operations of the linear layers for a frame of which gates pass ``updated``.

        None: all rows. For frames of the size of the last ``init_state``. Raises ValueError before
        it.
        """
        if not self._calls:
            raise ValueError(
                "the number of rows is set when a stream begins: call init_state first"
            )
        total = 0
        for call in self._calls:
            rows = call.rows if updated is None else min(updated, call.rows)
            total += rows * (call.layer.weight.numel() + call.layer.out_features)
            total += 0 if updated is None else call.rows * call.layer.in_features
        return total
