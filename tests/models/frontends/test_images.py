"""The picture frontend: steps equal the clip, streams do not touch, nothing else gets in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from costream.models.oad.tdn import TemporalDifferenceNet

BOX = (48, 36)
STEPS = 40  # beyond twice the longest lag


def network(**changes):
    torch.manual_seed(3)
    net = TemporalDifferenceNet(
        **{
            "box": BOX,
            "widths": (8, 8, 12, 16),
            "blocks": 1,
            "motion_width": 4,
            "lags": (1, 4, 16),
            **changes,
        }
    )
    for part in net.modules():  # statistics as after training, so that nothing vanishes
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.05, 0.2)
    return net.eval()


@pytest.fixture(scope="module")
def net():
    return network()


@pytest.fixture(scope="module")
def frames():
    generator = torch.Generator().manual_seed(5)
    return torch.randint(
        0, 256, (3, STEPS, 3, BOX[1], BOX[0]), dtype=torch.uint8, generator=generator
    )


@torch.inference_mode()
def stepped(net, frames, state=None):
    state = net.init_state(len(frames)) if state is None else state
    return torch.stack([net.forward_step(frames[:, t], state) for t in range(frames.shape[1])], 1)


@torch.inference_mode()
def clip(net, frames):
    return net(frames)


@pytest.mark.parametrize("lags", [(), (1,), (3, 5), (1, 4, 16)])
def test_steps_equal_the_clip(frames, lags):
    net = network(lags=lags)
    assert clip(net, frames).std() > 0.05
    torch.testing.assert_close(stepped(net, frames), clip(net, frames), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lags", [(), (1, 4, 16)])
@pytest.mark.parametrize("chunks", [[40], [1, 2, 15, 16, 6], [17, 23]])
def test_chunks_equal_steps_for_streams_that_began_at_other_times(frames, lags, chunks):
    net = network(lags=lags)
    states = [net.init_state(3) for _ in range(2)]
    for state in states:
        stepped(net, frames[:, :5], state)
        state.reset([1])
    with torch.inference_mode():
        parts = [net.forward_steps(part, states[0]) for part in frames.split(chunks, 1)]
    expected = stepped(net, frames, states[1])
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-5)
    for name, tensor in states[0].tensors().items():
        torch.testing.assert_close(tensor, states[1].tensors()[name], rtol=0, atol=1e-5)


def test_clip_shorter_than_the_lags(net, frames):
    short = frames[:, :3]
    torch.testing.assert_close(clip(net, short), clip(net, frames)[:, :3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("lag", [1, 4, 16])
def test_motion_reaches_as_far_back_as_the_lag(frames, lag):
    net = network(lags=(lag,))
    changed = frames.clone()
    changed[:, 0] = 255 - changed[:, 0]
    differs = (clip(net, frames) - clip(net, changed)).abs().amax((0, 2)) > 1e-6
    assert differs.nonzero().flatten().tolist() == [0, lag]


def test_first_frames_have_no_motion(net, frames):
    still = network(lags=(1, 4, 16))
    one = frames[:, :1].expand(-1, 8, -1, -1, -1)
    tokens = stepped(still, one)
    torch.testing.assert_close(tokens, tokens[:, :1].expand_as(tokens), rtol=0, atol=1e-5)


def test_moments_equal_the_clip(net, frames):
    at = [20, 39]
    lagged = torch.stack([frames[0, [t, *(t - lag for lag in net.lags)]] for t in at])
    with torch.inference_mode():
        tokens, focus = net.forward_moments(lagged)
        still, _ = net.forward_moments(frames[:1, [0, 0, 0, 0]])
    torch.testing.assert_close(tokens, clip(net, frames)[0, at], rtol=0, atol=1e-5)
    torch.testing.assert_close(still, clip(net, frames)[:1, 0], rtol=0, atol=1e-5)
    assert focus.shape == (2, -(-BOX[1] // 8), -(-BOX[0] // 8))


def test_a_stream_may_join_late(net, frames):
    early = net.init_state(2)
    stepped(net, frames[:2, :7], early)
    state = type(early).cat([early, net.init_state(1)])
    mixed = torch.cat((frames[:2, 7:], frames[2:, :-7]))
    after = stepped(net, mixed, state)
    torch.testing.assert_close(after[:2], clip(net, frames[:2])[:, 7:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after[2:], clip(net, frames[2:])[:, :-7], rtol=1e-5, atol=1e-5)


def test_the_ring_is_written_in_place(net, frames):
    state = net.init_state(3)
    place = state.ring.data_ptr()
    stepped(net, frames[:, :20], state)
    assert state.ring.data_ptr() == place
    assert state.count.tolist() == [20, 20, 20]


@pytest.mark.parametrize("shape", [(36, 48), (20, 48), (36, 20), (1, 1), (35, 47)])
def test_prepare_centres_on_black(net, shape):
    rgb = np.random.default_rng(0).integers(1, 256, (*shape, 3), dtype=np.uint8)
    out = net.prepare(rgb)
    assert out.shape == (3, 36, 48)
    assert out.dtype == np.uint8
    rows, columns = np.flatnonzero(out.any((0, 2))), np.flatnonzero(out.any((0, 1)))
    assert (len(rows), len(columns)) == shape
    assert abs(rows[0] - (35 - rows[-1])) <= 1
    assert abs(columns[0] - (47 - columns[-1])) <= 1
    inside = out[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    assert np.array_equal(inside.transpose(1, 2, 0), rgb)


def test_cost_of_the_shipped_size():
    assert 30e6 < TemporalDifferenceNet().count_macs() < 100e6
