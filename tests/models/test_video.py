"""Continual 3D networks: steps against clips, in every form."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from costream.models.video.video3d.network import VideoNet, WindowVideoNet
from costream.nn.video3d.folded import VideoState
from kit.video_nets import KINDS, plain, small_net, stepped, video

pytestmark = pytest.mark.usefixtures("no_grad")


def same(given: Tensor, expected: Tensor, atol: float = 1e-11) -> None:
    torch.testing.assert_close(given, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [19, 32])
def test_steps_are_the_clip_without_padding_in_time(kind: str, size: int) -> None:
    net = small_net(kind, size=size)
    x = video(net.receptive_field + 5, size=size)
    outputs = stepped(net, x)
    assert list(outputs) == list(range(net.delay, x.shape[1], net.stride))
    full = [t for t in outputs if t >= net.receptive_field - 1]
    assert len(full) >= 2
    for t in full:
        same(outputs[t], plain(net, x[:, t + 1 - net.receptive_field : t + 1]))


@pytest.mark.parametrize("kind", KINDS)
def test_replicate_is_a_first_frame_that_has_always_been_there(kind: str) -> None:
    net = small_net(kind, start="replicate")
    x = video(net.receptive_field + 3)
    outputs = stepped(net, x)
    assert list(outputs) == list(range(0, x.shape[1], net.stride))
    before = x[:, :1].expand(-1, net.receptive_field - 1, -1, -1, -1)
    endless = torch.cat([before, x], 1)
    for t in (0, net.stride, 4 * net.stride, max(outputs)):
        same(outputs[t], plain(net, endless[:, t : t + net.receptive_field]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["zeros", "replicate"])
def test_streams_over_clips_have_gradients_and_are_the_steps(kind: str, start: str) -> None:
    net = small_net(kind, start=start)
    x = video(net.receptive_field + 2, batch=2)
    with torch.enable_grad():
        whole = net.forward_stream(x)
        whole.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    same(torch.stack(list(stepped(net, x).values()), 1), whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2, 7])
def test_the_ordinary_network_has_zeros_around_its_clip(kind: str, length: int) -> None:
    net, x = small_net(kind), video(length, batch=2)
    same(net(x), plain(net, x, same=True))


@pytest.mark.parametrize("start", ["zeros", "replicate"])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_steps(kind: str, start: str) -> None:
    net = small_net(kind, start=start)
    x = video(net.delay + 7)
    expected = torch.stack(list(stepped(net, x).values()), 1)
    for lengths in ([5, 0, 1, 8], [1000]):
        state, parts, at = net.init_state(1), [], 0
        while at < x.shape[1]:
            length = lengths[len(parts) % len(lengths)]
            parts.append(net.forward_steps(x[:, at : at + length], state).logits)
            at += length
        same(torch.cat(parts, 1), expected)


@pytest.mark.parametrize("start", ["zeros", "replicate"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_reset_while_the_others_continue(kind: str, start: str) -> None:
    net = small_net(kind, start=start)
    x = video(2 * net.receptive_field, batch=3)
    expected = stepped(net, x)
    state, at = net.init_state(3), 2 * net.stride
    stepped(net, x[:, :at], state)
    state.reset([1])
    assert net.warmup(state) == (True, True, True)
    later = stepped(net, x[:, at:], state)
    alone = stepped(net, x[1:2, at:])
    for t, logits in later.items():
        same(logits[[0, 2]], expected[t + at][[0, 2]])
        if t in alone:
            same(logits[1:2], alone[t])
    assert max(later) in alone
    assert net.warmup(state) == (False, False, False)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_join_leave_and_are_put(kind: str) -> None:
    net = small_net(kind, start="replicate")
    x = video(8, batch=2)
    state = net.init_state(1)
    stepped(net, x[:1, :4], state)
    both = VideoState.cat([state, net.init_state(1)])
    joined = stepped(net, x[:, 4:], both)
    alone = stepped(net, x[:1])
    fresh = stepped(net, x[1:, 4:])
    for t, logits in joined.items():
        same(logits, torch.cat([alone[t + 4], fresh[t]]))
    taken = both.take([1])
    following = video(2)
    same(
        net.forward_steps(following, taken).logits,
        net.forward_steps(following, both.take([1])).logits,
        0.0,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_stays_exact_over_a_long_stream(kind: str) -> None:
    net = small_net(kind, size=40)  # wide enough for compiled loops
    single, state = copy.deepcopy(net).float(), None
    state = single.init_state(2)
    last = None
    x = video(net.receptive_field + 150, 2, 40)
    for frame in x.float().unbind(1):
        last = single.forward_step(frame, state) or last
    end = x.shape[1] - (x.shape[1] - 1 - net.delay) % net.stride
    expected = plain(net, x[:, end - net.receptive_field : end])
    error = (last.logits.double() - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def test_frames_of_another_size_and_batch_are_refused() -> None:
    net = small_net("x3d")
    for shape in ((1, 3, 18, 19), (2, 3, 19, 19), (1, 1, 19, 19)):
        with pytest.raises(ValueError, match="frame of shape"):
            net.forward_step(torch.zeros(shape, dtype=torch.float64), net.init_state(1))


def test_new_weights_are_folded_when_a_stream_begins() -> None:
    net, x = small_net("x3d", start="replicate"), video(1)
    before = stepped(net, x)[0]
    net.encoder.conv_bn.bias += 1
    assert not torch.allclose(stepped(net, x)[0], before)
    net.load_state_dict(small_net("x3d").state_dict())
    same(stepped(net, x)[0], before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_is_the_clip_over_the_last_frames(kind: str) -> None:
    sizes = KINDS[kind]
    torch.manual_seed(0)
    net = WindowVideoNet(3, kind, 19, **sizes, window=5, hop=2).double().eval()
    x = video(9, batch=2)
    outputs = stepped(net, x)
    first = 1 if kind == "i3d" else 0
    assert list(outputs) == list(range(first, 9, 2))
    for t, logits in outputs.items():
        same(logits, net(x[:, max(0, t - 4) : t + 1]))
    state = net.init_state(2)
    stepped(net, x[:, :4], state)
    state.reset([0])
    later = stepped(net, x[:, 4:], state)
    last = max(later)
    same(later[last], torch.cat([net(x[:1, 4 : last + 5]), net(x[1:, last : last + 5])]))
    assert net.warmup(state) == (False, False)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "c3d"}, "kind 'c3d' is not one of"),
        ({"start": "ones"}, "start 'ones' is not one of"),
        ({"size": 0}, "size 0"),
        ({"depths": (1,)}, "2 widths and 1 depths"),
        ({"head": ()}, "x3d with a head of 0 layers"),
    ],
)
def test_arguments_that_do_not_go_together(wrong: dict[str, object], message: str) -> None:
    good = {"kind": "x3d", "size": 19, **KINDS["x3d"]}
    with pytest.raises(ValueError, match=message):
        VideoNet(3, **{**good, **wrong})
