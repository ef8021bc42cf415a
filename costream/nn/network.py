"""Networks of parts: sequences, branches that wait for one another, and any other graph.

Outputs are numbered. Output j of a sum is the sum of outputs j of its branches, in a clip as in a
stream; there, those of the faster branches wait in queues (``Join``), as long as it takes and no
longer. So a branch needs no delay of its own, whatever strides and paddings it has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from costream.nn import layers, parts
from costream.nn.parts import Part, PartState, Stateless, empty_shape
from costream.nn.state import State, zeros
from costream.nn.timing import ClockedState, Timing, in_order, in_sequence, store

REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": lambda *xs: fold(torch.add, xs),
    "mul": lambda *xs: fold(torch.mul, xs),
    "max": lambda *xs: fold(torch.maximum, xs),
    "concat": lambda *xs: torch.cat(xs, 1),
}


def paired(*branches: Timing) -> Timing:
    """Return the timing of outputs that are made of outputs of the same number of all branches.

    Raises ValueError for branches of unequal stride.
    """
    strides = {b.stride for b in branches}
    if len(strides) > 1:
        raise ValueError(f"branches with strides {sorted(strides)}: outputs cannot be paired")
    delay, padding = max(b.delay for b in branches), max(b.padding for b in branches)
    return Timing(delay + padding + 1, padding, strides.pop())


@dataclass
class QueueState(ClockedState):
    """Outputs of a branch that wait for those of others: number i is in slot i mod n.

    The clock counts those that have come.
    """

    frames: Tensor  # [B, C, n, ...]


@dataclass
class JoinState(PartState):
    """State of a join; the clock counts the outputs."""

    queues: tuple[QueueState, ...]


class Join(Part):
    """A function of branches, called with outputs of the same numbers of all of them.

    Args:
        reduce: of clips [B, C, T, ...]: "sum", "mul", "max", "concat" (of channels), or a function
            that treats every frame alone.
        branches: their timing. ``axes``: their dimension of time; None for no time at all.
    """

    def __init__(
        self,
        reduce: str | Callable[..., Tensor],
        branches: Sequence[Timing | None],
        axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(reduce, str) and reduce not in REDUCTIONS:
            raise ValueError(f"reduce {reduce!r} is not one of {sorted(REDUCTIONS)}")
        self.reduce = REDUCTIONS[reduce] if isinstance(reduce, str) else reduce
        self.axes = [2] * len(branches) if axes is None else list(axes)
        self.result = paired(*[b for b in branches if b is not None])
        self.slots = [
            None if b is None else -((b.delay - self.result.delay) // b.stride) for b in branches
        ]

    def forward(self, *clips: Any) -> Tensor:
        """Return the function of the first outputs of clips, as many as all have."""
        timed = [k for k, n in enumerate(self.slots) if n is not None]
        count = min(clips[k].shape[self.axes[k]] for k in timed)
        cut = list(clips)
        for k in timed:
            cut[k] = clips[k].narrow(self.axes[k], 0, count)
        return self.reduce(*cut)

    def init_queues(self, batch_size: int, clips: Sequence[Any], empty: Tensor) -> JoinState:
        """Return the initial state; ``clips``: of any length of each branch."""
        queues = []
        for clip, axis, slots in zip(clips, self.axes, self.slots, strict=True):
            if slots is not None:
                shape = [slots if k == axis else n for k, n in enumerate(clip.shape)]
                frames = zeros(batch_size, *shape[1:], like=clip)
                queues.append(QueueState(zeros(batch_size), frames))
        return JoinState(zeros(batch_size), empty, tuple(queues))

    def join(self, xs: Sequence[Any], state: JoinState) -> Tensor | None:
        """Take what came of each branch, or None, return the function of what is complete."""
        timed = [k for k, n in enumerate(self.slots) if n is not None]
        done = state.peek()
        came = [0 if xs[k] is None else int(xs[k].shape[self.axes[k]]) for k in timed]
        held = [queue.tick(n) - done for queue, n in zip(state.queues, came, strict=True)]
        count = min(h + n for h, n in zip(held, came, strict=True))
        ready = list(xs)
        for k, queue, waiting in zip(timed, state.queues, held, strict=True):
            ready[k] = _through(xs[k], queue.frames, self.axes[k], done, waiting, count)
        if not count:
            return None
        state.tick(count)
        return self.reduce(*ready)


def _through(
    x: Tensor | None, frames: Tensor, axis: int, done: int, waiting: int, count: int
) -> Tensor | None:
    """Put ``x`` behind the frames that wait in a queue, take ``count`` from its front."""
    slots = frames.shape[axis]
    if not slots:
        return x
    if x is not None and x.shape[axis] == 1 and count <= 1:
        out = x if not waiting else frames.narrow(axis, done % slots, 1)
        if count and waiting:
            out = out.clone()
        if not count or waiting:
            frames.narrow(axis, (done + waiting) % slots, 1).copy_(x.detach())
        return out if count else None
    if x is None and count == 1:
        return frames.narrow(axis, done % slots, 1).clone()
    new = frames.narrow(axis, 0, 0) if x is None else x
    rows = torch.cat([in_order(frames, done + waiting, axis), new], axis)
    store(frames, rows.detach(), done + waiting + new.shape[axis], axis)
    return rows.narrow(axis, slots - waiting, count) if count else None


class Node(NamedTuple):
    """A part of a network and where its inputs come from: 0 is the network's, k that of node k."""

    part: Part
    inputs: tuple[int, ...]
    timing: Timing  # of its outputs, in steps of the network
    first: int  # the step at which a stream's first input reaches it
    start: int  # the step of its first output that is more than padding


@dataclass
class NetworkState(PartState):
    """States of the nodes, and what each stream has seen."""

    steps: Tensor  # int64 [B], since its reset
    nodes: tuple[State, ...]


class Network(Part):
    """A graph of parts; the last node is its output.

    Streams that were reset in a running batch, or joined it, start where the others are: whatever a
    layer computes for them before their first frame has reached it is forgotten again. Their
    outputs are those of a fresh stream if they start at a multiple of the stride.
    """

    def __init__(self) -> None:
        super().__init__()
        self._nodes: list[Node] = []

    def add(self, part: Part, *inputs: int) -> int:
        """Add a node and return its number."""
        sources = [self._nodes[k - 1].timing if k else Timing() for k in inputs]
        timing = part.result if isinstance(part, Join) else in_sequence(sources[0], part)
        first = min(self._nodes[k - 1].start if k else 0 for k in inputs)
        start = first if isinstance(part, parts.Pad) else max(first, timing.delay)
        self._nodes.append(Node(part, inputs, timing, first, start))
        self.timing = timing
        return len(self._nodes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [B, C', T', ...] of a clip [B, C, T, ...]."""
        values = [x]
        for node in self._nodes:
            values.append(node.part(*[values[k] for k in node.inputs]))
        return values[-1]

    def example(self) -> Tensor | None:
        """Return a frame of the only shape that this network takes, or None."""
        for node in self._nodes:
            if not node.inputs[0] and (frame := node.part.example()) is not None:
                return frame
        return None

    def start(self, batch_size: int, frame: Tensor) -> NetworkState:
        """Return the initial state of streams of frames like ``frame`` [1, C, ...]."""
        values, states = [frame.unsqueeze(self.axis)], []
        for node in self._nodes:
            clips = [values[k] for k in node.inputs]
            if isinstance(node.part, Join):
                out = node.part(*clips)
                empty = zeros(batch_size, *empty_shape(out, self.axis)[1:], like=out)
                state: PartState = node.part.init_queues(batch_size, clips, empty)
            else:
                state = node.part.start(batch_size, clips[0].squeeze(self.axis))
                shape = [1 if k in (0, self.axis) else n for k, n in enumerate(state.empty.shape)]
                out = zeros(*shape, like=state.empty)
            states.append(state)
            values.append(out)
        empty = zeros(batch_size, *empty_shape(values[-1], self.axis)[1:], like=values[-1])
        return NetworkState(zeros(batch_size), empty, zeros(batch_size), tuple(states))

    def advance(self, x: Tensor, state: NetworkState) -> Tensor | None:
        """Take T frames [B, C, T, ...], return the outputs of these steps, if any."""
        count, steps = x.shape[self.axis], state.steps.tolist()
        young = min(steps) < state.peek() and any(min(steps) <= n.first for n in self._nodes)
        if young and count > 1:
            outs = [self.advance(frame, state) for frame in torch.split(x, 1, self.axis)]
            given = [out for out in outs if out is not None]
            return torch.cat(given, self.axis) if given else None
        state.tick(count)
        state.steps += count
        values: list[Tensor | None] = [x]
        for node, own in zip(self._nodes, state.nodes, strict=True):
            inputs = [values[k] for k in node.inputs]
            if isinstance(node.part, Join):
                values.append(node.part.join(inputs, own))  # type: ignore[arg-type]
            else:
                values.append(None if inputs[0] is None else node.part.advance(inputs[0], own))
            if young and (rows := [row for row, n in enumerate(steps) if n < node.first]):
                own.reset(rows)
        return values[-1]

    def _chain(self, modules: Iterable[nn.Module | Callable[..., Any]]) -> int:
        """Add modules one after another and return the last node."""
        at: int | tuple[int, ...] = len(self._nodes)
        for module in modules:
            if isinstance(module, Broadcast):
                assert isinstance(at, int)
                at = (at,) * module.count
            elif isinstance(module, Parallel) and isinstance(at, tuple):
                if len(module.branches) != len(at):
                    raise ValueError(f"{len(module.branches)} branches for {len(at)} streams")
                pairs = zip(module.branches, at, strict=True)
                at = tuple(self.add(branch, source) for branch, source in pairs)
                if module.join is not None:
                    at = self._reduce(module.join, at)
            elif isinstance(module, Reduce):
                at = self._reduce(module.reduce, at if isinstance(at, tuple) else (at,))
            elif isinstance(at, tuple):
                raise ValueError("several streams: a Parallel or a Reduce must follow")
            else:
                at = self.add(as_part(module), at)
        if isinstance(at, tuple):
            raise ValueError("several streams at the end: a Reduce must follow")
        return at

    def _reduce(self, reduce: str | Callable[..., Tensor], at: tuple[int, ...]) -> int:
        branches = [self._nodes[k - 1].timing if k else Timing() for k in at]
        return self.add(Join(reduce, branches), *at)


class Sequential(Network):
    """Parts one after another; parameters are named as in ``torch.nn.Sequential``.

    Ordinary layers of ``torch.nn`` are taken as ``as_part`` says.
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        named: Iterable[tuple[str, Any]]
        if len(modules) == 1 and isinstance(modules[0], OrderedDict):
            named = list(modules[0].items())
        else:
            named = [(str(k), module) for k, module in enumerate(modules)]
        for name, module in named:
            self.add_module(name, module if isinstance(module, nn.Module) else Stateless(module))
        self._chain(self._modules.values())  # type: ignore[arg-type]


class Parallel(Network):
    """Branches of one input, whose outputs are joined.

    Args:
        reduce: as for ``Join``. With None, in a ``Sequential`` after a ``Broadcast``, the outputs
            stay apart until a ``Reduce``.
    """

    def __init__(self, *modules: Any, reduce: str | Callable[..., Tensor] | None = "sum") -> None:
        super().__init__()
        self.join, self.branches = reduce, [as_part(module) for module in modules]
        for name, (module, part) in enumerate(zip(modules, self.branches, strict=True)):
            self.add_module(str(name), module if isinstance(module, nn.Module) else part)
        if reduce is not None:
            self._reduce(reduce, tuple(self.add(branch, 0) for branch in self.branches))


class Broadcast(nn.Module):
    """One stream to ``count`` equal ones, in a ``Sequential``."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count


class Reduce(nn.Module):
    """Several streams to one, in a ``Sequential``; ``reduce`` as for ``Join``."""

    def __init__(self, reduce: str | Callable[..., Tensor] = "sum") -> None:
        super().__init__()
        self.reduce = reduce


class Residual(Network):
    """The sum of a module and its input, which waits for it.

    Beside a module without padding in time, whose clips are shorter, it is the centred frame that
    is added. ``reduce``: as for ``Join``.
    """

    def __init__(self, module: Any, reduce: str | Callable[..., Tensor] = "sum") -> None:
        super().__init__()
        part = as_part(module)
        self.module = module if isinstance(module, nn.Module) else part
        if part.stride > 1:
            raise ValueError(f"a residual of stride {part.stride}: use Parallel with a shortcut")
        centre = 0 if part.padding else (part.receptive_field - 1) // 2
        shortcut = 0 if not centre else self.add(parts.Skip(centre), 0)
        self._reduce(reduce, (self.add(part, 0), shortcut))


@dataclass
class ConditionalState(PartState):
    """States of both parts."""

    branches: tuple[State, ...]


class Conditional(Part):
    """One of two parts, chosen anew at every step; the other one's state stands still.

    Args:
        predicate: of a frame as a clip of length 1, [B, C, 1, ...], returns whether ``true`` is
            called, else ``false``, which is the identity if left out. Neither may have a delay or a
            stride: ValueError.
    """

    def __init__(
        self, predicate: Callable[[Tensor], bool], true: Any, false: Any | None = None
    ) -> None:
        super().__init__()
        self.predicate = predicate
        self.true, self.false = as_part(true), as_part(nn.Identity() if false is None else false)
        for part in (self.true, self.false):
            if part.delay or part.stride > 1:
                raise ValueError(f"{part} has delay {part.delay} and stride {part.stride}")
        self.timing = paired(self.true.timing, self.false.timing)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a clip, frame by frame if its frames go different ways."""
        ways = {bool(self.predicate(frame)) for frame in torch.split(x, 1, self.axis)}
        if len(ways) == 1:
            return (self.true if ways.pop() else self.false)(x)  # type: ignore[no-any-return]
        return self.forward_steps(x, self.start(len(x), x.select(self.axis, 0)[:1]))

    def start(self, batch_size: int, frame: Tensor) -> ConditionalState:
        """Return the initial state of streams of frames like ``frame`` [1, C, ...]."""
        states = self.true.start(batch_size, frame), self.false.start(batch_size, frame)
        return ConditionalState(zeros(batch_size), states[0].empty.clone(), states)

    def advance(self, x: Tensor, state: ConditionalState) -> Tensor:
        """Take T frames, return as many."""
        state.tick(x.shape[self.axis])
        outs = []
        for frame in torch.split(x, 1, self.axis):
            way = bool(self.predicate(frame))
            part, own = (self.true if way else self.false), state.branches[not way]
            outs.append(part.advance(frame, own))
        return torch.cat(outs, self.axis)  # type: ignore[arg-type]


KINDS: dict[type[nn.Module], Any] = {
    kind.kind: kind
    for kind in (
        *(layers.Conv1d, layers.Conv2d, layers.Conv3d),
        *(layers.MaxPool1d, layers.MaxPool2d, layers.MaxPool3d),
        *(layers.AvgPool1d, layers.AvgPool2d, layers.AvgPool3d),
        *(layers.RNN, layers.GRU, layers.LSTM, parts.Linear, parts.LayerNorm),
    )
}


def kind_of(module: nn.Module) -> Any:
    """Return the part that is the continual form of this layer of torch, or None."""
    for kind, part in KINDS.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return part
    return None


def as_part(module: Any) -> Part:
    """Return a module as a part, with the same parameters.

    A part is itself. Convolutions, pooling, recurrent layers, ``Linear``, ``LayerNorm`` and
    ``Sequential`` of torch have their continual forms; blocks over rows [B, T, d], such as
    ``Encoder``, become parts of clips [B, d, T]; any other module or function is taken for one
    that treats every frame alone.
    """
    if isinstance(module, Part):
        return module
    if isinstance(module, nn.Sequential):
        return Sequential(OrderedDict(module.named_children()))
    if isinstance(module, nn.Module) and (kind := kind_of(module)) is not None:
        return kind.of(module)  # type: ignore[no-any-return]
    if hasattr(module, "init_state") and hasattr(module, "forward_steps"):
        return layers.Rows(module)
    return Stateless(module)
