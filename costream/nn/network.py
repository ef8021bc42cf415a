"""Networks of parts: sequences, branches that wait for one another, and any other graph."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from costream.nn import layers, parts
from costream.nn.join import Join
from costream.nn.parts import Part, PartState, Stateless, blank, room
from costream.nn.state import State, zeros
from costream.nn.time_mixing import stateless
from costream.nn.timing import Timing, check_shape, in_sequence


class Node(NamedTuple):
    """A part of a network and where its inputs come from: 0 is the network's, k that of node k."""

    part: Part
    inputs: tuple[int, ...]
    slot: int  # of its state in that of the network; -1 without
    timing: Timing | None  # of its outputs, in steps of the network; None without time
    first: int  # the step at which a stream's first input reaches it
    start: int  # the step of its first output, but of those that precede the first frame
    lender: int = -1  # slot of the state that has memory for its output; see ``add``
    passes: bool = False  # its frames are those that it gets, once the network has had an output
    pads: bool = False  # it is a ``Pad``


@dataclass
class PartGraphState(PartState):
    """States of the nodes, and what each stream has seen."""

    steps: Tensor  # int64 [B], since its reset
    nodes: tuple[State, ...]
    frame: list[int]  # shape of a frame of one stream, [1, C, ...]


def _due(node: Node, begin: float, end: float) -> int:
    """Return how many frames of a padding are due in steps ``begin`` to ``end``, exclusive.

    Those before step 0 come with the first frame.
    """
    timing = node.timing or Timing()
    steps = (timing.delay + k * timing.stride for k in range(node.part.padding))
    return sum(begin <= step < end for step in steps)


def _padded(
    part: Any, count: int, x: Tensor | None, state: Any, rows: Sequence[int] = ()
) -> Tensor | None:
    """Return ``count`` frames of padding and the frames ``x`` that came, None without any.

    ``rows``: streams whose first frame has not come; theirs are padding, too.
    """
    given = [] if x is None else [x]
    if x is not None and rows:
        given = [x.clone()]
        given[0].view(len(state.clock), -1, *x.shape[1:])[list(rows)] = part.value
    if count:
        given.insert(0, part.zeros(count, state))
    return torch.cat(given, part.axis) if len(given) > 1 else next(iter(given), None)


def _run(node: Node, inputs: list[Any], states: Sequence[Any]) -> Any:
    """Return the outputs of a node for those that came of its inputs, None if there are none."""
    part: Any = node.part
    own: Any = None if node.slot < 0 else states[node.slot]
    if isinstance(part, Join):
        return part.join(inputs, own)
    if any(value is None for value in inputs):
        return None
    if node.lender >= 0:
        return part.write(*inputs, states[node.lender])
    if own is None:
        return part.forward(*inputs)
    return part.advance(*inputs[:1], own, *inputs[1:])


class PartGraph(Part):
    """A graph of parts; the last node is its output.

    Streams that were reset in a running batch, or joined it, start where the others are: whatever a
    layer computes for them before their first frame has reached it is forgotten again. Their
    outputs equal a new stream's if they start at a multiple of the stride.
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
        delay = timing.delay if timing else 0
        start = max(0, delay) if isinstance(part, parts.Pad) else max(first, delay)
        slot = -1
        if type(part).start is not Part.start:
            slot, self._slots = self._slots, self._slots + 1
        if writes:
            self._nodes[writes - 1] = self._nodes[writes - 1]._replace(lender=slot)
        pads, passes = isinstance(part, parts.Pad), isinstance(part, parts.Skip)
        passes = passes and part.stride == 1
        node = Node(part, inputs, slot, timing, first, start, passes=passes, pads=pads)
        self._nodes.append(node)
        self._last_use |= dict.fromkeys(inputs, len(self._nodes))
        return len(self._nodes)

    @property
    def first_step(self) -> int:
        """The step of a stream with its first outputs."""
        return self._nodes[-1].start if self._nodes else 0

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
            if part.out_axis == 0:
                merged, shape[1] = 1, 1  # time first, then streams
            values.append(blank((merged, *shape[1:]), state.empty))
        empty = room(batch_size, values[-1], self.out_axis, 0, merged=True)
        frame = [n for k, n in enumerate(clip.shape) if k != self.axis]
        return PartGraphState(zeros(batch_size), empty, zeros(batch_size), tuple(states), frame)

    def forward_step(self, x: Tensor, state: PartGraphState) -> Tensor | None:
        """Take a frame [B, C, ...] of every stream, return the newest output or None.

        ValueError for a frame of another shape; the state stays as it is then.
        """
        one, *rest = state.frame
        check_shape(x.shape, (one * len(state.steps), *rest))
        return super().forward_step(x, state)

    def forward_steps(self, x: Tensor, state: PartGraphState) -> Tensor:
        """Take T frames [B, C, T, ...], return what T steps would, [B, C, T', ...].

        ValueError for frames of another shape; the state stays as it is then.
        """
        one, *rest = state.frame
        rest.insert(self.axis - 1, x.shape[self.axis] if x.dim() > self.axis else 0)
        check_shape(x.shape, (one * len(state.steps), *rest))
        return super().forward_steps(x, state)

    def advance(self, x: Tensor, state: PartGraphState) -> Tensor | None:
        """Take T frames [B, C, T, ...], return the outputs of these steps, if any."""
        count, steps = x.shape[self.axis], state.steps.tolist()
        young = min(steps) < state.peek() and any(min(steps) <= n.first for n in self._nodes)
        if young and count > 1:
            outs = [self.advance(frame, state) for frame in torch.split(x, 1, self.axis)]
            given = [out for out in outs if out is not None]
            return torch.cat(given, self.out_axis) if given else None
        time = state.tick(count)
        settled = time > self.delay
        state.steps += count
        if young and time and any(node.pads for node in self._nodes):
            self._begin([row for row, n in enumerate(steps) if not n], x, state)
        values: list[Any] = [x]
        for node in self._nodes:
            if settled and node.passes and not (young and node.pads):
                values.append(values[node.inputs[0]])
                continue
            inputs = [values[k] for k in node.inputs]
            rows = [row for row, n in enumerate(steps) if n < node.first] if young else ()
            if node.pads:
                begin = time if time else -math.inf
                own, due = state.nodes[node.slot], _due(node, begin, time + count)
                values.append(_padded(node.part, due, inputs[0], own, rows))
                continue
            values.append(_run(node, inputs, state.nodes))
            if rows and node.slot >= 0:
                state.nodes[node.slot].reset(rows)
        out: Tensor | None = values[-1]
        return out

    def _begin(self, rows: Sequence[int], x: Tensor, state: PartGraphState) -> None:
        """Put what a fresh stream has of the padding before its first frame into these rows."""
        if not rows:
            return
        one = x[: x.shape[0] // len(state.steps)].narrow(self.axis, 0, 1)
        fresh, placed = self.start(1, one), self.start(1, one)
        values: list[Any] = [None]
        for node in self._nodes:
            inputs = [values[k] for k in node.inputs]
            if node.pads:
                due = _due(node, -math.inf, 0)
                values.append(_padded(node.part, due, inputs[0], fresh.nodes[node.slot]))
            else:
                values.append(_run(node, inputs, fresh.nodes))
        # Again, from clocks with which these streams end where the batch's clocks are.
        own, new, old = (s.tensors() for s in (state, placed, fresh))
        for name, clock in new.items():
            if name.rpartition(".")[2] == "clock":
                clock.fill_(int(own[name].max()) - int(old[name].max()))
        for node in self._nodes:
            if not node.pads:
                _run(node, [values[k] for k in node.inputs], placed.nodes)
        for name, tensor in own.items():
            if name.startswith("nodes.") and tensor.numel() and not name.endswith("clock"):
                tensor[list(rows)] = new[name]

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
    and for a subclass of ``Sequential`` that overrides ``forward``; ``convert`` takes the latter.
    Where it depends on the dimensions of the clips, the part raises it.
    """
    if isinstance(module, Part):
        return module
    if isinstance(module, nn.Sequential):
        if type(module).forward is not nn.Sequential.forward:
            raise ValueError(f"{type(module).__name__} overrides forward: use convert")
        return Sequential(OrderedDict(module.named_children()))
    if isinstance(module, nn.Module) and (kind := kind_of(module)) is not None:
        return kind.of(module)  # type: ignore[no-any-return]
    if hasattr(module, "init_state") and hasattr(module, "forward_steps"):
        return layers.Rows(module)
    return stateless(module)
