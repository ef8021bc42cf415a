"""Programs of convolutions: PyTorch's calls are the reference, in float64."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from costream.models.audio.efficientat import EfficientAt
from costream.models.audio.yamnet import YamNet
from costream.nn import fast
from costream.nn.chain import Chain, chained
from costream.nn.operation import ConversionError

fast.compile_chains()

ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    F.relu,
    F.relu6,
    torch.sigmoid,
    F.hardswish,
]


class Block(nn.Module):
    """Two convolutions around a depthwise one, with factors of channels, added to the input."""

    def __init__(self, channels: int, kernel: int, stride: int, numbers: tuple[int, int]) -> None:
        super().__init__()
        inner = 4 * channels
        self.before, self.behind = (numbers[0], numbers[0] + numbers[1]), numbers[1]
        self.expand = nn.Conv2d(channels, inner, 1)
        self.depthwise = nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner)
        self.squeeze, self.excite = nn.Linear(inner, channels), nn.Linear(channels, inner)
        self.project = nn.Conv2d(inner, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = ACTIVATIONS[self.before[0]](self.expand(x))
        y = ACTIVATIONS[self.behind](self.depthwise(y))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
        y = self.project(y * gate[:, :, None, None])
        return y.add_(x) if y.shape == x.shape else y


class Small(nn.Module):
    """A convolution of all channels, blocks and a classifier of an odd number of classes."""

    def __init__(self, colours: int, *blocks: Block) -> None:
        super().__init__()
        self.stem = nn.Conv2d(colours, blocks[0].expand.in_channels, 3, 2)
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(blocks[-1].project.out_channels, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.stem(F.pad(x, (0, 1, 0, 1))), inplace=True)
        return self.classifier(self.blocks(y).mean((2, 3)))


def small(seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small(3, Block(8, 3, 1, (1, 4)), Block(8, 5, 2, (2, 0))).eval()


@given(
    channels=st.sampled_from([4, 8, 20]),
    windows=st.lists(
        st.tuples(st.sampled_from([1, 3, 5, 7]), st.integers(1, 2)), min_size=1, max_size=3
    ),
    numbers=st.tuples(*[st.integers(0, len(ACTIVATIONS) - 1)] * 2),
    size=st.tuples(st.integers(2, 75), st.integers(32, 75)),
    colours=st.integers(1, 4),
)
@settings(max_examples=20, deadline=None)
def test_a_program_gives_the_output_of_the_network(channels, windows, numbers, size, colours):
    torch.manual_seed(len(windows))
    net = Small(colours, *(Block(channels, *window, numbers) for window in windows)).eval()
    exact = copy.deepcopy(net).double()
    with torch.inference_mode():
        chain = Chain(net, torch.zeros(1, colours, *size))
        for _ in range(2):
            x = torch.randn(1, colours, *size)
            torch.testing.assert_close(chain(x).double(), exact(x.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(40, 32), (25, 16), (1, 20)])
def test_a_program_may_return_a_map(size, stride):
    block, x = Block(16, 5, stride, (1, 1)).eval(), torch.randn(1, 16, *size)
    with torch.inference_mode():
        out = Chain(block, x)(x)
        torch.testing.assert_close(out, block(x), rtol=1e-5, atol=1e-5)


@given(
    channels=st.integers(1, 9),
    outputs=st.sampled_from([None, 1, 3, 8, 17]),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 2),
    padding=st.integers(0, 3),
    dilation=st.sampled_from([1, 1, 2]),
    size=st.tuples(st.integers(5, 20), st.integers(5, 40)),
    then=st.sampled_from(["nothing", "relu", "product", "factors", "mean"]),
)
@settings(max_examples=120, deadline=None)
def test_a_network_may_begin_with_any_convolution(
    channels, outputs, kernel, stride, padding, dilation, size, then
):
    """``outputs``: None for a convolution of each channel."""
    torch.manual_seed(0)
    groups, outputs = (channels, channels) if outputs is None else (1, outputs)
    span, x = dilation * (kernel - 1) + 1, torch.randn(1, channels, *size)
    assume(min(size) + 2 * padding >= span)
    first = nn.Conv2d(channels, outputs, kernel, stride, padding, dilation, groups)
    squeeze, last = nn.Linear(outputs, outputs), nn.Conv2d(outputs, 5, 1)

    def compute(x: Tensor) -> Tensor:
        dtype = x.dtype
        y = first.to(dtype)(x)
        if then == "relu":
            return F.relu(y)
        if then == "product":
            return last.to(dtype)(y)
        if then == "factors":
            return last.to(dtype)(y * squeeze.to(dtype)(y.mean((2, 3)))[:, :, None, None])
        return y.mean((2, 3)) if then == "mean" else y

    width = (size[1] + 2 * padding - span) // stride + 1
    plain = kernel == stride == 1 and padding == 0
    of_each = groups == channels > 1
    with torch.inference_mode():
        if dilation == 1 and (plain or of_each or width >= 16):
            found = Chain(compute, torch.zeros_like(x))(x)
            exact = compute(x.double())
            torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
        else:
            with pytest.raises(ConversionError):
                Chain(compute, x)


@pytest.mark.parametrize("kind", [EfficientAt, YamNet])
def test_steps_of_a_long_stream_are_those_of_pytorch_and_of_chunks(kind):
    torch.manual_seed(0)
    net = kind(5).eval()
    tokens, states = (
        torch.randn(1, 12, net.hop_frames, net.bands),
        [net.init_state() for _ in "123"],
    )
    with torch.inference_mode():
        together = net.forward_steps(tokens, states[0]).logits
        for k, x in enumerate(tokens.unbind(1)):
            step = net.forward_step(x, states[1]).logits
            with fast.use_kernels(False):
                readable = net.forward_step(x, states[2]).logits
            for expected in (readable, together[:, k]):
                torch.testing.assert_close(step, expected, rtol=1e-5, atol=1e-5)
    for name, value in states[1].tensors().items():
        assert torch.equal(value, states[0].tensors()[name])


def test_a_number_that_is_none_stays_one_until_it_has_left_the_window():
    net = EfficientAt(5, 0.1).eval()
    state, x = net.init_state(), torch.randn(1, net.hop_frames, net.bands)
    with torch.inference_mode():
        missing = x.clone()
        missing[0, 3, 4] = torch.nan
        assert net.forward_step(missing, state).logits.isnan().all()
        for _ in range(net.window - 1):
            assert net.forward_step(x, state).logits.isnan().all()
        assert not net.forward_step(x, state).logits.isnan().any()


@pytest.mark.parametrize("change", ["in place", "loaded", "other data", "other parameter"])
def test_changed_weights_are_noticed(change):
    net, other, x = small(), small(1), torch.randn(1, 3, 32, 40)
    with torch.no_grad():
        before = chained(net, net, x)
        if change == "in place":
            net.stem.weight.mul_(2)
        elif change == "loaded":
            net.load_state_dict(other.state_dict())
        elif change == "other data":
            net.stem.bias.data = other.stem.bias.data
        else:
            net.stem.weight = other.stem.weight
        after = chained(net, net, x)
        torch.testing.assert_close(after, net(x), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(before, after)


@pytest.mark.parametrize(
    "function",
    [
        nn.Conv2d(3, 4, 3, padding=1, dilation=2),
        lambda x: F.max_pool2d(x, 2),
        lambda x: x.softmax(1),
        F.relu,  # of the input, which does not belong to the program
        lambda _: torch.zeros(1, 3),
    ],
)
def test_other_operations_are_left_to_pytorch(function):
    net, x = nn.Module(), torch.randn(1, 3, 32, 40)
    with torch.inference_mode():
        with pytest.raises(ConversionError):
            Chain(function, x)
        assert torch.equal(chained(net, function, x), function(x))


class Layers(nn.Module):
    """Layers for functions that call them in unusual ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.each = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8)
        self.project, self.along = nn.Conv2d(8, 8, 1), nn.Linear(16, 8)

    def edges(self, *args: object, **keywords: object) -> Callable[[Tensor], Tensor]:
        return lambda x: self.each(F.pad(self.first(x), (1, 1, 1, 1), *args, **keywords))

    def sum(self, **keywords: object) -> Callable[[Tensor], Tensor]:
        def compute(x: Tensor) -> Tensor:
            y = F.relu(self.first(x))
            return self.project(self.each(F.pad(y, (1, 1, 1, 1)))).add_(y, **keywords)

        return compute

    def changed_behind_a_reader(self, x: Tensor) -> Tensor:
        y = self.first(x)
        read = self.project(y)
        torch.relu_(y)
        return read

    def own_weights(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.conv2d(
            y, y.mean((2, 3))[:, :, None, None], None, (1, 1), (0, 0), (1, 1), groups=1
        )


LAYERS = Layers().eval()


@pytest.mark.parametrize(
    "function",
    [
        LAYERS.edges(),
        LAYERS.edges("constant", 0),
        LAYERS.edges(mode="constant", value=0.0),
        LAYERS.sum(),
        lambda x: F.relu(input=LAYERS.first(x)),
        lambda x: LAYERS.first(x).mean((2, 3), keepdim=True),
    ],
)
def test_calls_with_keywords_that_change_nothing_are_compiled(function):
    x = torch.randn(1, 3, 12, 16)
    with torch.inference_mode():
        torch.testing.assert_close(Chain(function, x)(x), function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        LAYERS.edges("constant", 1.0),
        LAYERS.edges(value=1.0),
        LAYERS.edges(mode="reflect"),
        LAYERS.sum(alpha=2),
        LAYERS.changed_behind_a_reader,
        LAYERS.own_weights,
        lambda x: F.pad(LAYERS.first(x), (1, 1, 1, 1)),
        lambda x: F.pad(LAYERS.first(x), (1, 1, 1, 1)).mean((2, 3)),
        lambda x: LAYERS.each(F.pad(LAYERS.first(x), (-1, 1, 1, 1))),
        lambda x: LAYERS.each(F.pad(LAYERS.first(x), (1, 1))),
        lambda x: LAYERS.along(LAYERS.first(x)),
        lambda x: LAYERS.first(x[:, [2, 1, 0]]),
        lambda x: LAYERS.first(x) * LAYERS.first(x)[:, :1].mean((2, 3))[:, :, None, None],
        lambda x: F.conv2d(x, LAYERS.first.weight, padding="same"),
        lambda x: LAYERS.first(x).mean((2, 3), dtype=torch.float64),
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"),
    ],
)
def test_calls_that_cannot_be_compiled_as_they_are_are_refused(function):
    x = torch.randn(1, 3, 12, 16)
    with torch.inference_mode():
        with pytest.raises(ConversionError):
            Chain(function, x)
        assert torch.equal(chained(nn.Module(), function, x), function(x))


@pytest.mark.parametrize("x", [torch.zeros(2, 3, 12, 16), torch.zeros(1, 3, 12, 16).double()])
def test_several_inputs_and_float64_are_left_to_pytorch(x):
    with torch.inference_mode(), pytest.raises(ConversionError, match="one input, float32"):
        Chain(copy.deepcopy(LAYERS).to(x.dtype).first, x)


def test_threads_may_share_a_network():
    net, found = small(), {}
    inputs = [torch.randn(1, 3, 64, 64) for _ in range(4)]

    def compute(k: int) -> None:
        with torch.inference_mode():
            found[k] = [chained(net, net, inputs[k]) for _ in range(50)]

    with torch.inference_mode():
        expected = [chained(net, net, x) for x in inputs]
    threads = [threading.Thread(target=compute, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, results in found.items():
        assert all(torch.equal(result, expected[k]) for result in results)
    assert len(found) == 4


@pytest.fixture
def began(monkeypatch):
    """Whether loading begins, for a stream of which a hundred steps are worth it."""
    began = threading.Event()
    monkeypatch.setattr(fast, "compile_chains", began.set)
    monkeypatch.setattr(fast, "STEPS_WORTH_LOADING", 100)
    monkeypatch.delitem(sys.modules, "costream.nn.chain_kernels")
    return began


def test_programs_are_loaded_when_a_stream_has_taken_many_steps(began):
    net = EfficientAt(5, 0.1).eval()
    state, x = net.init_state(), torch.randn(1, net.hop_frames, net.bands)
    with torch.inference_mode():
        for _ in range(3):
            net.forward_step(x, state)
        assert not began.is_set()
        net.forward_step(x, state)
    assert began.wait(90)


def test_programs_are_loaded_for_a_stream_that_is_continued_after_many_steps(began):
    net = EfficientAt(5, 0.1).eval()
    state, x = net.init_state(), torch.randn(1, 20, net.hop_frames, net.bands)
    with torch.inference_mode():
        net.forward_steps(x, state)  # 20 hops, each of which counts 25
        assert not began.is_set()
        net.forward_step(x[:, 0], state)
    assert began.wait(90)
