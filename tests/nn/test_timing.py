from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import continual
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from costream.nn.convolution import TemporalConvolution
from costream.nn.pooling import TemporalMax, TemporalMean
from costream.nn.state import State
from costream.nn.timing import TemporalDelay, Timing, hide_unstarted, in_parallel, in_sequence
from kit.stepping import by_chunks, by_steps, check, chunkings, fresh, places

# Blocks of which each does something of its own with the clock; the width of all is 3.
BLOCKS: dict[str, Callable[[], Any]] = {
    "convolution": lambda: TemporalConvolution(3, 3, 5, padding=2),
    "strided, dilated": lambda: TemporalConvolution(3, 3, 3, stride=2, dilation=2, padding=2),
    "kernel of one": lambda: TemporalConvolution(3, 3, 1, stride=2),
    "delay": lambda: TemporalDelay(4),
    "strided delay": lambda: TemporalDelay(5, 2),
    "mean": lambda: TemporalMean(7, zeros=2),
    "partial mean": lambda: TemporalMean(7, partial=True),
    "maximum": lambda: TemporalMax(3, padding=1),
    "strided, dilated maximum": lambda: TemporalMax(3, 2, 2, padding=1),
}
every_block = pytest.mark.parametrize("block", [make() for make in BLOCKS.values()], ids=BLOCKS)


def values(**fields: int) -> tuple[int, int, int]:
    return fields["rf"], fields["padding"], fields["delay"]


def of(timing: Timing) -> tuple[int, int, int]:
    return timing.receptive_field, timing.padding, timing.delay


def skeleton_layers(strides: list[int], padding: int) -> Timing:
    """Ten blocks of a convolution of 9 and the residual beside it, delayed by 4."""
    blocks = [
        in_parallel(TemporalConvolution(1, 1, 9, stride=s, padding=padding), TemporalDelay(4, s))
        for s in strides
    ]
    return in_sequence(*blocks)


def test_strided_skeleton_networks() -> None:
    layers = skeleton_layers([1, 1, 1, 1, 2, 1, 1, 2, 1, 1], 4)
    assert of(layers) == values(rf=153, padding=76, delay=76)
    network = in_sequence(layers, TemporalMean(75, zeros=19))
    assert of(network) == values(rf=449, padding=152, delay=296)
    assert network.stride == 4
    assert [t for t in range(310) if network.next_output(t) == t] == [296, 300, 304, 308]


def test_skeleton_networks_without_padding() -> None:
    layers = skeleton_layers([1] * 10, 0)
    assert of(layers) == values(rf=81, padding=0, delay=80)
    network = in_sequence(layers, TemporalMean(220))
    assert of(network) == values(rf=300, padding=0, delay=299)
    assert network.stride == 1


def test_branches_of_several_dilations_have_the_delay_of_the_widest() -> None:
    branches = [
        in_sequence(
            TemporalDelay(4 - d), TemporalConvolution(1, 1, 3, dilation=d, padding=d, stride=2)
        )
        for d in (1, 2, 3, 4)
    ]
    pooled = in_sequence(TemporalDelay(3), TemporalMax(3, 2, padding=1))
    plain = in_sequence(TemporalDelay(4), TemporalConvolution(1, 1, 1, stride=2))
    block = in_parallel(*branches, pooled, plain)
    assert of(block) == values(rf=9, padding=4, delay=4)
    assert block.stride == 2


@pytest.mark.parametrize(
    ("blocks", "frames", "expected"),
    [
        (26, 13, values(rf=69, padding=28, delay=40)),
        (26, 16, values(rf=72, padding=28, delay=43)),
        (55, 16, values(rf=130, padding=57, delay=72)),
        (26, 64, values(rf=120, padding=28, delay=91)),
        (55, 64, values(rf=178, padding=57, delay=120)),
    ],
)
def test_x3d(blocks: int, frames: int, expected: tuple[int, int, int]) -> None:
    block = in_parallel(Timing(3, 1), TemporalDelay(1))
    assert of(in_sequence(Timing(5, 2), *[block] * blocks, TemporalMean(frames))) == expected


def test_slow_and_i3d() -> None:
    three, one = Timing(3, 1), Timing()
    slow = in_sequence(*[three] * 9, TemporalMean(8))
    assert of(slow) == values(rf=26, padding=9, delay=16)
    early = [Timing(5, 2), three, three, three, TemporalMax(2, 2)]
    late = [three, one, three, one] + [three, one] * 3 + [one, three, one]
    i3d = in_sequence(*early, *late, TemporalMean(4))
    assert of(i3d) == values(rf=42, padding=17, delay=24)
    assert i3d.stride == 2


def test_branches_that_never_meet_are_refused() -> None:
    with pytest.raises(ValueError, match="different steps"):
        in_parallel(TemporalDelay(1, 2), TemporalDelay(2, 2))
    with pytest.raises(ValueError, match="different steps"):
        in_parallel(TemporalDelay(2, 2), TemporalDelay(2))


@given(st.integers(1, 50), st.data(), st.integers(1, 5), st.integers(0, 200))
def test_outputs_are_counted_as_they_come(
    field: int, data: st.DataObject, stride: int, step: int
) -> None:
    timing = Timing(field, data.draw(st.integers(0, field - 1)), stride)
    steps = range(timing.delay, 500, stride)
    assert timing.next_output(step) == next(t for t in steps if t >= step)
    assert timing.count_outputs(step) == sum(t < step for t in steps)


kernels = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.booleans())


@settings(deadline=None, max_examples=50)
@given(st.lists(kernels, min_size=1, max_size=4))
def test_a_stack_has_the_timing_of_its_sequence(sizes: list[tuple[int, int, int, bool]]) -> None:
    stack = [
        TemporalConvolution(1, 1, k, stride=s, dilation=d, padding=pad * ((k - 1) * d // 2))
        for k, s, d, pad in sizes
    ]
    for conv in stack:
        conv.weight.uniform_(0.5, 1)
    timing = in_sequence(*stack)
    length = timing.receptive_field + 3 * timing.stride
    # Beside the clip itself, for each frame the clip in which that frame is another one.
    clip = torch.rand(length, dtype=torch.float64)
    x = (clip + torch.eye(length)).view(length, length, 1, 1)
    x = torch.cat([clip.view(1, length, 1, 1), x]).float()
    states = [conv.init_state(length + 1, 1) for conv in stack]
    seen: list[int] = []
    for t, frame in enumerate(x.unbind(1)):
        y: Tensor | None = frame
        for conv, state in zip(stack, states, strict=True):
            y = None if y is None else conv.forward_step(y, state)
        if y is not None:
            seen.append(t)
            matters = [k for k in range(length) if y[k + 1] != y[0]]
            oldest = t - timing.receptive_field + 1
            assert not matters or min(matters) >= max(0, oldest)
            assert oldest < 0 or oldest in matters
            assert t in matters
    assert seen == [t for t in range(length) if timing.next_output(t) == t]


@every_block
def test_a_block_says_its_timing(block: Any) -> None:
    timing = in_sequence(block)
    assert (block.receptive_field, block.padding, block.stride) == (
        timing.receptive_field,
        timing.padding,
        timing.stride,
    )
    assert block.delay == block.receptive_field - block.padding - 1


@every_block
def test_a_saved_state_continues_bit_for_bit(block: Any, tmp_path: Path) -> None:
    x = torch.randn(2, 60, 5, 3)
    for length in (1, 13, 30):
        state, restored = fresh(block, x), fresh(block, x)
        by_steps(block, x[:, :length], state)
        state.reset([1])
        save_file(state.tensors(), tmp_path / "state")
        restored.load_tensors(load_file(tmp_path / "state"))
        twins = [state.clone(), copy.deepcopy(state), pickle.loads(pickle.dumps(state)), restored]
        expected = by_steps(block, x[:, length:], state)
        for twin in twins:
            outputs = by_steps(block, x[:, length:], twin)
            assert outputs.keys() == expected.keys()
            assert all(torch.equal(out, expected[t]) for t, out in outputs.items())
            for name, tensor in state.tensors().items():
                assert torch.equal(twin.tensors()[name], tensor)


@every_block
def test_a_stream_that_was_reset_is_as_a_fresh_one(block: Any) -> None:
    x = torch.randn(3, 80, 5, 3, dtype=torch.float64)
    block = copy.deepcopy(block).double()
    late = 24  # a multiple of every stride
    undisturbed = by_steps(block, x, fresh(block, x))
    alone = by_steps(block, x[1:2, late:], fresh(block, x[1:2]))
    for chunks in ([0], [1], [7, 0, 2]):
        state = fresh(block, x)
        by_chunks(block, x[:, :late], state, chunks)
        state.reset([1])
        assert state.clock.tolist() == [late] * 3
        outputs = by_chunks(block, x[:, late:], state, chunks)
        steps = [t for t in undisturbed if t >= late]
        for t, out in zip(steps, outputs.unbind(1), strict=True):
            torch.testing.assert_close(out[[0, 2]], undisturbed[t][[0, 2]], rtol=0, atol=1e-12)
            if t - late >= block.delay:
                torch.testing.assert_close(out[1:2], alone[t - late], rtol=0, atol=1e-12)


@every_block
def test_a_reset_of_all_streams_makes_a_fresh_state(block: Any) -> None:
    x = torch.randn(2, 33, 5, 3)
    state = fresh(block, x)
    expected = by_steps(block, x, state)
    state.reset()
    unused = fresh(block, x).tensors()
    assert all(torch.equal(tensor, unused[name]) for name, tensor in state.tensors().items())
    assert all(torch.equal(out, expected[t]) for t, out in by_steps(block, x, state).items())


@every_block
def test_streams_leave_and_join(block: Any) -> None:
    x = torch.randn(3, 80, 5, 3, dtype=torch.float64)
    block = copy.deepcopy(block).double()
    whole = by_steps(block, x[:2], fresh(block, x[:2]))
    joined = by_steps(block, x[2:, 24:], fresh(block, x[2:]))
    running = fresh(block, x[:2])
    by_steps(block, x[:2, :24], running)
    state = type(running).cat([running.take([1]), fresh(block, x[2:])])
    for t, out in by_steps(block, x[1:, 24:], state).items():
        torch.testing.assert_close(out[:1], whole[t + 24][1:], rtol=0, atol=1e-12)
        if t in joined:
            torch.testing.assert_close(out[1:], joined[t], rtol=0, atol=1e-12)


def test_streams_of_different_clocks_do_not_step_together() -> None:
    delay, x = TemporalDelay(3), torch.zeros(1, 9, 2)
    states = [fresh(delay, x) for _ in range(2)]
    by_steps(delay, x, states[0])
    by_steps(delay, x[:, :4], states[1])
    state = type(states[0]).cat(states)
    with pytest.raises(ValueError, match=r"clocks \[9, 4\]"):
        delay.forward_step(torch.zeros(2, 2), state)


@every_block
def test_a_batch_of_another_size_is_refused(block: Any) -> None:
    x = torch.zeros(2, 5, 4, 3)
    state = fresh(block, x)
    others = (x[:1], x[[0, 0, 1]], x[:, :, :1], x[..., :1], x.view(4, 5, 2, 3), x[:, :, 0])
    for other in others:
        with pytest.raises(ValueError, match="frame of shape"):
            block.forward_step(other[:, 0], state)
        with pytest.raises(ValueError, match="frame of shape"):
            block.forward_steps(other, state)
    assert state.clock.tolist() == [0, 0]


@pytest.mark.long
@every_block
def test_nothing_goes_wrong_in_20000_steps(block: Any) -> None:
    x = torch.randn(2, 20_000, 2, 3, dtype=torch.float64)
    block = copy.deepcopy(block).double()
    expected = block(x)[:, : in_sequence(block).count_outputs(20_000)]
    check(block, x, expected, [1000, 1, 0, 777])


@every_block
def test_a_state_keeps_no_gradient(block: Any) -> None:
    with torch.enable_grad():
        x = torch.randn(1, 12, 2, 3, requires_grad=True)
        state = fresh(block, x)
        by_steps(block, x[:, :6], state)
        block.forward_steps(x[:, 6:], state)
    assert not any(tensor.requires_grad for tensor in state.tensors().values())


PEERS = [
    *((continual.Delay(n), TemporalDelay(n)) for n in (1, 4)),
    *((continual.AvgPool1d(n, 1), TemporalMean(n)) for n in (1, 3, 8)),
    *(
        (
            continual.Conv1d(3, 5, k, stride=s, padding=p),
            TemporalConvolution(3, 5, k, stride=s, padding=p),
        )
        for k in (2, 3, 9)
        for s in (1, 2, 3)
        for p in (0, 1)
    ),
]


@pytest.mark.parametrize(("theirs", "ours"), PEERS)
def test_steps_are_those_of_continual_inference(theirs: Any, ours: Any) -> None:
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 60, 1, 3)
    outputs = by_steps(ours, x, fresh(ours, x))
    for t, row in enumerate(x[:, :, 0].unbind(1)):
        out = theirs.forward_step(row)
        assert isinstance(out, Tensor) == (t in outputs)
        if t in outputs:
            torch.testing.assert_close(outputs[t][:, 0], out, rtol=0, atol=1e-5)


def test_costs_are_of_one_step() -> None:
    assert TemporalMean(75).count_macs(256) == 3 * 256
    assert TemporalMax(3).count_macs(256) == 2 * 256
    assert TemporalConvolution(64, 128, 9, stride=2).count_macs(50) == 50 * 9 * 64 * 128


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (partial(TemporalConvolution, 1, 1), {"kernel": 0}),
        (partial(TemporalConvolution, 1, 1), {"kernel": 3, "stride": 0}),
        (partial(TemporalConvolution, 1, 1), {"kernel": 3, "dilation": 0}),
        (partial(TemporalConvolution, 1, 1), {"kernel": 3, "padding": 3}),
        (partial(TemporalConvolution, 1, 1), {"kernel": 3, "padding": -1}),
        (partial(TemporalConvolution, 1, 1), {"kernel": 3, "padding": (2, -1)}),
        (partial(TemporalConvolution, 1, 1), {"kernel": 1, "padding": (1, 0)}),
        (TemporalMean, {"window": 0}),
        (TemporalMean, {"window": 3, "zeros": 3}),
        (TemporalMean, {"window": 3, "zeros": 1, "partial": True}),
        (TemporalDelay, {"steps": -1}),
        (TemporalDelay, {"steps": 3, "stride": 0}),
    ],
)
def test_sizes_that_make_no_sense_are_refused(build: Callable[..., Any], options: Any) -> None:
    with pytest.raises(ValueError, match=r"kernel|padding|window|delay of"):
        build(**options)


class Stack:
    """Two convolutions and a maximum whose biases would reach a stream before it has begun."""

    def __init__(self) -> None:
        first = TemporalConvolution(3, 3, 5, padding=1)
        second = TemporalConvolution(3, 3, 5, padding=3, stride=2)
        self.blocks = [first, second, TemporalMax(3, padding=1)]
        self.delays = [0, first.delay, in_sequence(first, second).delay]
        self.delay = in_sequence(*self.blocks).delay

    def init_state(self, x: Tensor) -> list[State]:
        return [fresh(block, x) for block in self.blocks]

    def step(self, x: Tensor, states: list[State], steps: Tensor) -> Tensor | None:
        y: Tensor | None = x
        for block, state, delay in zip(self.blocks, states, self.delays, strict=True):
            if y is None:
                return None
            nothing = float("-inf") if isinstance(block, TemporalMax) else 0.0
            y = block.forward_step(hide_unstarted(y, steps, delay, nothing), state)  # type: ignore
        return y


def test_a_late_stream_in_a_stack_is_as_a_fresh_one() -> None:
    stack, late = Stack(), 24
    x = torch.randn(2, 80, 5, 3)
    states, steps = stack.init_state(x), torch.zeros(2, dtype=torch.int64)
    alone, began = stack.init_state(x[1:]), torch.zeros(1, dtype=torch.int64)
    compared = 0
    for t, frame in enumerate(x.unbind(1)):
        if t == late:
            steps[1] = 0
            for state in states:
                state.reset([1])
        out = stack.step(frame, states, steps)
        steps += 1
        if t < late:
            continue
        expected = stack.step(frame[1:], alone, began)
        began += 1
        assert out is not None or expected is None
        if expected is not None:
            assert out is not None
            torch.testing.assert_close(out[1:], expected)
            compared += 1
    assert compared == len(range(stack.delay, 80 - late, 2))


def test_hiding_leaves_streams_alone_that_have_begun() -> None:
    x = torch.ones(3, 2, 2)
    assert hide_unstarted(x, torch.tensor([4, 5, 9]), 4) is x
    hidden = hide_unstarted(x, torch.tensor([3, 4, 0]), 4)
    assert hidden[:, 0, 0].tolist() == [0, 1, 0]


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.integers(0, 20), st.integers(1, 4), places, st.integers(0, 60), chunkings)
def test_output_number_j_is_frame_j_times_the_stride(
    steps: int, stride: int, place: tuple[int, ...], length: int, chunks: list[int]
) -> None:
    delay = TemporalDelay(steps, stride)
    x = torch.randn(2, length, *place, 3, dtype=torch.float64)
    assert torch.equal(delay(x), x[:, ::stride])
    check(delay, x, x[:, : max(0, length - steps) : stride], chunks)


def test_frames_that_a_stride_discards_are_not_kept() -> None:
    delay = TemporalDelay(8, 4)
    assert delay.init_state(2, (5, 3), torch.zeros(1)).frames.shape == (2, 3, 5, 3)


def test_an_output_stays_as_it_is_and_the_past_lasts_one_step() -> None:
    delay = TemporalDelay(2)
    states = [delay.init_state(1, (1,), torch.zeros(1)) for _ in range(2)]
    frames = torch.arange(20.0).view(-1, 1, 1)
    kept = [delay.forward_step(x, states[0]) for x in frames]
    assert [out.item() for out in kept if out is not None] == list(range(18))
    for number, x in enumerate(frames):
        past = delay.past(x, states[1])
        if past is not None:
            assert past.item() == number - 2
            assert past.data_ptr() in range(
                states[1].frames.data_ptr(), states[1].frames.data_ptr() + 12
            )


def test_a_frame_may_be_changed_after_its_step() -> None:
    delay = TemporalDelay(1)
    state, x = delay.init_state(1, (2,), torch.zeros(1)), torch.ones(1, 2)
    delay.forward_step(x, state)
    x.zero_()
    assert delay.forward_step(x, state).tolist() == [[1, 1]]
