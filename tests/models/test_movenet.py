"""MoveNet MultiPose: the original network's numbers, and its persons in a stream of frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from costream.core.errors import ModelError
from costream.core.layouts import COCO_17
from costream.core.records import Box, VideoFrame
from costream.models.catalogue import load_model
from costream.models.pose.choice import find_joints_with
from costream.models.pose.crowd import CrowdEstimator, padded
from costream.models.pose.found import ObjectBox
from costream.models.pose.movenet import FoundPersons, MoveNet, convert
from costream.models.pose.weights import pose_network
from costream.models.verify import verify
from costream.nn import fast
from costream.weights_io.file import read_weights
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from kit.paths import WEIGHTS

# Of room.mp4, and for each what TFLite's interpreter returns for the graph of the original file
# with the weights of movenet.safetensors, which its float16 constants round.
ORIGINAL = dict(np.load(Path(__file__).parent / "references" / "movenet.npz"))
PICTURES = ("wide", "one", "tall")
CROWD = ORIGINAL["wide"]  # the same person four times


@pytest.fixture(scope="module")
def network() -> MoveNet:
    found = pose_network("movenet")
    assert isinstance(found, MoveNet)
    return found


def batch(picture: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(picture).permute(2, 0, 1)[None]


@pytest.mark.parametrize("name", PICTURES)
def test_persons_are_those_of_the_original_network(network: MoveNet, name: str) -> None:
    """Joints and boxes within 1e-3 of the picture, and scores within 1e-3."""
    rounded = MoveNet()
    rounded.load_state_dict(network.state_dict())
    picture, rows = ORIGINAL[name], torch.from_numpy(ORIGINAL[f"{name}_persons"])
    found = rounded.half().float().eval().find(batch(picture))[0]
    height, width = picture.shape[:2]
    there = rows[:, 55] > 1e-3  # those without a score are places of a flat map
    assert there.sum() >= (2 if name == "one" else 4)
    joints = rows[:, :51].view(-1, 17, 3)
    sides = torch.tensor([width, height])
    for ours, theirs in (
        (found.joints / sides, joints[..., [1, 0]]),
        (found.boxes / sides.repeat(2), rows[:, [52, 51, 54, 53]]),
        (found.scores, joints[..., 2]),
        (found.score, rows[:, 55]),
    ):
        torch.testing.assert_close(ours[there], theirs[there], rtol=0, atol=1e-3)


def test_pictures_of_a_batch_are_found_as_alone(network: MoveNet) -> None:
    pictures = torch.cat([batch(CROWD), batch(CROWD[::-1].copy())])
    both = network.find(pictures)
    for row, found in zip(pictures, both, strict=True):
        alone = network.find(row[None])[0]
        for ours, theirs in zip(found, alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_persons_below_the_least_score_are_left_out(network: MoveNet) -> None:
    everybody, sure = (network.find(batch(CROWD), least)[0] for least in (0.0, 0.15))
    assert len(everybody.score) == 6
    kept = everybody.score >= 0.15
    assert kept.sum() == 4
    for ours, theirs in zip(sure, everybody, strict=True):
        torch.testing.assert_close(ours, theirs[kept])
    assert not len(network.find(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), 0.5)[0].joints)


def test_operations_of_a_picture(network: MoveNet) -> None:
    """Those of the maps that are computed everywhere, as PyTorch counts them."""
    fresh = MoveNet()
    counted = FlopCounterMode(display=False)
    with fast.use_kernels(False), counted, torch.no_grad():
        fresh(torch.zeros(1, 3, 64, 96))
    assert network.macs(64, 96) == counted.get_total_flops() // 2
    with pytest.raises(ValueError, match="100x64 pixels are not multiples of 32"):
        network(torch.zeros(1, 3, 64, 100))


def as_tflite(network: MoveNet) -> ForeignCheckpoint:
    """The network as the reader of TFLite files returns the original's graph."""
    tensors, operators = {}, []
    for k, layer in enumerate(network.in_order()):
        weight, bias = f"tflite.{3 * k + 1}", f"tflite.{3 * k + 2}"
        kind = "depthwise" if layer.groups > 1 else "conv"
        axes = (1, 2, 3, 0) if kind == "depthwise" else (0, 2, 3, 1)
        tensors[weight] = layer.weight.detach().half().float().permute(axes)
        none = torch.zeros(layer.out_channels)
        tensors[bias] = none if layer.bias is None else layer.bias.detach()
        inputs = [3 * k, 3 * k + 1, 3 * k + 2]
        operators.append({"kind": kind, "inputs": inputs, "outputs": [3 * k + 3]})
    last = operators[-1]["outputs"][0]
    args = {"outputs": [(last, [1, 6, 56])], "operators": operators}
    return ForeignCheckpoint(Path("movenet.tflite"), tensors, args)


def test_a_tflite_file_is_imported() -> None:
    torch.manual_seed(0)
    network = MoveNet()
    imported = convert(as_tflite(network), ImportSettings({}, ()))
    expected: Any = network.state_dict()
    assert imported.tensors.keys() == expected.keys()
    for name, tensor in imported.tensors.items():
        kept = expected[name].half().float() if tensor.dtype == torch.float16 else expected[name]
        assert torch.equal(tensor.float(), kept)
    damaged = as_tflite(network)
    damaged.tensors["tflite.1"] = damaged.tensors["tflite.1"][:24]
    with pytest.raises(ModelError, match="80 convolutions, which are not those of MoveNet"):
        convert(damaged, ImportSettings({}, ()))


def test_the_weights_are_int8_where_that_costs_nothing() -> None:
    path = WEIGHTS / "movenet.safetensors"
    assert verify(path)
    tensors = read_weights(path).tensors
    weights = {name: t for name, t in tensors.items() if name.endswith(".weight")}
    whole = {name for name, t in weights.items() if t.dtype == torch.int8}
    numbers = sum(weights[name].numel() for name in whole)
    assert numbers > 0.9 * sum(t.numel() for t in weights.values())
    near = ("network.heads.", "network.finer.", "network.sideways.", "network.stem.")
    assert not any(name.startswith(near) for name in whole)
    with pytest.raises(ModelError, match=r"no labels; .*-m costgcn-2d --pose movenet"):
        load_model("movenet", path)


def test_a_picture_is_fitted_with_its_proportions() -> None:
    rgb = np.full((270, 480, 3), 200, np.uint8)
    picture = padded(rgb)
    assert picture.shape == (1, 3, 192, 320)
    assert picture[..., :180, :].min() == 200
    assert not picture[..., 180:, :].any()


def test_persons_of_a_crowd_in_a_stream(network: MoveNet) -> None:
    """They are kept while nothing moves, for half a second; a known person needs a lower score."""
    estimator = CrowdEstimator(network, 8)
    first = estimator.find(CROWD, 0.0)
    again = [estimator.find(CROWD, k / 10) for k in range(1, 5)]
    assert (estimator.computed, estimator.kept) == (1, 4)
    assert all(found is first for found in again)
    assert estimator.ran is not None
    assert (estimator.ran.reason, estimator.ran.macs) == (None, 0)
    moved = np.roll(CROWD, 6, 1)
    later = estimator.find(moved, 0.5)
    assert estimator.computed == 2
    assert estimator.ran.reason == "motion"
    assert estimator.ran.macs == network.macs(192, 320)
    assert len(later) >= len(first) >= 3
    for person in first:
        assert any(person.is_near(other, 0.2) for other in later)
        assert person.layout is COCO_17
        assert person.joints is None


class Told(MoveNet):
    """Finds what it is told to: the middles of persons and their scores."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[float, float]] = []  # x in pixels, score

    def find(self, pictures: torch.Tensor, least: float = 0.0) -> list[FoundPersons]:
        told = [(x, score) for x, score in self.told if score >= least]
        body = torch.linspace(-20, 20, 17)
        columns = torch.tensor([x for x, _ in told]).view(-1, 1) + 0 * body
        joints = torch.stack([columns, 90 + body.expand_as(columns)], 2)
        score = torch.tensor([score for _, score in told])
        return [FoundPersons(joints, torch.full((len(told), 17), 0.25), joints[:, :2, 0], score)]


def noise(k: int) -> np.ndarray:
    return np.random.default_rng(k).integers(0, 256, (180, 320, 3), dtype=np.uint8)


def xs(found: list[Any]) -> list[float]:
    return [round(float(person.middle[0]) * 320) for person in found]


def test_who_is_known_needs_a_lower_score_and_comes_first() -> None:
    network = Told()
    estimator = CrowdEstimator(network, 2)
    network.told = [(100, 0.3), (200, 0.2)]
    assert xs(estimator.find(noise(0), 0.0)) == [100]
    network.told = [(250, 0.9), (200, 0.2), (105, 0.15)]
    found = estimator.find(noise(1), 0.1)
    assert xs(found) == [105, 250]
    assert found[0].scores[0] == pytest.approx(0.5)  # the square root of the network's
    network.told = [(150, 0.2), (105, 0.1)]
    assert xs(estimator.find(noise(2), 0.2)) == []


def test_a_budget_keeps_persons_where_they_were() -> None:
    network, asked = Told(), []
    estimator = CrowdEstimator(network, 2)
    network.told = [(100, 0.3)]
    estimator.find(noise(0), 0.0)

    def may(gain: float, ago_s: float) -> bool:
        asked.append((gain, ago_s))
        return len(asked) > 1

    estimator.may = may
    network.told = [(110, 0.3)]
    assert xs(estimator.find(noise(1), 0.1)) == [100]
    assert xs(estimator.find(noise(2), 0.2)) == [110]
    assert [ago_s for _, ago_s in asked] == [pytest.approx(0.1), pytest.approx(0.2)]
    assert all(0.5 < gain <= 1 for gain, _ in asked)


def test_it_looks_where_a_detector_finds_somebody_and_else_now_and_then() -> None:
    network = Told()
    network.told = [(100, 0.1)]  # nobody
    behind, alone = CrowdEstimator(network, 2, detects=False), CrowdEstimator(network, 2)
    for k in range(10):
        box = ObjectBox(100, 90, 30, 60, 0.3 if k < 9 else 0.5)
        behind.find(noise(k), k / 10, [box])
        alone.find(noise(k), k / 10)
    assert behind.computed == 1
    assert alone.computed == 5


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return ``falls``, which finds joints with it, and the network."""
    network = Told()
    monkeypatch.setattr("costream.models.pose.tracker.pose_network", lambda _: network)
    model: Any = load_model("falls")
    find_joints_with(model, "movenet")
    return model, network


def test_who_appears_far_away_is_another_person(tracked: Any) -> None:
    model, network = tracked
    finder, numbers = model.person_finder(3), []
    for k, x in enumerate((100, 105, 220, 222)):
        network.told = [(x, 0.5)]
        pixels = noise(k)
        skeletons = finder.find(VideoFrame(k, k / 10, k, lambda pixels=pixels: pixels))
        assert skeletons.layout is COCO_17
        there = skeletons.scores.any(1)
        numbers.append([n for n, here in zip(skeletons.persons, there, strict=True) if here])
    assert numbers == [[1], [1], [2], [2]]


def test_boxes_of_a_detector_are_taken(tracked: Any) -> None:
    model, network = tracked
    finder = model.person_finder(3, detects=False)
    network.told = [(100, 0.5)]
    pixels = noise(0)
    frame = VideoFrame(0, 0.0, 0, lambda: pixels)
    assert not finder.find(frame, []).scores.any()
    box = Box(80, 70, 120, 110, 0.9, "person")
    assert finder.find(frame, [box]).scores.any()


def test_models_that_take_joints_in_space_refuse_it() -> None:
    model = load_model("costgcn")
    what = "costgcn takes joints in metres, and movenet finds places in the picture"
    with pytest.raises(ModelError, match=what):
        find_joints_with(model, "movenet")
