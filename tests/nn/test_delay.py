from __future__ import annotations

import continual
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.timing import Delay
from kit.stepping import by_steps, check, chunkings, fresh, places


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 20), st.integers(1, 4), places, st.integers(0, 60), chunkings)
def test_output_number_j_is_frame_j_times_the_stride(
    steps: int, stride: int, place: tuple[int, ...], length: int, chunks: list[int]
) -> None:
    delay = Delay(steps, stride)
    x = torch.randn(2, length, *place, 3, dtype=torch.float64)
    assert torch.equal(delay(x), x[:, ::stride])
    check(delay, x, x[:, : max(0, length - steps) : stride], chunks)


@pytest.mark.parametrize("steps", [1, 4])
def test_steps_are_those_of_continual_inference(steps: int) -> None:
    theirs, ours = continual.Delay(steps), Delay(steps)
    x = torch.randn(2, 30, 3)
    outputs = by_steps(ours, x, fresh(ours, x))
    for t, row in enumerate(x.unbind(1)):
        out = theirs.forward_step(row)
        assert isinstance(out, Tensor) == (t in outputs)
        assert t not in outputs or torch.equal(out, outputs[t])


def test_nothing_goes_wrong_in_20000_steps() -> None:
    x = torch.arange(20_000.0, dtype=torch.float64).view(1, -1, 1)
    check(Delay(7, 3), x, x[:, :-7:3], [1000, 1, 0, 777])


def test_frames_that_a_stride_discards_are_not_kept() -> None:
    delay = Delay(8, 4)
    assert delay.init_state(2, (5, 3), torch.zeros(1)).frames.shape == (2, 3, 5, 3)


def test_an_output_stays_as_it_is_and_the_past_lasts_one_step() -> None:
    delay = Delay(2)
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
    delay = Delay(1)
    state, x = delay.init_state(1, (2,), torch.zeros(1)), torch.ones(1, 2)
    delay.forward_step(x, state)
    x.zero_()
    assert delay.forward_step(x, state).tolist() == [[1, 1]]


def test_a_state_keeps_no_gradient() -> None:
    delay = Delay(3)
    state = delay.init_state(1, (2,), torch.zeros(1))
    with torch.enable_grad():
        x = torch.randn(1, 12, 2, requires_grad=True)
        delay.forward_step(x[:, 0], state)
        delay.forward_steps(x[:, 1:], state)
    assert not state.frames.requires_grad


@pytest.mark.parametrize(("steps", "stride"), [(-1, 1), (3, 0)])
def test_sizes_that_make_no_sense_are_refused(steps: int, stride: int) -> None:
    with pytest.raises(ValueError, match="delay of"):
        Delay(steps, stride)
