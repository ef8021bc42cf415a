"""ViTDet under detectron2's names and under those of the Eventful Transformers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.core.label_sets import COCO, VID
from costream.core.records import VideoFrame
from costream.models.build import build
from costream.models.catalogue import load_model
from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.models.importing import import_files
from costream.models.verify import verify
from costream.nn.eventful.policies import TopTokens
from costream.weights_io.file import write_weights
from kit.eventful_nets import NEEDS, REFS
from kit.foreign_eventful import in_detectron2, small_vitdet

Import = Callable[..., tuple[Any, Any]]


def detectron2_file(network: ViTDet, **extra: Any) -> dict[str, Any]:
    arrays = {in_detectron2(k): v.numpy() for k, v in network.state_dict().items()}
    table = arrays["backbone.net.pos_embed"]
    arrays["backbone.net.pos_embed"] = np.concatenate([table[:, :1] + 9, table], 1)
    arrays["pixel_mean"] = np.zeros((3, 1, 1), np.float32)
    arrays["roi_heads.mask_head.mask_fcn1.weight"] = np.zeros((8, 8, 3, 3), np.float32)
    arrays["roi_heads.mask_head.deconv.bias"] = np.zeros(8, np.float32)
    return {"model": arrays | extra, "__author__": "somebody"}


@pytest.mark.parametrize("cascade", [False, True])
def test_pickles_of_detectron2(cascade: bool, tmp_path: Path) -> None:
    network = small_vitdet(cascade=cascade, rule="linear", proposals=1000)
    path = tmp_path / "model_final.pkl"
    path.write_bytes(pickle.dumps(detectron2_file(network)))
    card, tensors = import_files([path], "test", {"labels": "coco"})
    imported = build(card, tensors)[0].eval()
    assert card.labels == COCO.names
    assert card.task == "object detection"
    assert "not used: pixel_mean, roi_heads.mask_head" in card.limits
    picture = torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        mine, theirs = network(picture)[0], imported(picture)[0]
    for part, expected in zip(mine, theirs, strict=True):
        assert torch.equal(part, expected)
    write_weights(tmp_path / "x.safetensors", card, tensors)
    assert verify(tmp_path / "x.safetensors")
    model = load_model(str(tmp_path / "x.safetensors"))
    assert model.info.box == (128, 128)  # 8 x 8 tokens, for which its positions were learned
    rgb = np.random.default_rng(0).integers(0, 256, (96, 64, 3), np.uint8)
    frame = VideoFrame(0, 0.0, 0, lambda: rgb, size=(128, 192))
    with torch.no_grad():
        seen = Pixels(model.info.box)(torch.from_numpy(rgb.transpose(2, 0, 1))[None])
        expected = imported(seen)[0].scores
    (boxes,) = model.step([frame], model.init_state()).objects or ()
    assert np.allclose([box.score for box in boxes], expected, rtol=0, atol=1e-5)


def test_the_eventful_checkpoint(load: Import) -> None:
    network = small_vitdet(classes=30, proposals=300)
    card, imported = load({"model": network.state_dict()}, labels="imagenet-vid")
    assert card.labels == VID.names
    assert (card.arguments["rule"], card.arguments["proposals"]) == ("bicubic", 300)
    assert not card.limits
    same_state(imported.state_dict(), network.state_dict())


def same_state(given: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert given.keys() == expected.keys()
    assert all(torch.equal(given[name], value) for name, value in expected.items())


def test_the_reference_network(load: Import) -> None:
    if not REFS.is_dir():
        pytest.skip(NEEDS)
    state = {k: torch.from_numpy(v) for k, v in np.load(REFS / "det_small_frcnn_state.npz").items()}
    arrays = np.load(REFS / "det_small_frcnn_outputs.npz")
    card, network = load({"model": state}, labels="imagenet-vid")
    assert card.arguments["global_blocks"] == [1, 3]
    tokens = torch.from_numpy(arrays["base|tokens_in/0"]).view(1, 16, 16, 48)
    with torch.no_grad():
        out = network.backbone(tokens).view(256, 48)
    assert (out - torch.from_numpy(arrays["base|tokens_out/0"])).abs().max() < 5e-5
    kept = network.init_state(1, 256, 256)
    x = torch.from_numpy(arrays["base|norm_padded_image/0"])[None]
    with torch.no_grad():
        found = network.forward_step(x, kept, TopTokens(48))[0]
    assert (found.scores - torch.from_numpy(arrays["base|scores/0"])).abs().max() < 1e-4
