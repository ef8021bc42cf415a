"""Compiled steps of continual 3D networks: PyTorch's steps are the reference, in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from costream.models.video.video3d.network import VideoNet
from costream.nn import fast
from costream.nn.video3d.folded import VideoState
from kit.choices import taking
from kit.video_nets import small_net, video

fast.compile_chains()
pytestmark = pytest.mark.usefixtures("no_grad", "always")


@pytest.fixture
def always() -> Iterator[None]:
    """Take the program whatever it takes: the processor may be busy."""
    with taking("compiled"):
        yield


def single(size: int = 72, start: str = "zeros") -> tuple[VideoNet, VideoNet]:
    """Return a network in float32 and the same in float64."""
    net = small_net("x3d", size=size, start=start)
    return copy.deepcopy(net).float(), net


def steps(net: VideoNet, x: Tensor, state: VideoState, compiled: bool = True) -> list[Tensor]:
    """Return the logits of the steps that have some."""
    with fast.use_kernels(compiled):
        outputs = [net.forward_step(frame, state) for frame in x.unbind(1)]
    return [out.logits for out in outputs if out is not None]


def close(given: list[Tensor], expected: list[Tensor]) -> None:
    assert len(given) == len(expected) > 0
    for logits, exact in zip(given, expected, strict=True):
        assert (logits - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("start", ["zeros", "replicate"])
@pytest.mark.parametrize("size", [40, 67])
def test_compiled_steps_are_those_of_double_precision(size: int, start: str, streams: int) -> None:
    net, exact = single(size, start)
    x = video(net.delay + 9, streams, size)
    state = net.init_state(streams)
    close(steps(net, x.float(), state), steps(exact, x, exact.init_state(streams)))
    assert state.buffers is not None


@pytest.mark.parametrize("before", [True, False])
def test_a_state_that_is_saved_in_the_middle_continues_in_the_other_form(before: bool) -> None:
    net, exact = single()
    x = video(net.delay + 10, 1, 72)
    middle = net.delay + 5
    first, second = net.init_state(), net.init_state()
    early = steps(net, x[:, :middle].float(), first, compiled=before)
    assert (first.buffers is not None) == before
    second.load_tensors({name: t.clone() for name, t in first.tensors().items()})
    copied = first.clone()
    late = steps(net, x[:, middle:].float(), second, compiled=not before)
    close(early + late, steps(exact, x, exact.init_state()))
    again = steps(net, x[:, middle:].float(), copied, compiled=before)
    close(again, late)


def test_the_form_may_change_at_any_step() -> None:
    net, exact = single()
    x = video(net.delay + 12, 2, 72)
    state, outputs = net.init_state(2), []
    for k, frame in enumerate(x.float().split(1, 1)):
        outputs += steps(net, frame, state, compiled=k % 3 > 0)
        assert (state.buffers is not None) == (k % 3 > 0 and k >= net.encoder.layer_timing.delay)
    close(outputs, steps(exact, x, exact.init_state(2)))


@pytest.mark.parametrize("start", ["zeros", "replicate"])
def test_chunks_and_streams_that_are_reset(start: str) -> None:
    net, exact = single(40, start)
    x = video(2 * net.receptive_field + 4, 2, 40)
    state, reference, at = net.init_state(2), exact.init_state(2), net.receptive_field
    for each, held, dtype in ((net, state, torch.float32), (exact, reference, torch.float64)):
        each.forward_steps(x[:, :at].to(dtype), held)
        held.reset([1])
    given = net.forward_steps(x[:, at:].float(), state).logits
    expected = exact.forward_steps(x[:, at:], reference).logits
    close([*given.unbind(1)], [*expected.unbind(1)])
    assert state.buffers is not None


def test_streams_leave_and_join() -> None:
    net, exact = single(40, "replicate")
    x = video(16, 2, 40)
    both, reference = net.init_state(2), exact.init_state(2)
    steps(net, x[:, :8].float(), both)
    steps(exact, x[:, :8], reference)
    turned = VideoState.cat([both.take([1]), both.take([0])])
    expected = steps(exact, x[:, 8:], reference)
    close(steps(net, x[[1, 0], 8:].float(), turned), [out[[1, 0]] for out in expected])


def test_a_number_that_is_none_leaves_with_its_frame() -> None:
    net, _ = single(40)
    state = net.init_state()
    x = video(net.receptive_field + 1, 1, 40).float()
    steps(net, video(net.delay + 3, 1, 40).float(), state)
    x[0, 0, 1, 7, 7] = math.nan
    outputs = steps(net, x, state)
    assert all(out.isnan().all() for out in outputs[:-1])
    assert not outputs[-1].isnan().any()


@pytest.mark.parametrize(("kind", "size"), [("slow", 32), ("i3d", 32), ("x3d", 19)])
def test_networks_without_a_program_step_by_pytorch(kind: str, size: int) -> None:
    net = small_net(kind, size=size)
    x = video(net.delay + 2 * net.stride, 1, size)
    state = (single := copy.deepcopy(net).float()).init_state()
    close(steps(single, x.float(), state), steps(net, x, net.init_state()))
    assert state.buffers is None


def test_changed_weights_are_used_when_a_stream_begins() -> None:
    net, exact = single(40)
    x = video(net.delay + 3, 1, 40)
    steps(net, x.float(), net.init_state())
    for each in (net, exact):
        each.encoder.stem.conv_xy.weight.mul_(2)
    close(steps(net, x.float(), net.init_state()), steps(exact, x, exact.init_state()))
