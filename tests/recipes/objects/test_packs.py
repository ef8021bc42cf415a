"""The packs of the detector recipe: images of COCO and clips."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from costream.models.images import Pixels
from kit.data_packs import packs as needed
from weights.recipes.objects.data import clip_part, read_clip, read_images
from weights.recipes.objects.teacher import NanoDet


@pytest.fixture(scope="module")
def packs() -> Path:
    return needed("coco256.tar", "samples.tar")


@pytest.mark.long
def test_pictures_of_the_packs(packs: Path) -> None:
    parts = {part: read_images(packs, part) for part in ("train", "validation", "test")}
    assert {name: len(some) for name, some in parts.items()} == {
        "train": 120,
        "validation": 8,
        "test": 64,
    }
    for picture in (p for some in parts.values() for p in some):
        height, width = picture.pixels.shape[1:]
        assert bool((picture.boxes >= -0.5).all())
        assert len(picture.boxes) == len(picture.labels)
        assert bool((picture.boxes <= torch.tensor([width, height] * 2) + 0.5).all())
    assert sum(int((p.labels == 0).sum()) for p in parts["test"]) == 187


def test_the_teacher_says_the_same_in_pytorch() -> None:
    """NanoDet of the pack, run by ONNX Runtime, has the same scores at strides 8, 16 and 32."""
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name)
    teacher = NanoDet(needed("teachers2.tar") / "teachers2.tar")
    picture = Pixels()(torch.randint(0, 256, (1, 3, 64, 96), dtype=torch.uint8))
    own = teacher.in_torch()
    with torch.no_grad():
        scores = own(own.stem.maps(picture))
    assert [s.shape[1:] for s in scores] == [(8, 12, 80), (4, 6, 80), (2, 3, 80)]
    rows = torch.cat([s[0].flatten(0, 1) for s in scores])
    theirs = teacher.run(picture[0])[: len(rows), :80]
    torch.testing.assert_close(rows, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.long
def test_parts_of_a_clip_do_not_touch(packs: Path) -> None:
    name = "car-detection"
    clip = read_clip(packs, name)
    parts = [clip_part(clip, part) for part in ("train", "validation", "test")]
    assert list(map(len, parts)) == [263, 38, 76]
    assert all(frame.shape == (3, 288, 512) for part in parts for frame in part)
    small = clip_part(read_clip(packs, name, (384, 256)), "test", 8)
    assert len(small) == 10
    assert small[0].shape == (3, 216, 384)
