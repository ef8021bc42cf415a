"""Films made of pictures, and targets that are shares of labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from costream.core.errors import UsageError
from weights.recipes.action.data import Sampler
from weights.recipes.action.places import NOBODY, SOMEBODY, Films, Still, read_homes
from weights.recipes.action.rendering.scenes import LabelledClip


@pytest.fixture
def stills():
    """A dark picture of somebody and a bright one of a thing."""
    persons = np.zeros((30, 44), np.float32)
    persons[10:25, 10:20] = 1
    shape = (3, 30, 44)
    return [
        Still("dark", np.full(shape, 40, np.uint8), persons, SOMEBODY, ()),
        Still("bright", np.full(shape, 200, np.uint8), 0 * persons, NOBODY, ((5, 5, 12, 9),)),
    ]


def test_films_have_the_target_and_the_persons_of_their_picture(stills):
    films, rng = Films(stills, 9, 16, (40, 30)), np.random.default_rng(0)
    seen, hidden = set(), 0
    for _ in range(20):
        frames, target, mask = films.moment(rng, (1, 4))
        assert frames.shape == (3, 3, 30, 40)
        assert mask.shape == (30, 40)
        assert target.shape == (9,)
        assert float(target.sum()) == pytest.approx(1)
        somebody = target[0] < 1
        assert somebody or not mask.any()  # a thing may hide all of a person
        hidden += bool(somebody and not mask.any())
        seen.add(bool(somebody))
    assert seen == {True, False}
    assert hidden < 4
    frames, targets = films.draw(rng)
    assert frames.shape == (16, 3, 30, 40)
    assert targets.shape == (16, 9)
    dark, bright = films.clips(0)
    assert dark.target == SOMEBODY
    assert (dark.labels == -1).all()
    assert (bright.labels == 0).all()
    again = films.clips(0)[0]
    assert np.array_equal(dark.frames, again.frames)


def test_things_that_pass_hide_who_is_behind_them(stills):
    films, rng = Films(stills, 7, 4, (40, 30)), np.random.default_rng(1)
    hidden = 0
    for _ in range(40):
        frames, mask, _ = films._film(stills[0], rng, np.arange(4))
        changed = (frames[0].float() - 40).abs().amax(0) > 100
        assert not (mask[changed] > 0.8).any()
        hidden += bool(changed.any())
    assert 5 < hidden < 35


def test_surfaces_are_of_pictures_without_people_and_have_things_before_them(stills):
    films = Films(stills, 7, 12, (40, 30))
    clips = films.surfaces(0, 20)
    assert all(clip.target == NOBODY and clip.frames.shape == (12, 3, 30, 40) for clip in clips)
    moving = [bool((clip.frames != clip.frames[:1]).any()) for clip in clips]
    assert any(moving)
    assert not all(moving)  # some only stand there


def test_people_who_come_are_in_the_mask_and_the_target(stills):
    stills[1] = replace(stills[1], people=((5, 5, 20, 20),))
    films, rng = Films(stills, 7, 4, (40, 30)), np.random.default_rng(3)
    seen = 0
    for _ in range(30):
        _, mask, target = films._film(stills[1], rng, np.arange(4), comes=0.5)
        if target[0] < 1:
            assert tuple(target.tolist()) == pytest.approx(SOMEBODY)
            seen += bool(mask.any())
        else:
            assert not mask.any()
    assert 5 < seen < 25


def test_shares_are_drawn_as_targets_until_the_clip_ends():
    frames = np.full((20, 3, 6, 8), 50, np.uint8)
    clip = LabelledClip("x", frames, np.full(20, -1), 0.2, False, target=SOMEBODY)
    sampler, rng = Sampler([clip], 8, 48, 8.0), np.random.default_rng(0)
    _, targets = sampler.draw(rng)
    row = torch.tensor([*SOMEBODY, 0.0])
    known = targets.sum(1) > 0
    assert torch.equal(targets[known], row.expand(int(known.sum()), -1))
    assert 10 < int(known.sum()) < 30  # the last frame is repeated, without a label


def test_a_pack_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match="the pack cannot be read"):
        read_homes(tmp_path / "none.tar", (8, 6), 8.0, "train")
