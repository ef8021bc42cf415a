"""ViTDet: feature pyramid, proposals, box heads and names of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from costream.models.eventful.box_heads import Detections, levels, pool
from costream.models.eventful.proposals import anchors, pyramid_anchors
from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from kit.eventful_nets import NEEDS, REFS, randomise, video

SMALL: dict[str, Any] = {
    "dim": 16,
    "heads": 2,
    "depth": 2,
    "global_blocks": (1,),
    "size": (8, 8),
    "window": (4, 4),
    "position_size": (4, 4),
    "mlp_ratio": 2,
    "channels": 8,
    "width": 12,
}


pytestmark = pytest.mark.usefixtures("no_grad")


def small_network(**options: Any) -> ViTDet:
    network = ViTDet(3, **SMALL | {"convolutions": 1, "proposals": 20, "score": 0.0} | options)
    return randomise(network)  # type: ignore[return-value]


def same(given: Detections, expected: Detections) -> None:
    for mine, theirs in zip(given, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("cascade", [False, True])
@pytest.mark.parametrize("size", [(64, 64), (48, 80)])
def test_a_stream_with_all_tokens_is_the_pictures_by_themselves(
    cascade: bool, size: tuple[int, int]
) -> None:
    network = small_network(cascade=cascade)
    pictures = video(3, 2, *size, 3).permute(0, 1, 4, 2, 3)
    state = network.init_state(2, *size)
    for batch in pictures:
        found = network.forward_step(batch, state, TopTokens(10**6))
        for stream, expected in enumerate(network(batch)):
            assert len(expected.boxes) > 3
            same(found[stream], expected)
            boxes, limit = expected.boxes, torch.tensor([size[1], size[0]] * 2)
            assert ((boxes >= 0) & (boxes <= limit)).all()
            assert (expected.scores.diff() <= 0).all()
            assert set(expected.labels.tolist()) <= {0, 1, 2}


def test_a_stem_before_the_patches() -> None:
    network = small_network(stem=(4, 6))
    state, x = network.init_state(1, 64, 48), torch.randn(1, 3, 64, 48)
    operations = Operations()
    assert network.embed(x, operations).shape == (1, 4, 3, 16)
    # 3x3 convolutions at half and a quarter of the size, then patches of 4 x 4
    assert operations.linear == 32 * 24 * 27 * 4 + 16 * 12 * 9 * 4 * 6 + 12 * 96 * 16
    same(network.forward_step(x, state, TopTokens(10**6))[0], network(x)[0])
    with pytest.raises(ValueError, match="5 halvings"):
        small_network(stem=(4,) * 5)


@pytest.mark.parametrize("size", [(64, 96), (48, 80)])
def test_a_shuffle_stem_and_maps_from_stride_8_on(size: tuple[int, int]) -> None:
    network = small_network(shuffle=((8, 2), (12, 1), (16, 1)), ghost=6, first=1, anchor=24.0)
    x, (height, width) = torch.randn(1, 3, *size), (side // 16 for side in size)
    given = network.embedding
    assert isinstance(given, ShuffleEmbedding)
    assert [m.shape[1:] for m in given.maps(x)] == [
        (6, 2 * height, 2 * width),
        (6, height, width),
        (6, -(-height // 2), -(-width // 2)),
    ]
    order = list(given.pretrained())
    rest = [layer for layer in given.modules() if isinstance(layer, nn.Conv2d)]
    assert len(order) == len({id(layer) for layer in order}) == len(rest) - 3
    view = network.view(network.backbone(network.embed(x)))
    assert network.strides == [8, 16, 32, 64]
    assert view.maps[0].shape[2:] == (2 * height, 2 * width)
    state, expected = network.init_state(1, *size), network(x)[0]
    assert len(expected.boxes) > 3
    same(network.forward_step(x, state, TopTokens(10**6))[0], expected)
    other = x + 0.1
    for count in (3, 5, 10**6):  # of the tokens; with all, it is the picture by itself again
        found = network.forward_step(other, state, TopTokens(count))[0]
    same(found, network(other)[0])


def test_the_operations_of_a_shuffle_stem() -> None:
    network, operations = small_network(shuffle=((8, 1), (8, 2), (8, 1)), ghost=4), Operations()
    network.embed(torch.randn(1, 3, 64, 64), operations)
    halving = [9 * 24 * 64 + 24 * 4 * 64 + 24 * 4 * 256]  # both branches of the first unit
    halving += [9 * 8 * n + 8 * 4 * n + 8 * 4 * 4 * n for n in (16, 4)]
    units = sum(halving) + (9 * 4 + 4 * 4) * (64 + 16 + 4) + (2 * 4 * 4 + 9 * 4) * 16
    block = 8 * 2 + 9 * 2 + 4 * 2 + 9 * 2 + 25 * 8 + 8 * 4
    exchange = 8 * 4 * (64 + 16 + 4) + block * (16 + 64 + 16 + 4) + (25 * 4 + 4 * 4) * (16 + 4)
    projections = 4 * 4 * 16 * 16 + 4 * 16 * (16 + 4)
    assert operations.linear == 32 * 32 * 27 * 24 + units + exchange + projections
    with pytest.raises(ValueError, match="3 stages and patches of 16 pixels, not 2 and 16"):
        small_network(shuffle=((8, 1), (8, 1)))


def test_fewer_candidates_are_the_likeliest() -> None:
    network = small_network(proposals=1000)
    x = network.backbone(network.embed(torch.randn(1, 3, 64, 64)))
    maps = network.pyramid(x)
    predicted = network.proposal_generator.predict(maps)
    anchors = pyramid_anchors(maps, network.pyramid.strides)
    every = network.proposal_generator.choose(predicted, anchors, (64, 64))[0]
    network.proposal_generator.candidates = 7
    few = network.proposal_generator.choose(predicted, anchors, (64, 64))[0]
    assert 0 < len(few.boxes) <= 7 * len(maps) < len(every.boxes)
    assert few.objectness[0] == every.objectness[0]


def test_what_is_spent_is_counted() -> None:
    network = small_network(variant="token-wise")  # whose maps are always computed in full
    state, x = network.init_state(1, 64, 64), torch.randn(1, 3, 64, 64)
    spent = []
    for count in (16, 0):
        operations = Operations()
        network.forward_step(x, state, TopTokens(count), operations)
        backbone = network.backbone.count_macs(4, 4, None if count else 0)
        spent.append((operations.linear, operations.total - backbone))
    blocks = 2 * 16 * (4 * 16 * 16 + 2 * 16 * 32)
    assert spent[0][0] - spent[1][0] == blocks
    tokens = 16
    embedding = tokens * 3 * 256 * 16
    first = tokens * 4 * 16 * 8 + 64 * 4 * 8 * 4 + 256 * (4 * 8 + 9 * 64)
    rest = tokens * 4 * 16 * 8 + 64 * (8 * 8 + 9 * 64) + (tokens + 4) * (16 * 8 + 9 * 64)
    proposals = (256 + 64 + 16 + 4 + 1) * (2 * 9 * 64 + 8 * 15)
    boxes = 20 * (49 * 9 * 64 + 49 * 8 * 12 + 12 * (4 + 12))
    assert spent[1][0] == embedding + first + rest + proposals + boxes


def test_sides_must_be_multiples_of_a_patch() -> None:
    network = small_network()
    with pytest.raises(ValueError, match="50x64 pixels are not multiples of 16"):
        network.init_state(1, 64, 50)
    with pytest.raises(ValueError, match="64x50 pixels are not multiples of 16"):
        network(torch.zeros(1, 3, 50, 64))


def test_anchors_stand_on_multiples_of_the_stride() -> None:
    given = anchors(2, 3, 16, 64.0).view(2, 3, 3, 4)
    for y in range(2):
        for x in range(3):
            centres = (given[y, x, :, :2] + given[y, x, :, 2:]) / 2
            assert centres.tolist() == [[16 * x, 16 * y]] * 3
    sides = given[0, 0, :, 2:] - given[0, 0, :, :2]
    torch.testing.assert_close(sides.prod(1), torch.full((3,), 64.0**2))
    torch.testing.assert_close(sides[:, 1] / sides[:, 0], torch.tensor([0.5, 1, 2]))


def test_boxes_are_looked_up_in_the_map_that_fits_their_size() -> None:
    sides = torch.tensor([10.0, 111, 113, 223, 225, 447, 449, 4000])
    boxes = torch.stack([sides * 0, sides * 0, sides, sides], 1)
    assert levels(boxes).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    maps = [torch.full((2, 1, 64 >> k, 64 >> k), k + 1.0) for k in range(5)]
    maps = [m * torch.tensor([1.0, 10]).view(2, 1, 1, 1) for m in maps]
    given = pool(maps, (4, 8, 16, 32, 64), [boxes[:3] / 2, boxes[3:4]])
    assert given[:, 0, 3, 3].tolist() == [1, 1, 1, 20]


def test_published_sizes() -> None:
    large = {"dim": 1024, "heads": 16, "depth": 24, "global_blocks": (5, 11, 17, 23)}
    huge = {"dim": 1280, "heads": 16, "depth": 32, "global_blocks": (7, 15, 23, 31)}
    for millions, size in ((108, {}), (330, large), (662, huge)):
        with torch.device("meta"):
            network = ViTDet(30, **size)
        count = sum(p.numel() for p in network.parameters()) / 1e6
        assert count == pytest.approx(millions, rel=0.02)


# --- the reference arrays ----------------------------------------------------------------------


def reference_arrays(name: str) -> dict[str, np.ndarray]:
    if not REFS.is_dir():
        pytest.skip(NEEDS)
    return dict(np.load(REFS / name))


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("keys_vitdet_b_vid.txt", {}),
        ("keys_vitdet_b_coco.txt", {"classes": 80, "cascade": True}),
    ],
)
def test_parameters_have_the_names_of_the_published_ones(
    file: str, options: dict[str, Any]
) -> None:
    if not REFS.is_dir():
        pytest.skip(NEEDS)
    with torch.device("meta"):
        own = {
            k: tuple(v.shape) for k, v in ViTDet(**{"classes": 30} | options).state_dict().items()
        }
    published = {}
    for line in (REFS / file).read_text().splitlines():
        if not line.startswith("#"):
            name, shape = line.removesuffix(" float32").split(" ", 1)
            published[name] = tuple(int(n) for n in shape.strip("(),").split(",") if n.strip())
    extra = {name for name in published if "mask_head" in name}
    shared = {k: v for k, v in published.items() if k not in extra}
    assert {k: v for k, v in own.items() if k in shared} == shared
    if not extra:
        assert own.keys() == shared.keys()


@pytest.mark.parametrize("variant", ["base", "eventful_top48"])
def test_detections_are_the_reference(variant: str) -> None:
    arrays = reference_arrays("det_small_frcnn_outputs.npz")
    state = reference_arrays("det_small_frcnn_state.npz")
    sizes: dict[str, Any] = {"size": (16, 16), "window": (6, 6), "position_size": (7, 7)}
    network = ViTDet(
        30, 48, 3, 4, (1, 3), **sizes, variant="eventful", scene_cut=None, channels=32, width=64
    )
    network.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    network.eval()
    kept = network.init_state(1, 256, 256)
    for t, rgb in enumerate(arrays["video_uint8"].transpose(0, 2, 3, 1)):
        pixels = Pixels((256, 176))(torch.from_numpy(rgb.transpose(2, 0, 1).copy())[None])[0]
        x = torch.nn.functional.pad(pixels, (0, 0, 0, 80))  # the square of the training
        if variant == "eventful_top48":
            found = network.forward_step(x[None], kept, TopTokens(48))[0]
        else:
            found = network(x[None])[0]
            if not t:
                check_parts(network, x, arrays)
        boxes, scores, labels = (
            arrays[f"{variant}|{k}/{t}"] for k in ("boxes", "scores", "labels")
        )
        assert len(found.scores) == 100
        for box, score, label in zip(boxes, scores, labels, strict=True):
            near = (found.boxes - torch.from_numpy(box)).abs().amax(1) < 2e-3
            near &= ((found.scores - float(score)).abs() < 1e-4) & (found.labels == int(label))
            assert near.any()


def check_parts(network: ViTDet, x: Tensor, arrays: dict[str, np.ndarray]) -> None:
    def near(given: Tensor, name: str, tolerance: float = 5e-5) -> None:
        assert (given - torch.from_numpy(arrays[f"base|{name}/0"])).abs().max() < tolerance

    near(x, "norm_padded_image", 1e-6)
    tokens = network.embed(x[None])
    near(tokens[0].flatten(0, 1), "tokens_in")
    encoded = network.backbone(tokens)
    near(encoded[0].flatten(0, 1), "tokens_out")
    view = network.view(encoded)
    for level, given in enumerate(view.maps, 2):
        near(given[0], f"pyramid/p{level}")
    proposals = network.propose(view, (256, 256))[0]
    near(proposals.boxes, "proposals", 1e-3)
    near(proposals.objectness, "objectness")
