from __future__ import annotations

import pytest
import torch

from costream.models.build import ARCHITECTURES, new_network
from costream.models.registry import MODELS
from costream.models.video3d import video_card
from costream.nn.video3d.sizes import SIZES


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.clip)
def test_cards_of_the_published_networks(size) -> None:
    for name in (size.clip, size.continual):
        card = video_card(name, ("walk", "run"))
        assert card.architecture in ARCHITECTURES
        with torch.device("meta"):
            net = new_network(card)
        assert net.num_classes == 2
        assert net.window >= size.frames
        assert card.frontend_arguments == {"size": net.encoder.size, "short_side": size.short_side}


def test_models_in_the_list_have_a_card() -> None:
    names = [name for name in MODELS if name.startswith(("cox3d", "coslow", "coi3d"))]
    assert len(names) == 5
    assert {video_card(name, ("a",)).name for name in names} == set(names)
    with pytest.raises(KeyError):
        video_card("cox3d-xxl", ("a",))


def test_the_delay_is_the_age_of_the_middle_of_what_is_averaged() -> None:
    # The layers of X3D-S see 57 frames, 28 of them after the centre; 13 features are averaged.
    assert video_card("cox3d-s", ("a",)).delay_s == pytest.approx((28 + 6) / 5)
    assert video_card("cox3d-s", ("a",), pool=64, start="replicate").delay_s == (28 + 31.5) / 5
    assert video_card("x3d-s", ("a",)).delay_s == pytest.approx(6 / 5)
    assert video_card("coi3d", ("a",)).delay_s == pytest.approx((17.5 + 3) / 3.75)
