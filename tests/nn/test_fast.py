"""Fast forms against the readable forms beside them, and what each is for."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from costream.models.skeleton.network import SkeletonNet
from costream.nn import fast
from costream.nn.attention import SingleOutputAttention
from costream.nn.eventful.attention import TokenGrid
from costream.nn.eventful.exact_update import ExactUpdate
from costream.nn.eventful.gates import ChosenTokens, Operations
from costream.nn.fast import compile_depthwise, gelu, layer_norm, linear, swish
from costream.nn.numba_kernels import Depthwise, Product
from costream.nn.nystrom.continual import RetroactiveNystrom, SingleOutputNystrom
from costream.nn.position import RecyclingPositions, RotaryPositions
from costream.nn.simd import F32, LANES, PIXELS, compiled
from costream.nn.video3d.convolution import FrameRing, VolumeStep
from kit.nystrom_oracle import build

# A pair yields what it computes; the form may change between two items.


def layers(bias: bool) -> Iterator[Tensor]:
    pair = nn.ModuleDict({"product": nn.Linear(6, 5, bias=bias), "norm": nn.LayerNorm(6, eps=0.1)})
    x = torch.randn(3, 4, 6)
    nn.init.normal_(pair["norm"].weight)
    yield linear(pair, "product", x)
    yield layer_norm(pair, "norm", x)


def activations() -> Iterator[Tensor]:
    for shape in [(1, 384), (3, 5, 7), (1, 3), (4, 2), (2, 64, 1024)]:
        for x in (torch.randn(shape) * 3, torch.randn(shape).double()):
            for grad in (True, False):
                with torch.set_grad_enabled(grad):
                    yield gelu(x.clone())
                    yield gelu(x.mT.clone())


def steps(module: Any, width: int, more: Callable[[int], tuple[Any, ...]] | None = None) -> Any:
    state = module.init_state()
    for t in range(20):
        yield module.forward_step(torch.randn(1, width), state, *(more(t) if more else ()))


def attention(rotary: bool, **options: Any) -> Iterator[Tensor]:
    turns = RotaryPositions(4).turns
    more = (lambda t: (turns(torch.tensor([t]), torch.zeros(1)),)) if rotary else None
    yield from steps(SingleOutputAttention(16, 4, 7, **options), 16, more)


def nystrom(kind: type, fixed: bool) -> Iterator[Tensor]:
    yield from steps(build(kind, 8, 2, 7, 3, fixed=fixed).float(), 8)


def frames(height: int, width: int, channels: int) -> Iterator[Tensor]:
    ring, stride = torch.randn(2, 4, height, width, channels), 1 + height % 2
    ring[0, 0, 0, 0, 0] = torch.nan
    layer = VolumeStep(nn.Conv3d(channels, 20, 1, (1, stride, stride)))
    yield (beside := layer.product(ring[:, 1], relu=False))
    yield layer.product(ring[:, 0], torch.full((2, 2, *beside.shape[1:]), 9.0)[:, 1], beside)
    stem = VolumeStep(nn.Conv3d(3, 20, (1, 3, 3), (1, 2, 2), (0, 1, 1)))
    memory = torch.empty(2, height + 1, width, 20)
    yield stem.slide(torch.randn(2, 2 * height + 1, 2 * width, 3), memory)
    gate = [torch.randn(shape) for shape in ((20, 3), (3,), (3, 20), (20,))]
    for weights in (gate, []):
        swish(beside, weights)
        yield beside
    swish(line := torch.linspace(-100, 100, 4000).view(1, 1, 1, 4000), [])
    yield line


def volumes(stride: int) -> Iterator[Tensor]:
    options: dict[str, Any] = {"stride": (1, stride, stride), "padding": (0, 1, 1), "groups": 24}
    layer, ring = VolumeStep(nn.Conv3d(24, 24, 3, **options)), FrameRing(3, "zeros")
    state = ring.init_state(2, (7, 12, 24), torch.zeros(1))
    for _ in range(8):
        time = ring.push(torch.randn(2, 7, 12, 24), state, [])
        yield layer.over_time(state, time)


def skeletons(persons: int) -> Iterator[Tensor]:
    bones, options = [(k, 0) for k in range(1, 7)], {"kernel": 5, "padding": "causal", "pool": 2}
    net = SkeletonNet(4, 7, bones, widths=(160, 160, 170), strides=(1, 1, 2), **options).eval()
    frames, state = torch.randn(24, 2, 2, 7, 3), net.init_state(2)
    frames[:, :, persons:] = 0
    for frame in frames:
        output = net.forward_step(frame, state)
        yield torch.zeros(1) if output is None else output.logits


def exact_updates() -> Iterator[Tensor]:
    frame, update = TokenGrid(50, 40, 2, relative=False), ExactUpdate()
    state, buffer = update.init_state(1, frame, torch.zeros(16)), torch.zeros(1, 2000, 48)
    for count in (2000, 10, 900, 40, 0, 3):
        tokens = torch.randperm(2000)[:count].sort().values
        chosen = ChosenTokens((tokens,), (count == 2000,), tokens)
        new = torch.randn(count, 48)
        yield update.step(buffer, new, chosen, state, frame, None, Operations())


PAIRS: dict[str, Callable[[], Iterator[Tensor]]] = {
    "layers": partial(layers, True),
    "layers without bias": partial(layers, False),
    "gelu": activations,
    "positions": lambda: steps(RecyclingPositions(7, 16), 16),
    "attention": partial(attention, False),
    "attention, rotary, no biases": partial(attention, True, qkv_bias=False, out_bias=False),
    "attention, wide heads": lambda: steps(SingleOutputAttention(64, 2, 7), 64),
    "nystrom": partial(nystrom, SingleOutputNystrom, False),
    "nystrom, fixed": partial(nystrom, SingleOutputNystrom, True),
    "nystrom, all rows": partial(nystrom, RetroactiveNystrom, False),
    "frames, small": partial(frames, 2, 3, 5),
    "frames, few": partial(frames, 1, 4, 30),
    "frames, stride": partial(frames, 9, 13, 3),
    "frames, many numbers": partial(frames, 64, 64, 24),
    "depthwise": partial(volumes, 1),
    "depthwise, stride": partial(volumes, 2),
    "skeletons": partial(skeletons, 2),
    "skeletons, one there": partial(skeletons, 1),
    "exact update": exact_updates,
}


def outputs(name: str, forms: tuple[bool, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    pair, out = PAIRS[name](), []
    for form in cycle(forms):
        with fast.use_kernels(form):
            item = next(pair, None)
        if item is None:
            return out
        out.append(item)
    raise AssertionError


@pytest.mark.parametrize("name", PAIRS)
def test_both_forms_agree_and_continue_each_other(name: str) -> None:
    readable = outputs(name, (False,))
    for forms in [(True,), (True, False), (False, True)]:
        torch.testing.assert_close(
            outputs(name, forms), readable, atol=3e-5, rtol=1e-4, equal_nan=True
        )


def test_the_switch_is_put_back_and_chooses_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with fast.use_kernels(False):
        assert not fast.enabled
    with pytest.raises(KeyError), fast.use_kernels(False):
        raise KeyError
    assert fast.enabled
    monkeypatch.setattr(Product, "on", None)
    monkeypatch.setattr(Depthwise, "__call__", None)
    monkeypatch.setattr("costream.nn.eventful.exact_update.StreamUpdate.update", None)
    for name in ("frames, small", "skeletons", "depthwise", "exact update"):
        outputs(name, (False,))
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):
            outputs(name, (True,))


def test_gelu_leaves_its_argument_when_a_gradient_is_wanted() -> None:
    x = torch.randn(1, 384, requires_grad=True)
    before = x.detach().clone()
    with torch.enable_grad():
        gelu(x).sum().backward()
    assert torch.equal(x, before)
    assert x.grad is not None
    assert bool(x.grad.any())


def test_many_numbers_are_divided_among_threads() -> None:
    for threads in (1, 2):  # set back by a fixture
        torch.set_num_threads(threads)
        assert fast.prefers_kernel(1 << 10)
        assert fast.prefers_kernel(1 << 20) == (threads == 1)


def test_compiled_ones_are_for_single_precision_on_a_processor() -> None:
    assert fast.compiles(torch.zeros(1))
    assert not fast.compiles(torch.zeros(1).double())
    assert not fast.compiles(torch.zeros(1, device="meta"))


def test_code_is_compiled_where_there_is_no_place_to_keep_it() -> None:
    names: dict[str, object] = {}
    exec("def double(x):\n    for i in range(len(x)):\n        x[i] *= 2\n", names)  # has no file
    x = np.ones(3, np.float32)
    compiled(F32[::1])(names["double"])(x)  # type: ignore[arg-type]
    assert x.tolist() == [2, 2, 2]


@given(
    batch=st.integers(1, 2),
    count=st.integers(1, 5),
    height=st.integers(1, 9),
    wider=st.integers(0, 14),
    more=st.integers(0, 40),
    stride=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_depthwise_is_a_convolution_of_three_dimensions(
    batch: int, count: int, height: int, wider: int, more: int, stride: int, seed: int
) -> None:
    torch.manual_seed(seed)
    channels, width = LANES + more, (PIXELS - 1) * stride + 1 + wider
    # What lies around the frames must not be read: it would show.
    shape = (batch, count, height, width, channels)
    memory = torch.full((10_000 + torch.Size(shape).numel() + 10_000,), torch.nan)
    frames = memory[10_000:-10_000].view(shape).copy_(torch.randn(shape))
    weight, bias = torch.randn(channels, 1, count, 3, 3), torch.randn(channels)
    layer = compile_depthwise(weight, bias, stride)
    assert isinstance(layer, Depthwise)
    assert layer.suits(frames)
    oldest = seed % count
    volume = frames.roll(-oldest, 1).permute(0, 4, 1, 2, 3).double()
    expected = F.conv3d(
        volume, weight.double(), bias.double(), (1, stride, stride), (0, 1, 1), 1, channels
    )
    out = layer(frames, oldest)
    torch.testing.assert_close(out.double(), expected[:, :, 0].movedim(1, 3), rtol=0, atol=3e-5)


def test_what_depthwise_is_not_for() -> None:
    def made(weight: Tensor, stride: int = 1) -> Depthwise | None:
        return compile_depthwise(weight, torch.zeros(len(weight)), stride)

    layer = made(torch.zeros(LANES, 1, 3, 3, 3), 2)
    assert layer is not None
    assert layer.suits(torch.zeros(1, 3, 1, 2 * PIXELS - 1, LANES))
    assert not layer.suits(torch.zeros(1, 3, 1, 2 * PIXELS - 2, LANES))
    assert made(torch.zeros(LANES - 1, 1, 3, 3, 3)) is None
    assert made(torch.zeros(LANES, 2, 3, 3, 3)) is None
    assert made(torch.zeros(LANES, 1, 3, 5, 5)) is None
    assert made(torch.zeros(LANES, 1, 3, 3, 3), 3) is None
    assert made(torch.zeros(LANES, 1, 3, 3, 3).double()) is None
    assert made(torch.zeros(LANES, 1, 3, 3, 3, device="meta")) is None


# Page faults of a loop that frees one tensor each time round, every time a larger one.
COUNT_FAULTS = """
import resource, sys, torch
from costream.nn.fast import keep_freed_memory
torch.ones(1000)
if sys.argv[1] == "keep":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for k in range(1, 41):
    torch.ones(100_000 * k)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, mode]
    root = Path(__file__).resolve().parents[2]
    return int(subprocess.run(command, check=True, capture_output=True, cwd=root).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_freed_tensors_are_used_again() -> None:
    assert faults("keep") < faults("leave") / 4
