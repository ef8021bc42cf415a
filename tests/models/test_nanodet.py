"""NanoDet-Plus: the numbers of the original network, boxes of frames, a batch of streams."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError, UsageError
from costream.core.records import VideoFrame
from costream.evaluation.evaluate_settings import EvaluateSettings
from costream.evaluation.object_metrics import measure
from costream.labels.clips_with_boxes import ClipWithBoxes, ImageBoxes
from costream.models.build import build, save_model
from costream.models.catalogue import load_model
from costream.models.importing import import_files
from costream.models.objects.nanodet import STRIDES, NanoDetPlus, boxes_at
from costream.models.random_init import random_model
from costream.models.verify import random_items, verify
from costream.nn.eventful.counts import Operations
from costream.options.options import Options
from costream.options.values import token_limit
from costream.runtime.options import check_model_options
from costream.runtime.stop import StopHandler
from kit.data_packs import packs
from kit.foreign_objects import CLASSES, NanoDetModules
from kit.media import make_video
from kit.paths import SAMPLES, WEIGHTS
from kit.runs import records, run

pytestmark = pytest.mark.usefixtures("no_grad")
ORIGINAL = Path(__file__).parent / "references" / "nanodet.npz"


@pytest.fixture(scope="module")
def shipped() -> Any:
    return load_model("nanodet", WEIGHTS / "nanodet.safetensors", device="cpu")


def test_its_outputs_equal_those_of_the_original_network(shipped: Any) -> None:
    """Of the ONNX file in ONNX Runtime, for noise with blue first; scores are sigmoids there."""
    picture = noise(32, 64)
    (rows,) = shipped.network(picture)
    rows[:, :80] = rows[:, :80].sigmoid()
    expected = torch.from_numpy(np.load(ORIGINAL)["output"])
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", ["", "model.", "avg_model."])
def test_a_checkpoint_of_the_training_gives_its_network(tmp_path: Path, prefix: str) -> None:
    published = NanoDetModules()
    tensors = {f"{prefix}{name}": value for name, value in published.state_dict().items()}
    if prefix == "avg_model.":  # beside the weights that were averaged
        tensors |= {f"model.{k}": torch.zeros_like(v) for k, v in published.state_dict().items()}
        tensors["model.aux_head.gfl_cls.weight"] = torch.zeros(1)
    path = tmp_path / "nanodet-plus-m_320.ckpt"
    torch.save({"state_dict": tensors, "epoch": 3}, path)
    card, stored = import_files([path], "mine", {})
    assert (card.labels[4], card.frontend_arguments["box"]) == ("class 4", [320, 320])
    larger, _ = import_files([path], "mine", {"size": "640"})
    assert larger.frontend_arguments["box"] == [640, 640]
    with pytest.raises(ModelError, match="size=100 is not a multiple of 32"):
        import_files([path], "mine", {"size": "100"})
    network = build(card, stored)[0].eval().double()
    picture = noise(96, 160).double()
    expected = published.double()(picture.flip(1))
    # The norms are folded into weights of single precision.
    atol = 1e-6 * float(expected.abs().max())
    torch.testing.assert_close(network(picture), expected, rtol=0, atol=atol)
    assert expected.shape[2] == CLASSES + 32


@pytest.mark.long
@pytest.mark.parametrize(
    "size", [(416, 416), (256, 416), (416, 256), (32, 32), (32, 640), (640, 96), (192, 160)]
)
def test_pictures_of_all_shapes_give_the_original_numbers(
    shipped: Any, tmp_path: Path, size: tuple[int, int]
) -> None:
    """Height and width in pixels; the original takes blue first and returns scores."""
    runtime = pytest.importorskip("onnxruntime")
    pack = packs("teachers2.tar") / "teachers2.tar"
    member = "teachers2/nanodet_plus_m_1.5x_416.onnx"
    with tarfile.open(pack) as archive:
        archive.extract(member, tmp_path, filter="data")
    session = runtime.InferenceSession(str(tmp_path / member))
    picture = noise(*size)
    (given,) = session.get_inputs()
    expected = torch.from_numpy(session.run(None, {given.name: picture.flip(1).numpy()})[0])
    rows = shipped.network(picture)
    rows[..., :80] = rows[..., :80].sigmoid()
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4)


def noise(height: int, width: int) -> torch.Tensor:
    """Return a picture [1, 3, H, W], red first: the second of three that were drawn."""
    generator = np.random.default_rng(59)
    generator.standard_normal((1, 3, 32, 32))
    return torch.from_numpy(generator.standard_normal((1, 3, height, width)).astype(np.float32))


def test_a_box_reaches_as_far_as_its_bins_say() -> None:
    """At a place of the second map: two strides to the left and up, three right and down."""
    bins = torch.full((1, 4, 8), -100.0)
    for side, reach in enumerate((2, 2, 3, 3)):
        bins[0, side, reach] = 100.0
    first = (64 // STRIDES[0]) * (96 // STRIDES[0])
    place = torch.tensor([first + 6 + 2])  # second row, third column of 6
    (box,) = boxes_at(bins.flatten(1), place, (64, 96))
    assert box.tolist() == [32 - 32, 16 - 32, 32 + 48, 16 + 48]


def test_weights_are_int8_in_the_file_and_as_they_were(shipped: Any) -> None:
    from safetensors.torch import load_file

    stored = load_file(WEIGHTS / "nanodet.safetensors")
    values, scale = (stored[f"network.heads.0.0.weight{end}"] for end in ("", "_scale"))
    assert values.dtype == torch.int8
    weight = shipped.network.heads[0][0].weight
    assert torch.equal(weight, values.float() * scale.view(-1, 1, 1, 1))
    assert verify(WEIGHTS / "nanodet.safetensors")


def test_convolutions_in_the_order_of_the_original_are_all_of_them() -> None:
    network = NanoDetPlus(2, stages=((8, 1), (12, 1), (16, 1)), width=8)
    layers = [layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert sorted(map(id, network.in_order())) == sorted(map(id, layers))


def test_frames_of_different_sizes_step_together(shipped: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = ((90, 160), (160, 90), (90, 160))
    pictures = [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]
    frames = [VideoFrame(0, 0.0, 0, picture.copy) for picture in pictures]
    together = shipped.step(frames, shipped.init_state(3))
    for row, frame in enumerate(frames):
        alone = shipped.step([frame], shipped.init_state())
        assert alone.macs > 0
        assert together.objects is not None
        assert len(together.objects[row]) == len(alone.objects[0])
        for one, other in zip(together.objects[row], alone.objects[0], strict=True):
            assert one.label == other.label
            assert one.x1 == pytest.approx(other.x1, abs=1e-2)
    assert together.macs == 3 * alone.macs


def test_operations_are_those_of_the_layers(shipped: Any) -> None:
    """2.44 million parameters; 1.5 billion multiply-accumulates in 416 x 416 pixels."""
    network, counted = shipped.network, Operations()
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(2.44e6, rel=0.01)
    network(torch.zeros(1, 3, 416, 416), counted)
    assert counted.linear == pytest.approx(1.5e9, rel=0.1)


def test_somebody_in_the_sample_has_a_number() -> None:
    done = run("detect", SAMPLES / "room.mp4", "-m", "nanodet", "--start", 5, "--duration", 1, "-f",
               "jsonl", "--track", "--fps", 4)  # fmt: skip
    steps = records(done.stdout, "objects")
    found = [box for step in steps for box in step["boxes"] if box[5] == "person"]
    assert len(steps) == 4
    assert {box[6] for box in found} == {found[0][6]}


def test_a_change_of_the_picture_can_be_chosen_but_no_number_of_tokens(shipped: Any) -> None:
    for tokens in ("all", ">2"):
        check_model_options(Options(model="nanodet", tokens=token_limit(tokens)), shipped)
    with pytest.raises(UsageError, match="--tokens: nanodet takes a change of the picture"):
        check_model_options(Options(model="nanodet", tokens=9), shipped)
    fast = load_model("nanodet", WEIGHTS / "nanodet.safetensors", device="cpu", dtype="bfloat16")
    with pytest.raises(UsageError, match="nanodet computes complete pictures with this"):
        check_model_options(Options(model="nanodet", tokens=">2"), fast)


def test_only_what_can_be_evaluated_is(shipped: Any, tmp_path: Path) -> None:
    settings = EvaluateSettings("nanodet", None, tmp_path, labels=tmp_path, tokens=(4,))
    with pytest.raises(UsageError, match="--tokens: nanodet takes a change of the picture"):
        measure(shipped, [], settings, StopHandler())


def in_a_corner(k: int, size: tuple[int, int]) -> np.ndarray:
    """A still picture with a square that moves in a corner."""
    picture = np.full((size[1], size[0], 3), 90, np.uint8)
    picture[8:24, 8 + k : 24 + k] = 250
    return picture


@pytest.mark.slow
def test_places_that_have_changed_are_evaluated_beside_complete_pictures(
    shipped: Any, tmp_path: Path
) -> None:
    film = make_video(tmp_path / "a.mp4", frames=16, rate=10, size=(160, 96), pattern=in_a_corner)
    marks = ImageBoxes(np.array([[0.1, 0.1, 0.3, 0.4]]), ("person",), relative=True)
    clip = ClipWithBoxes((str(film),), dict.fromkeys(range(16), marks))
    settings = EvaluateSettings("nanodet", None, None, tokens=("100%", ">4"))
    full, places = measure(shipped, [clip], settings, StopHandler())["budgets"]
    assert (full["tokens"], places["tokens"]) == ("all", ">4")
    assert full["pictures"] == places["pictures"] == 16
    assert full["macs"] == full["dense_macs"] == places["dense_macs"]
    assert places["macs"] < 0.9 * full["macs"]
    settings = EvaluateSettings("nanodet", None, None)
    (row,) = measure(shipped, [clip], settings, StopHandler())["budgets"]
    assert (row["tokens"], row["macs"]) == ("default", places["macs"])


def test_cards_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    small = {"classes": 2, "stages": [[8, 1], [12, 1], [16, 1]], "width": 8}
    card, network, front = random_model("nanodet", "small", small)
    path = tmp_path / "small.safetensors"
    save_model(path, card, network, front)
    model = load_model(str(path), device="cpu")
    assert model.step(random_items(model, 1), model.init_state()).objects is not None
    card.frontend_arguments["patch"] = 16
    save_model(
        path, card, *build(card, {f"network.{k}": v for k, v in network.state_dict().items()})
    )
    with pytest.raises(ModelError, match="whole squares of 32 pixels"):
        load_model(str(path), device="cpu")
    with pytest.raises(ValueError, match="64x48 pixels are not multiples of 32"):
        network(torch.zeros(1, 3, 48, 64))


def test_pictures_may_have_another_size() -> None:
    for size in (320, 640):
        model = load_model(f"nanodet@{size}", WEIGHTS / "nanodet.safetensors", device="cpu")
        assert model.info.box == (size, size)
        assert not model.info.card.costs  # they are of the size of the file
    for name, message in (
        ("nanodet@600", "multiple of 32 up to 4096; nanodet@608"),
        ("nanodet@0", "nanodet@32"),
        ("mn04@320", "the size of its pictures is fixed; use mn04"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(name, WEIGHTS)
    with pytest.raises(ModelError, match="the size of auto is fixed; use nanodet@SIZE,mn04"):
        load_model("auto@640")
