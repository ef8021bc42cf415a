"""Networks that compute the places that have changed, and pause where nearly everything has."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from costream.nn.eventful.changed_places import FIRST, PAUSE, RENEWED, Changed, ChangedPlaces, Kept


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 5, 3, 1, 1))  # reach: 3 pixels
    return nn.Sequential(*layers).eval().requires_grad_(False)


def looks(network: nn.Module, pictures: list[Tensor], kept: Kept) -> list[Changed | None]:
    places = ChangedPlaces(network)
    return [places.look(x, kept, k, 0.0) for k, x in enumerate(pictures)]


def test_what_is_found_by_place_is_what_the_network_finds(network: nn.Module) -> None:
    make = torch.Generator().manual_seed(1)
    pictures = [torch.randn(1, 3, 64, 96, generator=make)]
    for _ in range(RENEWED + 12):
        pictures.append(pictures[-1].clone())
        pictures[-1][:, :, 8:16, 8:16] = torch.randn(3, 8, 8, generator=make)
    found = looks(network, pictures, Kept())
    assert [each is None for each in found[:FIRST]] == [True] * FIRST
    for picture, changed in zip(pictures[FIRST:], found[FIRST:], strict=True):
        assert changed is not None
        torch.testing.assert_close(changed.output, network(picture), atol=1e-5, rtol=1e-5)
    complete = 32 * 48 * (4 * 27 + 5 * 36)  # operations, without the biases
    costs = [changed.macs for changed in found[FIRST:] if changed is not None]
    assert min(costs[:2]) >= complete  # the first keeps the picture, the next all maps
    assert max(costs[2 : RENEWED + 2]) < 0.5 * complete
    assert costs.count(max(costs)) == 3  # and once everything is renewed


def test_where_everything_changes_it_compares_ever_less(network: nn.Module) -> None:
    make = torch.Generator().manual_seed(2)
    pictures = [torch.randn(1, 3, 64, 64, generator=make) for _ in range(8 * PAUSE)]
    found = looks(network, pictures, Kept())
    compared = [k for k, each in enumerate(found) if each is not None]
    assert compared[0] == FIRST
    gaps = [after - before for before, after in itertools.pairwise(compared)]
    assert [gap for gap in gaps if gap > 1] == [2 * PAUSE + 1, 4 * PAUSE + 1]
    complete = 32 * 32 * (4 * 27 + 5 * 36)
    assert all(each.macs >= complete for each in found if each is not None)


def test_another_size_and_an_earlier_picture_begin_again(network: nn.Module) -> None:
    places, kept = ChangedPlaces(network), Kept()
    still, larger = torch.zeros(1, 3, 64, 64), torch.zeros(1, 3, 64, 96)
    for frame in range(FIRST + 1):
        found = places.look(still, kept, frame, 0.0)
    assert found is not None
    assert places.look(larger, kept, FIRST + 1, 0.0) is None
    for frame in range(FIRST + 2, FIRST + 5):
        found = places.look(larger, kept, frame, 0.0)
    assert found is not None
    assert places.look(larger, kept, 0, 0.0) is None
