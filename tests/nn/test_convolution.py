from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from costream.nn.convolution import TemporalConvolution, TimeFrequencyConvolution
from kit.stepping import by_chunks, by_steps, check, chunkings, fresh, places


@st.composite
def convolutions(draw: st.DrawFn) -> TemporalConvolution:
    kernel, dilation = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    reach = (kernel - 1) * dilation
    sides = st.tuples(st.integers(0, reach), st.integers(0, 5))
    conv = TemporalConvolution(
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        kernel,
        stride=draw(st.integers(1, 4)),
        dilation=dilation,
        padding=draw(st.sampled_from([0, reach // 2, (reach, 0)]) | sides),
        bias=draw(st.booleans()),
    )
    return conv.double()


def ordinary(conv: TemporalConvolution, x: Tensor, right: int) -> Tensor:
    """torch.nn.functional.conv1d at each position."""
    rows = x.reshape(*x.shape[:2], -1, x.shape[-1]) if x.shape[1] else x.new_zeros(1, 0, 1, 1)
    rows = F.pad(rows, (0, 0, 0, 0, conv.padding, right))
    if not x.shape[1] or rows.shape[1] < conv.receptive_field:
        return x.new_zeros(x.shape[0], 0, *x.shape[2:-1], conv.out_width)
    weight, options = conv.weight.contiguous(), (conv.bias, conv.stride, 0, conv.dilation)
    out = [F.conv1d(p.transpose(1, 2), weight, *options) for p in rows.unbind(2)]
    return torch.stack(out, 1).permute(0, 3, 1, 2).reshape(len(x), -1, *x.shape[2:-1], len(weight))


@pytest.mark.long
@settings(deadline=None, max_examples=200)
@given(convolutions(), st.integers(1, 3), places, st.integers(0, 90), chunkings)
def test_clip_steps_and_chunks_are_the_ordinary_convolution(
    conv: TemporalConvolution, batch: int, place: tuple[int, ...], length: int, chunks: list[int]
) -> None:
    x = torch.randn(batch, length, *place, conv.in_width, dtype=torch.float64)
    if length:
        clip = ordinary(conv, x, conv.right_padding)
        torch.testing.assert_close(conv(x), clip, rtol=0, atol=1e-12)
    check(conv, x, ordinary(conv, x, 0), chunks)


@pytest.mark.parametrize("chunks", [[0], [1], [3], [2, 5, 0]])
def test_a_kernel_of_one_keeps_its_phase(chunks: list[int]) -> None:
    conv = TemporalConvolution(1, 1, 1, stride=2, bias=False)
    nn.init.ones_(conv.weight)
    x = torch.arange(21.0).view(1, -1, 1, 1)
    outputs = by_chunks(conv, x, fresh(conv, x), chunks)
    assert outputs.flatten().tolist() == list(range(0, 21, 2))


def test_a_step_whose_output_is_discarded_multiplies_nothing() -> None:
    conv = TemporalConvolution(3, 4, 5, stride=4)
    state, x = conv.init_state(1, 2), torch.randn(1, 30, 2, 3)
    with torch.profiler.profile() as profile:
        outputs = by_steps(conv, x, state)
    products = [e for e in profile.events() if e.name in ("aten::addmm", "aten::mm")]
    assert len(products) == len(outputs) == 7


def test_rows_and_several_positions_are_the_same_step() -> None:
    conv = TemporalConvolution(3, 4, 2, padding=(1, 0))
    images, rows = conv.init_state(2, 6), conv.init_state(2, 6)
    for x in torch.randn(9, 2, 2, 3, 3):
        out = conv.forward_step(x, images)
        assert out is not None
        assert out.shape == (2, 2, 3, 4)
        assert torch.equal(conv.forward_step(x.reshape(12, 3), rows), out.reshape(12, 4))


def test_the_window_times_the_matrix_is_the_step() -> None:
    conv = TemporalConvolution(3, 4, 5, dilation=2, stride=2, padding=4)
    states = conv.init_state(2, 6), conv.init_state(2, 6)
    seen = 0
    for x in torch.randn(40, 2, 6, 3):
        out, window = conv.forward_step(x, states[0]), conv.window(x, states[1])
        assert (out is None) == (window is None)
        if window is not None:
            product = (window @ conv.matrix + conv.bias).view(2, 6, 4)
            torch.testing.assert_close(product, out)
            seen += 1
    assert seen == 18


def changed_in_place(conv: TemporalConvolution) -> None:
    conv.weight.mul_(2)


def changed_behind_its_back(conv: TemporalConvolution) -> None:
    conv.weight.data[1] += 1


def laid_out_anew(conv: TemporalConvolution) -> None:
    for _ in range(2):  # the second may lie where the first did
        conv.weight.data = (conv.weight.data + 1).contiguous()


def replaced(conv: TemporalConvolution) -> None:
    conv.weight = nn.Parameter(torch.randn(4, 3, 5))


def loaded(conv: TemporalConvolution) -> None:
    conv.load_state_dict({k: torch.randn(v.shape) for k, v in conv.state_dict().items()})


def loaded_by_assignment(conv: TemporalConvolution) -> None:
    tensors = {k: torch.randn(v.shape) for k, v in conv.state_dict().items()}
    conv.load_state_dict(tensors, assign=True)


@pytest.mark.parametrize(
    "change",
    [
        changed_in_place,
        changed_behind_its_back,
        laid_out_anew,
        replaced,
        loaded,
        loaded_by_assignment,
    ],
)
def test_a_step_uses_the_weights_as_they_are_now(change: object) -> None:
    conv = TemporalConvolution(3, 4, 5)
    x = torch.randn(1, 20, 2, 3)
    before = by_steps(conv, x, fresh(conv, x))
    change(conv)  # type: ignore[operator]
    after = by_steps(conv, x, fresh(conv, x))
    for number, (t, out) in enumerate(after.items()):
        torch.testing.assert_close(out, ordinary(conv, x, 0)[:, number])
        assert not torch.allclose(out, before[t])


def test_a_copy_and_another_type_have_weights_of_their_own() -> None:
    conv = TemporalConvolution(3, 4, 5)
    x = torch.randn(1, 20, 2, 3)
    expected = by_steps(conv, x, fresh(conv, x))
    twin = copy.deepcopy(conv)
    assert twin.weight.stride() == conv.weight.stride()
    conv.weight.zero_()
    for t, out in by_steps(twin, x, fresh(twin, x)).items():
        assert torch.equal(out, expected[t])
    twin.double()
    assert twin.matrix.data_ptr() == twin.weight.data_ptr()
    for t, out in by_steps(twin, x.double(), fresh(twin, x)).items():
        torch.testing.assert_close(out, expected[t].double(), rtol=0, atol=1e-6)


def test_gradients_are_those_of_conv1d() -> None:
    ours = TemporalConvolution(3, 4, 5, stride=2, padding=2).double()
    theirs = nn.Conv1d(3, 4, 5, stride=2, padding=2, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 20, 1, 3, dtype=torch.float64)
    with torch.enable_grad():
        ours(x).square().sum().backward()
        theirs(x[:, :, 0].transpose(1, 2)).square().sum().backward()
    for name, parameter in theirs.named_parameters():
        own = ours.get_parameter(name)
        torch.testing.assert_close(own.grad, parameter.grad)
        with torch.no_grad():
            torch.optim.Adam([own], lr=0.1).step()
            torch.optim.Adam([parameter], lr=0.1).step()
        torch.testing.assert_close(own, parameter)
    assert ours.matrix.data_ptr() == ours.weight.data_ptr()


class RingOf01:
    """What costream 0.1 saved: 3 (K - 1) slots, the first of which repeat those before a lap."""

    def __init__(self, conv: TemporalConvolution, batch: int, positions: int) -> None:
        self.overlap, self.time = conv.kernel - 1, 0
        shape = (batch, positions, conv.dilation, 3 * self.overlap, conv.in_width)
        self.frames = torch.zeros(shape, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        lap, phase = divmod(self.time, self.frames.shape[2])
        slot, ring = lap % (2 * self.overlap), self.frames[:, :, phase]
        if lap and not slot:
            ring[:, :, : self.overlap] = ring[:, :, -self.overlap :].clone()
        ring[:, :, self.overlap + slot] = x
        self.time += 1

    def tensors(self) -> dict[str, Tensor]:
        clock = torch.full((len(self.frames),), self.time)
        return {"clock": clock, "frames": self.frames}


@settings(deadline=None, max_examples=40)
@given(convolutions(), st.integers(1, 2), st.integers(0, 80))
def test_a_state_that_0_1_saved_continues(
    conv: TemporalConvolution, batch: int, length: int
) -> None:
    x = torch.randn(batch, length + 40, 3, conv.in_width, dtype=torch.float64)
    ring = RingOf01(conv, batch, 3)
    for frame in x[:, :length].unbind(1):
        if conv.kernel > 1:
            ring.add(frame)
    if conv.kernel == 1:
        ring.time = length
    state = conv.init_state(batch, 3)
    state.load_tensors(ring.tensors())
    expected = by_steps(conv, x, conv.init_state(batch, 3))
    for t in range(length, x.shape[1]):
        out = conv.forward_step(x[:, t], state)
        assert (out is None) == (t not in expected)
        if out is not None:
            torch.testing.assert_close(out, expected[t], rtol=0, atol=1e-12)


def test_a_state_holds_one_frame_less_than_the_kernel() -> None:
    state = TemporalConvolution(7, 4, 9, stride=2).init_state(2, 25)
    assert state.frames.numel() == 2 * 25 * 8 * 7


def test_a_state_of_another_size_is_refused() -> None:
    state = TemporalConvolution(3, 4, 5).init_state(1, 2)
    saved = {"clock": torch.zeros(1, dtype=torch.int64), "frames": torch.zeros(1, 2, 1, 8, 3)}
    with pytest.raises(ValueError, match="state frames"):
        state.load_tensors(saved)


# Over time and frequency.

KERNELS = (((3, 3), (1, 1)), ((3, 3), (2, 2)), ((3, 3), (1, 2)), ((2, 4), (2, 1)), ((5, 1), (3, 1)))


def build(kernel, stride, bias=True):
    layer = TimeFrequencyConvolution(2, 3, kernel, stride, bias=bias).double()
    if bias:
        torch.nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize(("kernel", "stride"), KERNELS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_clip_is_torchs_convolution_behind_zeros(kernel, stride, bias):
    layer, x = build(kernel, stride, bias), torch.randn(2, 12, 8, 2, dtype=torch.float64)
    images = F.pad(x.permute(0, 3, 1, 2), (0, 0, kernel[0] - stride[0], 0))
    pads = (0, (kernel[1] - 1) // 2 if kernel[1] % 2 else 0)
    weight = layer.weight.contiguous()
    expected = F.conv2d(images, weight, layer.bias, stride, pads).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert expected.shape[1:3] == (12 // stride[0], layer.bands(8))


@given(st.sampled_from(KERNELS), st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_any_chunks_give_the_clip(shape, chunks):
    kernel, stride = shape
    layer, total = build(kernel, stride), sum(chunks) * stride[0]
    x = torch.randn(2, total, 8, 2, dtype=torch.float64)
    past = layer.init_state(2, 8)
    parts = x.split([n * stride[0] for n in chunks], 1)
    out = torch.cat([layer.forward_steps(part, past) for part in parts], 1)
    torch.testing.assert_close(out, layer(x), rtol=1e-12, atol=1e-12)


def test_operations_are_those_of_the_outputs():
    layer = build((3, 3), (2, 2))
    outputs = layer(torch.zeros(1, 16, 8, 2, dtype=torch.float64))
    assert layer.count_macs(16, 8) == outputs.numel() // 3 * layer.weight.numel()


def test_time_frequency_learns():
    layer = build((3, 3), (1, 1))
    with torch.enable_grad():
        layer(torch.randn(1, 6, 8, 2, dtype=torch.float64)).square().sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in layer.parameters())


@pytest.mark.parametrize("sizes", [((2, 3), (3, 1)), ((3, 3), (0, 1)), ((3, 3), (1, 0))])
def test_a_stride_must_fit_its_kernel(sizes):
    with pytest.raises(ValueError, match="strides"):
        TimeFrequencyConvolution(1, 1, *sizes)
