"""Image frontends without weights: what is cut out of an image, its colours and its edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costream.models.frontend import load_frontend
from costream.models.image_values import IMAGENET_MEAN, IMAGENET_STD
from costream.models.images import CentreCrop, Crops, Pixels, temporal_views


def ramp(height: int, width: int) -> torch.Tensor:
    """A picture whose colours say where a pixel is: across, down, and 255."""
    across = torch.arange(width).expand(height, width)
    down = torch.arange(height)[:, None].expand(height, width)
    return torch.stack([across, down, torch.full_like(down, 255)]).to(torch.uint8)[None]


def test_the_middle_and_its_colours() -> None:
    crops = Crops(8)
    (out,) = crops(ramp(8, 21))
    assert out.shape == (1, 3, 8, 8)
    values = (out * 0.225 + 0.45) * 255
    assert torch.allclose(values[0, 0, 0], torch.arange(6.0, 14.0), atol=1e-4)
    assert torch.allclose(values[0, 1, :, 0], torch.arange(8.0), atol=1e-4)
    assert torch.allclose(out[0, 2], torch.tensor((1 - 0.45) / 0.225))


@pytest.mark.parametrize(("size", "axis"), [((8, 21), 0), ((21, 8), 1)])
def test_three_along_the_longer_side(size: tuple[int, int], axis: int) -> None:
    values = (Crops(8)(ramp(*size), 3) * 0.225 + 0.45) * 255
    starts = values[:, 0, axis, 0, 0].round().tolist()
    assert starts == [0, 6, 13]
    assert values[:, 0, 1 - axis, 0, 0].round().tolist() == [0, 0, 0]


@given(st.integers(1, 60), st.integers(1, 60))
def test_pictures_of_every_size_become_squares(height: int, width: int) -> None:
    assert Crops(16)(ramp(height, width)).shape == (1, 1, 3, 16, 16)


def test_a_larger_picture_is_averaged() -> None:
    checks = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    checks[:, :, ::2, ::2] = checks[:, :, 1::2, 1::2] = 255
    (out,) = Crops(8)(checks)
    inner = (out * 0.225 + 0.45)[:, :, 1:-1, 1:-1]
    assert (inner - 0.5).abs().max() < 0.02  # without antialiasing, 0 or 1


@pytest.mark.parametrize(
    ("frames", "length", "stride", "count", "expected"),
    [
        (10, 4, 1, 4, [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]),
        (13, 4, 2, 4, [[0, 2, 4, 6], [1, 3, 5, 7], [3, 5, 7, 9], [5, 7, 9, 11]]),
        (9, 4, 1, 1, [[2, 3, 4, 5]]),
        (3, 4, 1, 2, [[0, 1, 2, 2]] * 2),
    ],
)
def test_views_of_a_video(
    frames: int, length: int, stride: int, count: int, expected: list[list[int]]
) -> None:
    assert temporal_views(frames, length, stride, count) == expected


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (24, 24), (61, 24), (100, 200), (36, 20)])
def test_the_middle_of_pictures_of_any_shape(shape: tuple[int, int]) -> None:
    frontend = CentreCrop(size=16, short_side=24)
    rgb = np.zeros((*shape, 3), np.uint8)
    rgb[:, : shape[1] // 2, 0] = 200  # its left half
    rgb[: shape[0] // 2, :, 1] = 100  # its upper half
    out = frontend.prepare(rgb)
    assert (out.shape, out.dtype, frontend.box) == ((3, 16, 16), np.uint8, (72, 48))
    assert (out[0, 8, :6] == 200).all()
    assert (out[0, 8, -6:] == 0).all()
    assert (out[1, :6, 8] == 100).all()
    assert (out[1, -6:, 8] == 0).all()


def test_pictures_that_fit_are_not_resized() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    out = CentreCrop(size=16, short_side=24).prepare(rgb)
    np.testing.assert_array_equal(out, rgb[4:20, 12:28].transpose(2, 0, 1))


def test_pixels_are_normalised_as_published() -> None:
    frontend = CentreCrop(2, 2)
    given = torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8).expand(1, 3, 2, 2)
    expected = (torch.tensor([[0, 1], [0.2, 0.4]]) - 0.45) / 0.225
    torch.testing.assert_close(frontend.forward_step(given, None)[0, 1], expected)
    assert frontend.double()(given).dtype == torch.float64
    assert frontend.state_dict() == {}


def test_colours_that_are_innermost_in_memory_are_normalised_bit_for_bit_as_others() -> None:
    frontend = Pixels((40, 40), 8)
    pictures = torch.randint(0, 256, (2, 13, 21, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    assert torch.equal(frontend(pictures), frontend(pictures.contiguous()))


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 8, 16]))
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


def test_it_is_made_from_a_card_and_has_no_weights():
    frontend = load_frontend("pixels", box=[640, 352], patch=16)
    assert frontend.box == (640, 352)
    assert frontend.state_dict() == {}
    assert frontend.count_macs() == 0
