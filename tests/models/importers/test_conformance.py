"""Conformance of every registered importer to the contract in ``importers/base.py``."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.label_sets import COCO, THUMOS14
from costream.models.audio import vggish
from costream.models.build import build
from costream.models.importing import import_files
from costream.models.oad import tsn
from costream.weights_io.card import Card
from costream.weights_io.import_settings import KEYS
from costream.weights_io.importer import IMPORTERS
from kit import foreign_sound
from kit.action_nets import small_vivit
from kit.foreign_actions import (
    CMERT_SETTINGS,
    DIALECTS,
    TESTRA_SETTINGS,
    MiniRoadModules,
    classifier,
    drawn_cmert,
    drawn_testra,
    encoder,
    oadtr,
)
from kit.foreign_eventful import in_detectron2, in_tadaconv, rf_detr, small_vitdet, yolos
from kit.foreign_objects import NanoDetModules
from kit.foreign_pictures import efficientnet_lite
from kit.foreign_skeletons import ContinualSkeletons, Pyskl, StGcn, two_stream_agcn
from kit.foreign_video import foreign_tensors
from kit.movinet_clip import SMALL as MOVINET
from kit.movinet_clip import checkpoint as movinet_checkpoint
from kit.paths import ROOT
from kit.tsn_nets import checkpoint as tsn_checkpoint
from kit.video_nets import small_net

EVERY = pytest.mark.parametrize("name", list(IMPORTERS))
# keys of --config that importers read from the tensors
READ = {
    *("embed_dim", "input_width", "feedforward", "depth", "num_positions", "num_classes"),
    *("num_queries", "decoder_depth", "decoder_feedforward"),
}


@dataclass(frozen=True)
class Case:
    """A made-up checkpoint of an importer."""

    make: Callable[[], Mapping[str, Tensor]]
    tensor: str  # one of its tensors
    settings: dict[str, str] = field(default_factory=dict)  # all that must be given
    classes: int = 0  # that are given labels
    ours: str = ""  # the tensor's name in the network, where that is what misses it
    published: str = ""  # settings that are taken where they are not given


RATE = {"rate_hz": "4"}
FOUR_HZ = "rate_hz=4"
WINDOW = {"num_heads": "3", "window": "5"}
ALONE = {"num_heads": "2", "window": "4", "activation": "gelu"}
JOINT = {"stream": "joint"}
NTU_LAYOUT = "layout=ntu-25"
PADDED = {**JOINT, "padding": "same"}
VIDEO_TENSOR, CAFFE_TENSOR = "s3.pathway0_res0.branch2.b_bn.bias", "res3_0_branch2b_bn_b"
OUR_VIDEO = "encoder.stages.1.0"
CASES = {
    "oadtr": Case(
        oadtr,
        "decoder.layers.1.norm2.bias",
        {"num_heads": "3"},
        6,
        published="decoder_heads=4, rate_hz=4",
    ),
    "miniroad": Case(
        lambda: MiniRoadModules().state_dict(), "gru.bias_hh_l0", {}, 22, published=FOUR_HZ
    ),
    **{
        f"cooadtr, {dialect} of {depth}": Case(
            partial(classifier, dialect, depth), tensor, WINDOW, 5, published=FOUR_HZ
        )
        for (dialect, depth), tensor in zip(
            DIALECTS,
            (
                *("3.2.1.3.bias", "3.0.1.fn.1.fn.3.bias", "2.1.norm2.fn.bias"),
                *("2.layers.0.1.norm2.fn.bias", "2.layers.1.fn.1.norm2.fn.weight"),
            ),
            strict=True,
        )
    },
    "deepcot": Case(
        partial(classifier, "deepcot", 3),
        "2.layers.2.1.norm2.fn.bias",
        WINDOW,
        5,
        published=FOUR_HZ,
    ),
    "continual-0.17": Case(partial(encoder, "0.17", 2, 8, 6), "1.fn.3.fn.bias", ALONE),
    "continual": Case(partial(encoder, "1.x", 2, 8, 6), "layers.0.1.fn.norm1.bias", ALONE),
    "continual, a layer": Case(partial(encoder, "1.x", 1, 8, 6), "1.norm1.fn.bias", ALONE),
    "continual-skeletons": Case(
        lambda: ContinualSkeletons(False).w,
        "layers.layer2.tcn.bn.running_var",
        PADDED,
        published=NTU_LAYOUT,
    ),
    "continual-skeletons, S-TR": Case(
        lambda: ContinualSkeletons(True).w,
        "layers.layer4.gcn.data_bn.bias",
        PADDED,
        published=NTU_LAYOUT,
    ),
    "continual-skeletons, continual": Case(
        lambda: ContinualSkeletons(False).continual(),
        "layers.layer2.0.1.tcn.bn.bias",
        PADDED,
        published=NTU_LAYOUT,
    ),
    "st-gcn": Case(lambda: StGcn().w, "st_gcn_networks.1.tcn.3.running_var", JOINT),
    "2s-agcn": Case(two_stream_agcn, "l2.gcn1.conv_a.0.bias", JOINT, published=NTU_LAYOUT),
    **{
        f"pyskl{', ST-GCN++' if plus else ''}": Case(
            partial(lambda plus: Pyskl(plus).w, plus),
            "backbone.gcn.1.tcn.bn.running_var",
            JOINT,
            published="rate_hz=30",
        )
        for plus in (False, True)
    },
    "vitdet": Case(lambda: small_vitdet().state_dict(), "pyramid.stages.1.2.bias", RATE, 80),
    "vitdet, detectron2": Case(
        lambda: {in_detectron2(k): v for k, v in small_vitdet().state_dict().items()},
        "backbone.simfp_3.1.norm.bias",
        RATE,
        80,
        "pyramid.stages.1.2.bias",
    ),
    "slowfast, X3D": Case(
        lambda: foreign_tensors(small_net("x3d"), "slowfast"),
        VIDEO_TENSOR,
        classes=3,
        ours=f"{OUR_VIDEO}.b_bn.bias",
    ),
    "slowfast, Slow": Case(
        lambda: foreign_tensors(small_net("slow"), "slowfast"),
        VIDEO_TENSOR,
        classes=3,
        ours=f"{OUR_VIDEO}.b_bn.bias",
    ),
    "slowfast, Caffe2": Case(
        lambda: foreign_tensors(small_net("i3d"), "caffe"),
        CAFFE_TENSOR,
        classes=3,
        ours=f"{OUR_VIDEO}.b_bn.bias",
    ),
    **{
        f"pytorchvideo, {kind}": Case(
            partial(lambda kind: foreign_tensors(small_net(kind), "pytorchvideo"), kind),
            f"blocks.{3 if kind == 'i3d' else 2}.res_blocks.0.branch2.norm_c.bias",
            classes=3,
            ours=f"{OUR_VIDEO}.c_bn.bias",
        )
        for kind in ("x3d", "slow", "i3d")
    },
    "vivit": Case(
        lambda: small_vivit().state_dict(),
        "spatial_model.backbone.blocks.1.projection.bias",
        {"num_heads": "2", **RATE},
        3,
    ),
    "vivit, TAdaConv": Case(
        lambda: {in_tadaconv(k): v for k, v in small_vivit().state_dict().items()},
        "backbone.layers.1.attn.proj.bias",
        {"num_heads": "2", **RATE},
        3,
        "spatial_model.backbone.blocks.1.projection.bias",
    ),
    "torch": Case(
        partial(encoder, "torch", 2, 8, 6), "layers.1.norm1.bias", {**ALONE, "norm_first": "no"}
    ),
    "yamnet": Case(foreign_sound.yamnet, "layer7.pointwise_conv.bn.bias", classes=5),
    "movinet": Case(
        lambda: movinet_checkpoint(MOVINET, 5), "blocks.b1_l0.deep.conv_2.norm.bias", classes=5
    ),
    "yolos": Case(
        yolos,
        "vit.encoder.layer.1.output.dense.bias",
        classes=80,
        published="norm_eps=1e-06",
    ),
    "rf-detr": Case(
        rf_detr,
        "transformer.decoder.layers.1.linear2.bias",
        classes=80,
    ),
    "efficientat": Case(
        lambda: foreign_sound.EfficientAtModules().state_dict(),
        "features.8.block.1.1.bias",
        classes=5,
    ),
    "efficientnet-lite": Case(
        lambda: efficientnet_lite(1.0, 1.0, 5),
        "_blocks.1._bn1.bias",
        classes=5,
    ),
    "nanodet": Case(
        lambda: NanoDetModules().state_dict(),
        "fpn.top_down_blocks.1.blocks.0.shortcut.3.bias",
        classes=5,
        published="size=416",
    ),
    "testra": Case(
        drawn_testra,
        "dec_modules.layers.1.norm3.bias",
        TESTRA_SETTINGS,
        22,
        published=FOUR_HZ,
    ),
    "cmert": Case(
        drawn_cmert,
        "gen_layer.layers.1.norm3.bias",
        CMERT_SETTINGS,
        22,
        published=FOUR_HZ,
    ),
}
EVERY_CASE = pytest.mark.parametrize("name", CASES)
pytestmark = pytest.mark.usefixtures("small_sizes")
Run = Callable[..., tuple[Card, dict[str, Tensor]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Import tensors of a case, with other settings where given (None: without), and build it."""

    def run(case: Case, content: object, **changes: str | None) -> tuple[Card, dict[str, Tensor]]:
        names = "\n".join(f"class {k}" for k in range(case.classes))
        (tmp_path / "labels.txt").write_text(names, encoding="utf-8")
        torch.save(content, tmp_path / "checkpoint.pth")
        config = case.settings | ({"labels": str(tmp_path / "labels.txt")} if names else {})
        given = {key: value for key, value in {**config, **changes}.items() if value is not None}
        card, tensors = import_files([tmp_path / "checkpoint.pth"], "test", given)
        build(card, tensors)
        return card, tensors

    return run


def refusal(run: Run, name: str, content: object, **changes: str | None) -> str:
    """Return the message of the one error that an import ends with."""
    with pytest.raises(ModelError) as caught:
        run(CASES[name], content, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_importer_has_a_case() -> None:
    """But for what is read from a graph, not from named tensors: tests/models/test_pose.py."""
    named = [name for name in IMPORTERS if name not in ("blazepose", "movenet")]
    assert list(dict.fromkeys(name.split(",")[0] for name in CASES)) == named


@EVERY
def test_declares_how_it_is_recognised_and_set(name: str) -> None:
    entry = IMPORTERS.get(name)
    assert entry.info["summary"]
    assert callable(entry.target)
    assert set(entry.info["keys"]) <= set(KEYS), "a key that --config does not document"


@EVERY
def test_recognises_no_foreign_tensors(name: str) -> None:
    detect = IMPORTERS.get(name).info["detect"]
    assert not detect({})
    assert not detect({"weight": torch.zeros(2, 2), "layer1.0.bias": torch.zeros(2)})
    assert not detect(tsn_checkpoint(3))
    assert not detect(foreign_sound.vggish((2,) * 6, 4, 4))


@EVERY
def test_a_checkpoint_without_its_tensors_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save({"weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ModelError) as caught:
        import_files([path], "test", {}, name)
    assert "\n" not in str(caught.value)


@EVERY_CASE
def test_exactly_one_importer_recognises_it_and_none_of_the_frontends(name: str) -> None:
    tensors = CASES[name].make()
    claims = [other for other in IMPORTERS if IMPORTERS.get(other).info["detect"](tensors)]
    assert claims == [name.split(",")[0]]
    assert not tsn.detect(tensors)
    assert not vggish.detect(tensors)


@EVERY_CASE
def test_a_training_state_of_a_parallel_module_is_the_same_network(name: str, run: Run) -> None:
    tensors = CASES[name].make()
    card, expected = run(CASES[name], tensors)
    wrapped = {f"module.{key}": value for key, value in tensors.items()}
    state = {"model": wrapped, "epoch": 3, "args": argparse.Namespace(lr=1e-4)}
    other, given = run(CASES[name], state)
    assert other == card
    assert given.keys() == expected.keys()
    assert all(torch.equal(given[key], value) for key, value in expected.items())


@EVERY_CASE
def test_tensors_that_are_missing_left_over_or_misshapen_are_named(name: str, run: Run) -> None:
    case, tensors = CASES[name], dict(CASES[name].make())
    key = re.escape(case.ours or case.tensor)
    lost = tensors.pop(case.tensor)
    assert re.search(rf"missing: (network\.)?{key}($|[,; ])", refusal(run, name, tensors))
    if name == "oadtr":
        message = refusal(run, name, {**tensors, "strange.weight": torch.zeros(2)})
        assert f"missing: {case.tensor}; left over: strange.weight" in message
    misshapen = {**tensors, case.tensor: torch.zeros(99)}
    assert re.search(rf"{key} is \(99,\), not \(\d+,\)", refusal(run, name, misshapen))
    more = {**tensors, case.tensor: lost, "strange.weight": torch.zeros(2)}
    assert "left over: strange.weight" in refusal(run, name, more)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.settings])
def test_all_that_no_tensor_determines_is_asked_for_at_once(name: str, run: Run) -> None:
    case = CASES[name]
    message = refusal(run, name, case.make(), **dict.fromkeys(case.settings))
    lacking, flags = message.partition("does not contain ")[2].split("; set ")
    for key in case.settings:
        assert f"{key} (" in lacking
        assert f"--config {key}=..." in flags
    assert flags.count("--config") == len(case.settings)


@EVERY_CASE
def test_published_settings_are_taken_and_stand_in_the_card(name: str, run: Run) -> None:
    case = CASES[name]
    card, _ = run(case, case.make())
    noted = f"taken from the published settings: {case.published}."
    assert case.published == "" or noted in card.limits
    assert case.published != "" or "Not in the checkpoint" not in card.limits


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.classes])
def test_classes_without_names_get_those_of_the_data_set_or_numbers(name: str, run: Run) -> None:
    case = CASES[name]
    labels = run(case, case.make(), labels=None)[0].labels
    names = {22: THUMOS14.names, 80: COCO.names}
    assert labels == names.get(case.classes, tuple(f"class {k}" for k in range(case.classes)))


@EVERY_CASE
def test_what_the_tensors_determine_cannot_be_contradicted(name: str, run: Run) -> None:
    case, tensors = CASES[name], CASES[name].make()
    for key in READ & set(IMPORTERS.get(name.split(",")[0]).info["keys"]):
        message = refusal(run, name, tensors, **{key: "999"})
        found = re.search(
            rf"{key}=999 contradicts the checkpoint, whose tensors say (\d+)", message
        )
        assert found, message
        run(case, tensors, **{key: found[1]})


def test_orders_of_detection_differ() -> None:
    orders = [entry.info["order"] for entry in IMPORTERS.entries().values()]
    assert orders == sorted(set(orders))


OUTSIDE = '''
from __future__ import annotations

from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import ImportedNetwork


@importer(
    "gru-zoo",
    summary="GRU of a made-up project",
    detect=lambda tensors: "cell.weight_ih" in tensors,
    keys=("num_classes",),
)
def convert(foreign, settings):
    """Return the network."""
    t = foreign.tensors
    settings.check("num_classes", t["out.weight"].shape[0])
    width = t["embed.weight"].shape[1]
    return ImportedNetwork("features", {"embed_dim": width}, {}, None, None, "", task="features")
'''


@IMPORTERS.temporarily()
def test_one_file_outside_adds_an_importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gru_zoo.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    import_module("gru_zoo")
    tensors = {
        "embed.weight": torch.randn(4, 3),
        "embed.bias": torch.randn(4),
        "cell.weight_ih": torch.randn(12, 4),
        "out.weight": torch.randn(2, 4),
        "out.bias": torch.randn(2),
    }
    torch.save(tensors, tmp_path / "zoo.pth")
    card, weights = import_files([tmp_path / "zoo.pth"], "zoo", {"num_classes": "2"})
    assert (card.architecture, card.arguments) == ("features", {"embed_dim": 3})
    assert card.description == "Imported from a checkpoint of: GRU of a made-up project."
    assert build(card, weights)[0] is not None
    with pytest.raises(ModelError, match="num_classes"):
        import_files([tmp_path / "zoo.pth"], "zoo", {"num_classes": "3"})


def test_listing_imports_no_torch() -> None:
    code = "import sys; from costream.weights_io.importer import *; print(*IMPORTERS); "
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:3] == ["oadtr", "miniroad", "cooadtr"]
