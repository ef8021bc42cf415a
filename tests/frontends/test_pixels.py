"""Pictures for networks with an embedding of their own: normalised, and filled up with zeros."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costream.errors import ModelError
from costream.frontends.base import load_frontend
from costream.frontends.crops import IMAGENET_MEAN, IMAGENET_STD, Pixels

SIDES = st.integers(1, 40)


@given(SIDES, SIDES, st.sampled_from([1, 8, 16]))
def test_pixels_stay_where_they_are_and_the_rest_is_zero(width, height, patch):
    frontend = Pixels((40, 40), patch)
    rgb = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    out = frontend(torch.from_numpy(frontend.prepare(rgb))[None])[0].numpy()
    assert all(side % patch == 0 for side in out.shape[1:])
    assert out.shape[1] - height < patch
    assert out.shape[2] - width < patch
    expected = (rgb.astype(np.float64) - IMAGENET_MEAN) / IMAGENET_STD
    np.testing.assert_allclose(out[:, :height, :width], expected.transpose(2, 0, 1), atol=1e-5)
    assert not out[:, height:].any()
    assert not out[:, :, width:].any()


def test_a_picture_larger_than_the_box():
    with pytest.raises(ValueError, match="50x20 does not fit"):
        Pixels((40, 40)).prepare(np.zeros((20, 50, 3), np.uint8))


def test_it_is_made_from_a_card_and_has_no_weights():
    frontend = load_frontend("pixels", box=[640, 352], patch=16)
    assert frontend.box == (640, 352)
    assert frontend.state_dict() == {}
    assert frontend.count_macs() == 0
    with pytest.raises(ModelError, match="does not take these arguments"):
        load_frontend("pixels", box=[640, 352], patch=0)
