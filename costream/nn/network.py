"""Networks of parts: sequences, branches that wait for one another, and any other graph.

Outputs are numbered. Output j of a sum is the sum of outputs j of its branches, in a clip as in a
stream; there, those of the faster branches wait in queues (``Join``), as long as it takes and no
longer. So a branch needs no delay of its own, whatever strides and paddings it has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import reduce as fold
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from costream.nn import layers, parts
from costream.nn.parts import Part, PartState, Stateless, blank, frames_of, room
from costream.nn.state import State, zeros
from costream.nn.time_mixing import stateless
from costream.nn.timing import ClockedState, Timing, in_order, in_sequence, store


def _sum(*xs: Tensor) -> Tensor:
    return fold(torch.add, xs)


def _product(*xs: Tensor) -> Tensor:
    return fold(torch.mul, xs)


def _maximum(*xs: Tensor) -> Tensor:
    return fold(torch.maximum, xs)


def _concatenated(*xs: Tensor) -> Tensor:
    return torch.cat(xs, 1)


# Functions with names, so that networks can be pickled.
REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": _sum,
    "mul": _product,
    "max": _maximum,
    "concat": _concatenated,
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

    frames: Tensor  # [B, C, n, ...], or [B, m, C, n, ...]: see ``room``
    rank: int  # dimensions of the clips

    @cached_property
    def views(self) -> tuple[Tensor, ...]:
        """Each slot, [B, C, 1, ...]; of frames [B, C, n, ...]."""
        with torch.inference_mode(False):
            return torch.split(self.frames, 1, 2)


@dataclass
class JoinState(PartState):
    """State of a join; the clock counts the outputs."""

    queues: tuple[QueueState, ...]


class Join(Part):
    """A function of branches, called with outputs of the same numbers of all of them.

    Args:
        reduce: of clips [B, C, T, ...]: "sum", "mul", "max", "concat" (of channels), or a function
            that treats every frame alone.
        branches: their timing, None for a value without time. ``axes``: their dimension of time.
    """

    def __init__(
        self,
        reduce: str | Callable[..., Tensor],
        branches: Sequence[Timing | None],
        axes: Sequence[int] | None = None,
        out_axis: int = 2,
    ) -> None:
        super().__init__()
        if isinstance(reduce, str) and reduce not in REDUCTIONS:
            raise ValueError(f"reduce {reduce!r} is not one of {sorted(REDUCTIONS)}")
        self.reduce = REDUCTIONS[reduce] if isinstance(reduce, str) else reduce
        self.axes = [2] * len(branches) if axes is None else list(axes)
        self.axis = out_axis
        self.brief = False  # the function keeps nothing that it is called with; axes are all 2
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

    def start(self, batch_size: int, *clips: Any) -> JoinState:
        """Return the initial state; ``clips``: of one frame of one stream, of each branch."""
        empty = room(batch_size, self(*clips), self.out_axis, 0, merged=True)
        queues = []
        for clip, axis, slots in zip(clips, self.axes, self.slots, strict=True):
            if slots is not None:
                held = room(batch_size, clip, axis, slots + (self.brief and slots > 0))
                queues.append(QueueState(zeros(batch_size), held, clip.dim()))
        return JoinState(zeros(batch_size), empty, tuple(queues))

    def join(self, xs: Sequence[Any], state: JoinState) -> Tensor | None:
        """Take what came of each branch, or None, return the function of what is complete."""
        done = state.peek()
        if self.brief and (ready := self._at_once(xs, state, done)) is not None:
            state.tick()
            return self.reduce(*ready)
        timed = [k for k, n in enumerate(self.slots) if n is not None]
        came = [0 if xs[k] is None else int(xs[k].shape[self.axes[k]]) for k in timed]
        held = [queue.tick(n) - done for queue, n in zip(state.queues, came, strict=True)]
        count = min(h + n for h, n in zip(held, came, strict=True))
        ready = list(xs)
        for k, queue, waiting in zip(timed, state.queues, held, strict=True):
            if self.slots[k]:
                frames = frames_of(queue.frames, queue.rank)
                ready[k] = _through(xs[k], frames, self.axes[k], done, waiting, count)
        if not count:
            return None
        state.tick(count)
        return self.reduce(*ready)

    def _at_once(self, xs: Sequence[Any], state: JoinState, done: int) -> list[Any] | None:
        """Return what the function is called with when a frame of each branch has come.

        Frames that waited are views of the queues, which have a slot more. None in all other cases.
        """
        if any(x is None or x.shape[2] > 1 for x in xs):
            return None
        waiting = [queue.peek() - done for queue in state.queues]
        if waiting != self.slots or any(q.frames.dim() != q.rank for q in state.queues):
            return None
        ready = list(xs)
        for k, (queue, count) in enumerate(zip(state.queues, waiting, strict=True)):
            queue.tick()
            if count:
                slots = queue.views
                slots[(done + count) % len(slots)].copy_(xs[k].detach())
                ready[k] = slots[done % len(slots)]
        return ready


def _through(
    x: Tensor | None, frames: Tensor, axis: int, done: int, waiting: int, count: int
) -> Tensor | None:
    """Put ``x`` behind the frames that wait in a queue, take ``count`` from its front."""
    slots = frames.shape[axis]
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
    slot: int  # of its state in that of the network; -1 without
    timing: Timing | None  # of its outputs, in steps of the network; None without time
    first: int  # the step at which a stream's first input reaches it
    start: int  # the step of its first output that is more than padding
    lender: int = -1  # slot of the state that has memory for its output; see ``add``
    passes: bool = False  # its frames are those that it gets, once the network has had an output


@dataclass
class PartGraphState(PartState):
    """States of the nodes, and what each stream has seen."""

    steps: Tensor  # int64 [B], since its reset
    nodes: tuple[State, ...]


class PartGraph(Part):
    """A graph of parts; the last node is its output.

    Streams that were reset in a running batch, or joined it, start where the others are: whatever a
    layer computes for them before their first frame has reached it is forgotten again. Their
    outputs are those of a fresh stream if they start at a multiple of the stride.
    """

    def __init__(self) -> None:
        super().__init__()
        self._nodes: list[Node] = []
        self._slots = 0
        self._last_use: dict[int, int] = {}  # of a node's value

    def add(self, part: Part, *inputs: int, timed: bool = True, writes: int = 0) -> int:
        """Add a node and return its number. ``timed``: its outputs are frames.

        ``writes``: a node whose outputs only this one keeps, so that it may write them where they
        are kept: its ``write`` gets the state of this one.
        """
        sources = [t for k in inputs if (t := self.timing_of(k)) is not None]
        timing: Timing | None = None
        if timed and sources:
            self.timing = timing = (
                part.result if isinstance(part, Join) else in_sequence(sources[0], part)
            )
        first = min((self._nodes[k - 1].start if k else 0 for k in inputs), default=0)
        start = first if isinstance(part, parts.Pad) else max(first, timing.delay if timing else 0)
        slot = -1
        if type(part).start is not Part.start:
            slot, self._slots = self._slots, self._slots + 1
        if writes:
            self._nodes[writes - 1] = self._nodes[writes - 1]._replace(lender=slot)
        passes = isinstance(part, parts.Skip) and part.stride == 1
        node = Node(part, inputs, slot, timing, first, start, passes=passes)
        self._nodes.append(node)
        self._last_use |= dict.fromkeys(inputs, len(self._nodes))
        return len(self._nodes)

    def timing_of(self, number: int) -> Timing | None:
        """Return the timing of a node's outputs, or of the network's input, which is number 0."""
        return self._nodes[number - 1].timing if number else Timing()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [B, C', T', ...] of a clip [B, C, T, ...]."""
        values: list[Any] = [x]
        for number, node in enumerate(self._nodes, 1):
            values.append(node.part(*[values[k] for k in node.inputs]))
            for k in node.inputs:
                if self._last_use[k] == number:  # a clip is large
                    values[k] = None
        out: Tensor = values[-1]
        return out

    def example(self) -> Tensor | None:
        """Return a frame of the only shape that this network takes, or None."""
        for node in self._nodes:
            if node.inputs[:1] == (0,) and (frame := node.part.example()) is not None:
                return frame
        return None

    def start(self, batch_size: int, clip: Tensor) -> PartGraphState:
        """Return the initial state; ``clip``: one frame of one stream, [1, C, 1, ...]."""
        values: list[Any] = [clip]
        states: list[State] = []
        for node in self._nodes:
            part, clips = node.part, [values[k] for k in node.inputs]
            if node.slot < 0:
                values.append(part(*clips))
                continue
            state = part.start(batch_size, *clips)
            states.append(state)
            merged = state.empty.shape[0] // batch_size
            shape = [1 if k == part.out_axis else n for k, n in enumerate(state.empty.shape)]
            values.append(blank((merged, *shape[1:]), state.empty))
        empty = room(batch_size, values[-1], self.out_axis, 0, merged=True)
        return PartGraphState(zeros(batch_size), empty, zeros(batch_size), tuple(states))

    def advance(self, x: Tensor, state: PartGraphState) -> Tensor | None:
        """Take T frames [B, C, T, ...], return the outputs of these steps, if any."""
        count, steps = x.shape[self.axis], state.steps.tolist()
        young = min(steps) < state.peek() and any(min(steps) <= n.first for n in self._nodes)
        if young and count > 1:
            outs = [self.advance(frame, state) for frame in torch.split(x, 1, self.axis)]
            given = [out for out in outs if out is not None]
            return torch.cat(given, self.out_axis) if given else None
        settled = state.tick(count) > self.delay
        state.steps += count
        values: list[Any] = [x]
        for node in self._nodes:
            if settled and node.passes:
                values.append(values[node.inputs[0]])
                continue
            part: Any = node.part
            inputs = [values[k] for k in node.inputs]
            own: Any = None if node.slot < 0 else state.nodes[node.slot]
            if isinstance(part, Join):
                values.append(part.join(inputs, own))
            elif any(value is None for value in inputs):
                values.append(None)
            elif node.lender >= 0:
                values.append(part.write(*inputs, state.nodes[node.lender]))
            elif own is None:
                values.append(part.forward(*inputs))
            else:
                values.append(part.advance(*inputs[:1], own, *inputs[1:]))
            if young and own is not None:
                rows = [row for row, n in enumerate(steps) if n < node.first]
                if rows:
                    own.reset(rows)
        out: Tensor | None = values[-1]
        return out

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
        return self.add(Join(reduce, [self.timing_of(k) for k in at]), *at)


class Sequential(PartGraph):
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


class Parallel(PartGraph):
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


class Residual(PartGraph):
    """The sum of a module and its input, which waits for it.

    Beside a module without padding in time, whose clips are shorter, it is the centred frame that
    is added; beside one with any padding it is the frame with the number of the output.
    ``reduce``: as for ``Join``.
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
    that treats every frame alone. ValueError for layers of torch that never do, as they are set,
    and for a ``Sequential`` with a ``forward`` of its own; ``convert`` takes the latter. Where it
    depends on the dimensions of the clips, the part raises it.
    """
    if isinstance(module, Part):
        return module
    if isinstance(module, nn.Sequential):
        if type(module).forward is not nn.Sequential.forward:
            raise ValueError(f"{type(module).__name__} has a forward of its own: use convert")
        return Sequential(OrderedDict(module.named_children()))
    if isinstance(module, nn.Module) and (kind := kind_of(module)) is not None:
        return kind.of(module)  # type: ignore[no-any-return]
    if hasattr(module, "init_state") and hasattr(module, "forward_steps"):
        return layers.Rows(module)
    return stateless(module)
