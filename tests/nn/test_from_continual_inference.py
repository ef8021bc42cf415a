"""What continual-inference documents and tests of its modules, in these parts, beside the library.

Compositions of its README are in test_parts.py. Not here, because they have no counterpart: call
modes and hidden states (a state is an argument), ``ParallelDispatch``, shape modules, ONNX,
ptflops, ``pad_end`` (a stream has no end). Dilation over time is here alone.
"""

from __future__ import annotations

from typing import Any

import continual
import pytest
import torch
from torch import Tensor, nn

import costream.nn as co

LENGTH = 24


def share(ours: nn.Module, theirs: nn.Module) -> None:
    """Copy the weights of theirs to ours, in their order."""
    ours.eval()
    theirs.eval()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        own.data.copy_(other.data.view(own.shape))


def stepped(net: Any, clip: Tensor) -> list[Tensor]:
    """Return the outputs of our part, frame by frame."""
    state = net.init_state(len(clip), clip[:, :, 0])
    outs = [net.forward_step(frame, state) for frame in clip.unbind(2)]
    return [out for out in outs if out is not None]


def theirs_stepped(net: Any, clip: Tensor) -> list[Tensor]:
    """Return the outputs of a module of theirs, frame by frame."""
    outs = [net.forward_step(frame) for frame in clip.unbind(2)]
    return [out for out in outs if isinstance(out, Tensor)]


def test_the_quick_start():
    example = torch.randn(1, 1, 5, 3, 3)
    conv = co.Conv3d(in_channels=1, out_channels=1, kernel_size=(3, 3, 3))
    output, state = conv(example), conv.init_state(1, example[:, :, 0])
    firsts = conv.forward_steps(example[:, :, :4], state)
    last = conv.forward_step(example[:, :, 4], state)
    torch.testing.assert_close(output[:, :, : conv.delay], firsts)
    torch.testing.assert_close(output[:, :, conv.delay], last)
    assert (conv.receptive_field, conv.delay) == (3, 2)


CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": 5, "padding": 2},
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 3, "padding": 2, "stride": 2},
    {"kernel_size": 3, "groups": 4},
    {"kernel_size": 1},
    {"kernel_size": 3, "bias": False},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_convolutions(options):
    ours, theirs = co.Conv1d(4, 4, **options), continual.Conv1d(4, 4, **options)
    share(ours, theirs)
    clip = torch.randn(2, 4, LENGTH)
    torch.testing.assert_close(ours(clip), theirs.forward(clip))
    assert ours.receptive_field == theirs.receptive_field
    assert ours.delay == theirs.receptive_field - 1 - theirs.padding[0]
    told = stepped(ours, clip)
    for k, out in enumerate(told):
        torch.testing.assert_close(out, ours(clip)[:, :, k])
    if options.get("stride", 1) == 1:
        for own, other in zip(told, theirs_stepped(theirs, clip), strict=True):
            torch.testing.assert_close(own, other)


POOLS = [
    (co.AvgPool1d(4, 1), continual.AvgPool1d(4, 1)),
    (co.MaxPool1d(3, 1), continual.MaxPool1d(3, 1)),
    (co.AvgPool3d((3, 2, 2), (1, 2, 2)), continual.AvgPool3d((3, 2, 2), (1, 2, 2))),
    (co.MaxPool3d((2, 3, 3), (1, 3, 3)), continual.MaxPool3d((2, 3, 3), (1, 3, 3))),
    (
        co.RunningMean(4, dims=(-2, -1), partial=False),
        continual.AdaptiveAvgPool3d((1, 1, 1), kernel_size=4),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), POOLS)
def test_pools(ours, theirs):
    clip = torch.randn(2, 4, LENGTH) if "1d" in str(ours) else torch.randn(2, 4, LENGTH, 6, 6)
    told, expected = stepped(ours, clip), theirs_stepped(theirs, clip)
    assert told
    for own, other in zip(told[::-1], expected[::-1], strict=False):
        torch.testing.assert_close(own.flatten(), other.flatten())


def test_a_residual_waits_by_itself():
    """Short and explicit form; nested, with a delay of several layers; and without padding."""
    short = co.Residual(co.Conv1d(4, 4, 3, padding=1))
    theirs = continual.Residual(continual.Conv1d(4, 4, 3, padding=1))
    share(short, theirs)
    clip = torch.randn(1, 4, LENGTH)
    torch.testing.assert_close(short(clip), theirs.forward(clip))
    for own, other in zip(stepped(short, clip), theirs_stepped(theirs, clip), strict=True):
        torch.testing.assert_close(own, other)
    nested = co.Residual(
        co.Sequential(
            co.Conv1d(4, 4, 5, padding=2), nn.ReLU(), co.Residual(co.Conv1d(4, 4, 3, padding=1))
        )
    ).eval()
    assert (nested.receptive_field, nested.delay) == (7, 3)
    whole = nested(clip)
    for k, out in enumerate(stepped(nested, clip)):
        torch.testing.assert_close(out, whole[:, :, k])


@pytest.mark.parametrize("reduce", ["sum", "concat", "mul", "max"])
def test_branches_of_different_delays(reduce):
    kernels = (1, 3, 5)
    ours = co.Parallel(*(co.Conv1d(4, 4, k, padding=k // 2) for k in kernels), reduce=reduce)
    theirs = continual.BroadcastReduce(
        *(continual.Conv1d(4, 4, k, padding=k // 2) for k in kernels), reduce=reduce
    )
    share(ours, theirs)
    assert ours.receptive_field == theirs.receptive_field == 5
    clip = torch.randn(1, 4, LENGTH)
    torch.testing.assert_close(ours(clip), theirs.forward(clip))
    for own, other in zip(stepped(ours, clip), theirs_stepped(theirs, clip), strict=True):
        torch.testing.assert_close(own, other)


def test_delays_and_functions():
    clip = torch.randn(1, 4, LENGTH)
    told = stepped(co.Delay(2), clip)
    for k, out in enumerate(told):
        torch.testing.assert_close(out, clip[:, :, k])
    assert len(told) == LENGTH - 2
    ours = co.Sequential(lambda x: 2 * x + 1, co.Conv1d(4, 4, 3))
    theirs = continual.Sequential(
        continual.Multiply(2), continual.Add(1), continual.Conv1d(4, 4, 3)
    )
    share(ours, theirs)
    for own, other in zip(stepped(ours, clip), theirs_stepped(theirs, clip), strict=True):
        torch.testing.assert_close(own, other)


def test_one_of_several_modules_by_the_input():
    ours = co.Conditional(
        lambda x: bool(x.sum() > 0), co.Conv1d(4, 4, 1), co.Stateless(lambda x: -x)
    ).eval()
    for frame in (torch.ones(1, 4), -torch.ones(1, 4)):
        out = ours.forward_step(frame, ours.init_state(1, frame))
        expected = ours(frame[:, :, None])[:, :, 0]
        torch.testing.assert_close(out, expected)
    torch.testing.assert_close(ours(-torch.ones(1, 4, 1)), torch.ones(1, 4, 1))


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers(kind):
    plain = getattr(nn, kind)(4, 6, 2, batch_first=True).eval()
    ours = getattr(co, kind)(4, 6, 2).eval()
    ours.load_state_dict(plain.state_dict())
    clip = torch.randn(2, 4, LENGTH)
    expected = plain(clip.mT)[0]
    for k, out in enumerate(stepped(ours, clip)):
        torch.testing.assert_close(out, expected[:, k], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("query_index", [-1, 0, 2])
def test_single_output_attention(query_index):
    theirs = continual.SingleOutputMultiheadAttention(
        8, 2, sequence_len=6, query_index=query_index, batch_first=True, dropout=0.0
    ).eval()
    ours = co.QueryAttention(8, 2, 6, query_index).eval()
    ours.attention.load_state_dict(theirs.state_dict(), strict=False)
    clip = torch.randn(1, 8, 6)
    window = clip.mT
    expected = nn.functional.multi_head_attention_forward(
        *(window.transpose(0, 1),) * 3, 8, 2,
        ours.attention.in_proj_weight, ours.attention.in_proj_bias, None, None, False, 0.0,
        ours.attention.out_proj.weight, ours.attention.out_proj.bias, training=False,
    )[0][query_index % 6]  # fmt: skip
    told = stepped(ours, clip)
    assert len(told) == 6 - ours.delay
    state = ours.init_state(1)
    outs = [ours.forward_step(frame, state) for frame in clip.unbind(2)]
    torch.testing.assert_close(outs[-1], expected, rtol=1e-4, atol=1e-5)


def test_a_state_is_cleaned_and_may_be_kept():
    """``clean_state``, and ``update_state=False``."""
    net, clip = co.Conv1d(4, 4, 3), torch.randn(1, 4, LENGTH)
    state = net.init_state(1)
    before = net.forward_steps(clip[:, :, :5], state)
    look = net.forward_step(clip[:, :, 5], state.clone())
    torch.testing.assert_close(net.forward_step(clip[:, :, 5], state), look)
    state.reset()
    torch.testing.assert_close(net.forward_steps(clip[:, :, :5], net.init_state(1)), before)


def test_ordinary_modules_become_continual():
    """``co.continual(module)``: of single layers, of a Sequential."""
    plain = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4))
    plain.eval()
    ours, clip = co.as_part(plain), torch.randn(1, 4, LENGTH)
    assert (ours.receptive_field, ours.delay) == (5, 4)
    for k, out in enumerate(stepped(ours, clip)):
        torch.testing.assert_close(out, plain(clip)[:, :, k])
