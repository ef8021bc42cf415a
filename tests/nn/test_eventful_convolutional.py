"""Convolutional networks that compute only the places whose input has changed."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import costream.nn as co

SIZE = (45, 70)


class Mixed(nn.Module):
    """All operations that are computed by place, in a random order."""

    def __init__(self, seed: int, kinds: list[str]) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kinds = kinds
        self.first = nn.Conv2d(3, 8, 3, 2, 1)
        self.layers = nn.ModuleList(self.made(kind, k) for k, kind in enumerate(kinds))
        self.last = nn.Conv2d(8, 4, 1)

    def made(self, kind: str, k: int) -> nn.Module:
        norm = nn.BatchNorm2d(8)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.normal_(norm.running_mean)
        side = (3, 5)[k % 2]
        return {
            "depthwise": nn.Conv2d(8, 8, side, 1 + k % 2, side // 2, groups=8, bias=k % 3 > 0),
            "dense": nn.Conv2d(8, 8, 3, 1 + k % 2, 1),
            "padded": nn.Conv2d(8, 8, 3, 2),
            "norm": norm,
            "pool": nn.MaxPool2d(3, 2, 1),
            "shuffle": nn.Conv2d(4, 4, 1),
            "skip": nn.Conv2d(8, 8, 3, 1, 1, groups=8),
            "enlarge": nn.Conv2d(16, 8, 1),
        }[kind]

    def forward(self, pictures: Tensor) -> Tensor:
        x, before = F.leaky_relu(self.first(pictures), 0.1, inplace=True), None
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            if kind == "shuffle":
                kept, half = x.chunk(2, 1)
                x = F.channel_shuffle(torch.cat([kept, F.relu(layer(half))], 1), 2)
            elif kind == "skip":
                x = x + layer(x)
            elif kind == "padded":
                x = layer(F.pad(x, [0, 1, 1, 2]))
            elif kind == "enlarge" and before is not None and before.shape[2] < 2 * x.shape[2]:
                mode = "bilinear" if len(self.kinds) % 2 else "nearest"
                large = F.interpolate(x, scale_factor=2.0, mode=mode)
                large = large[..., : before.shape[2], : before.shape[3]]
                x = layer(torch.cat([large, before], 1)) if large.shape == before.shape else x
            elif kind != "enlarge":
                before, x = x, F.silu(layer(x))
        return self.last(x).flatten(2).mean(-1) + x.amax()


def changed(pictures: Tensor) -> Tensor:
    """Return pictures with a few pixels changed, in the first stream only, or in both."""
    now = pictures.clone()
    for stream in range(int(torch.randint(1, 3, ()))):
        y, x = (int(torch.randint(side - 4, ())) for side in pictures.shape[2:])
        now[stream, :, y : y + 4, x : x + 4] += torch.randn(3, 4, 4, dtype=now.dtype)
    return now


def agrees(network: nn.Module, size: tuple[int, int] = SIZE) -> list[int]:
    """Compare five steps of two streams with the network; return the operations of each."""
    network = network.double().eval()
    pictures = torch.randn(2, 3, *size, dtype=torch.float64)
    eventful = co.EventfulConvolutions(network, pictures)
    state, counts = eventful.init_state(2), []
    for _ in range(5):
        with torch.no_grad():
            wanted = network(pictures)
        found = eventful.forward_step(pictures, state)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
        counts.append(eventful.operations.total)
        pictures = changed(pictures)
    return counts


def small() -> nn.Module:
    """Return a network that reads 15 pixels around each."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=8)]
    return nn.Sequential(*layers, nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 5, 1, 2, groups=4))


def test_with_threshold_zero_the_outputs_equal_the_network_and_fewer_places_are_computed():
    first, second, *others = agrees(small(), (64, 96))  # in full; maps are kept from the second on
    assert first == second
    assert 0 < max(others) < 0.6 * first


@pytest.mark.long
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    kinds=st.lists(
        st.sampled_from(
            ["depthwise", "dense", "padded", "norm", "pool", "shuffle", "skip", "enlarge"],
        ),
        max_size=6,
    ),
    size=st.tuples(st.integers(33, 70), st.integers(33, 70)),
)
def test_random_networks_give_the_same_by_place_and_in_full(seed, kinds, size):
    agrees(Mixed(seed, kinds), size)


@pytest.mark.slow
def test_streams_of_other_sizes_that_leave_join_and_restart_keep_their_pictures():
    network = small().double().eval()
    large, low = (torch.randn(2, 3, *size, dtype=torch.float64) for size in ((64, 96), (40, 96)))
    eventful = co.EventfulConvolutions(network, large)
    state, shares = eventful.init_state(2), []

    def step(pictures: Tensor, state: co.State, streams: list[int]) -> None:
        found = eventful.forward_step(pictures, state, streams)
        torch.testing.assert_close(found, network(pictures))
        shares.append(eventful.share)

    with torch.no_grad():
        step(large, state, [0, 1])
        step(large, state, [0, 1])
        step(low[:1], state, [1])  # another size
        step(low[:1], state, [1])
        step(large[:1], state, [0])
        copy = state.take([1, 0])
        state.reset([0])
        step(low[:1], copy, [0])
        step(large[:1], copy, [1])
        step(large[:1], state, [0])  # begins again
    assert shares == [1, 1, 1, 1, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="exceed"):
        eventful.forward_step(torch.zeros(1, 3, 65, 96, dtype=torch.float64), state, [0])


@pytest.mark.slow
def test_slow_changes_below_the_threshold_add_up_until_they_are_computed():
    network = small().double().eval()
    pictures = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    eventful = co.EventfulConvolutions(network, pictures, threshold=0.05, margin=8)
    state, shares = eventful.init_state(), []
    for _ in range(6):
        eventful.forward_step(pictures, state)
        shares.append(eventful.share)
        pictures[..., :8, :8] += 0.02
    assert [share > 0 for share in shares] == [True, True, False, False, True, False]
    assert shares[4] == 1 / 96  # one of 8 x 12 cells


def test_maxima_of_numbers_one_of_which_is_none_are_none():
    torch.manual_seed(2)
    layers = nn.Conv2d(3, 8, 3, 2, 1), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 1)
    network = nn.Sequential(*layers).double().eval()
    pictures = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    eventful = co.EventfulConvolutions(network, pictures)
    state = eventful.init_state(1)
    for _ in range(3):
        found = eventful.forward_step(pictures, state)
        with torch.no_grad():
            torch.testing.assert_close(found, network(pictures), equal_nan=True)
        pictures = pictures.clone()
        pictures[:, :, 20:24, 30:34] += 1
        pictures[0, 0, 21, 31] = torch.nan
    assert eventful.operations.total > 0
    assert found.isnan().any()


def test_networks_that_do_not_begin_with_a_convolution_are_refused():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    with pytest.raises(co.ConversionError, match="begin"):
        co.EventfulConvolutions(flat, torch.zeros(1, 3, 4, 4))


class Ends(nn.Module):
    """A first layer of the size of the picture, edges that are cut off, and calls by names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)

    def forward(self, pictures: Tensor) -> Tensor:
        first, second = torch.chunk(F.relu(self.first(pictures)), chunks=2, dim=1)
        return self.last(F.pad(torch.cat([second, first], 1), (0, -3, -2, 0)))


class Row(nn.Module):
    """An enlarged map without its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        return F.interpolate(self.first(pictures), scale_factor=2)[0]


def test_layers_of_the_pictures_size_and_edges_that_are_cut_off_give_the_same():
    agrees(Ends(), (48, 64))


def test_an_index_that_is_not_a_crop_is_refused():
    with pytest.raises(co.ConversionError, match="without a rule"):
        co.EventfulConvolutions(Row(), torch.zeros(1, 3, 16, 16))


class InPlace(nn.Module):
    """A sum in place; ``read``: the map that it changes is read again."""

    def __init__(self, read: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.read = read

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.first(pictures)
        y = self.last(x)
        total = y.add_(x)
        return total + y if self.read else total


def test_sums_in_place_are_computed_by_place():
    first, _, *others = agrees(InPlace(read=False), (64, 96))
    assert 0 < max(others) < 0.6 * first
    with pytest.raises(co.ConversionError, match="changes a map in place that others read"):
        co.EventfulConvolutions(InPlace(read=True), torch.zeros(1, 3, 64, 96))


class Augmented(nn.Module):
    """An augmented assignment to another name of a map, which is read ``again`` or not."""

    def __init__(self, operation, again: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 4, 3, 1, 1)
        self.operation, self.again = operation, again

    def forward(self, pictures: Tensor) -> Tensor:
        kept = self.first(pictures)
        changed = self.operation(kept, torch.sigmoid(kept))
        return self.last(kept if self.again else changed)


@pytest.mark.parametrize(
    "operation",
    [operator.iadd, operator.isub, operator.imul, operator.itruediv, lambda x, y: x.mul_(y)],
)
def test_augmented_assignments_give_the_same_or_are_refused(operation):
    agrees(Augmented(operation, again=False))
    with pytest.raises(co.ConversionError, match="changes a map in place that others read"):
        co.EventfulConvolutions(Augmented(operation, again=True), torch.zeros(1, 3, 64, 64))


class Layers(nn.Module):
    """Three convolutions for functions that change maps in place."""

    def __init__(self, function: Callable[[Layers, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.each = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.last, self.function = nn.Conv2d(8, 8, 1), function

    def forward(self, pictures: Tensor) -> Tensor:
        return self.function(self, self.first(pictures))


def part(net: Layers, x: Tensor) -> Tensor:
    half = x[:, :4]
    half += 1
    return net.last(x)


def part_of_two(net: Layers, x: Tensor) -> Tensor:
    first, second = x.chunk(2, 1)
    first.add_(second)
    return net.last(x)


def rows(net: Layers, x: Tensor) -> Tensor:
    x.flatten(2).mul_(2.0)
    return net.last(x)


def rows_of_a_changed_map(net: Layers, x: Tensor) -> Tensor:
    flat = x.flatten(2)
    torch.relu_(x)
    return flat.sum(2)


def output(net: Layers, x: Tensor) -> Tensor:
    torch.add(x, net.each(x), out=x)
    return net.last(x)


def same_name(net: Layers, x: Tensor) -> Tensor:
    other = x.contiguous()
    other.add_(net.each(x))
    return net.last(x)


@pytest.mark.parametrize(
    "function", [part, part_of_two, rows, rows_of_a_changed_map, output, same_name]
)
def test_changes_through_another_name_of_a_map_are_refused(function):
    with pytest.raises(co.ConversionError, match="changes a map in place that others read"):
        co.EventfulConvolutions(Layers(function), torch.zeros(1, 3, 64, 96))


def read_before(net: Layers, x: Tensor) -> Tensor:
    other = net.each(x)
    return net.last(F.relu(x, inplace=True)) + other


def changed_at_the_end(net: Layers, x: Tensor) -> Tensor:
    torch.relu_(x)
    return x.mean((2, 3))


def copied(net: Layers, x: Tensor) -> Tensor:
    inner = x[:, :, 1:, 1:]
    return net.last(inner.contiguous().add_(1.0)) + net.last(inner)


@pytest.mark.parametrize("function", [read_before, changed_at_the_end, copied])
def test_changes_of_what_nobody_reads_by_another_name_give_the_same(function):
    agrees(Layers(function), (64, 96))


def test_a_step_of_no_streams_changes_nothing():
    network, pictures = Ends().eval(), torch.rand(2, 3, 48, 64)
    eventful = co.EventfulConvolutions(network, pictures)
    state = eventful.init_state(2)
    for _ in range(2):
        eventful.forward_step(pictures, state)
    before = {name: tensor.clone() for name, tensor in vars(state).items()}
    with torch.no_grad():
        expected = network(pictures[:0])
    assert eventful.forward_step(pictures[:0], state, streams=[]).shape == expected.shape
    assert (eventful.operations.total, eventful.every, eventful.share) == (0, 0, 0)
    for name, tensor in vars(state).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
