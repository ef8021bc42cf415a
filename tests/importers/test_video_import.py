"""3D networks under the names of SlowFast, of its Caffe2 files and of PyTorchVideo."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.errors import ModelError
from costream.importers import video3d
from costream.importers.config import KEYS, ImportSettings
from costream.importers.pickles import ForeignCheckpoint
from costream.importers.pytorchvideo import convert as from_pytorchvideo
from costream.importers.run import import_files
from costream.importers.slowfast import convert as from_slowfast
from costream.labels.names import KINETICS400
from costream.models.build import build, new_network
from costream.models.video3d import VideoNet
from costream.nn.video3d.sizes import TASK, VideoNetSize, find_size
from kit.video_nets import KINDS, REFERENCES, published_keys, small_net, video

NORMS = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}
SAID = {"labels": "kinetics-400"}


class Small(VideoNetSize):
    """The sizes of a small network in place of a published one's."""

    def arguments(self) -> dict[str, Any]:
        """Return those of ``video_nets``."""
        sizes = {key: list(v) if isinstance(v, tuple) else v for key, v in KINDS[self.kind].items()}
        return {"kind": self.kind, "size": 19, "head": [], **sizes}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [Small(kind, kind, 19, 24, 6, 5.0, ()) for kind in KINDS]
    monkeypatch.setattr(video3d, "SIZES", sizes)


def in_slowfast(name: str) -> str:
    name = name.removeprefix("encoder.")
    if found := re.match(r"stages\.(\d)\.(\d+)\.(.+)", name):
        rest = found[3].replace("squeeze.", "se.")
        beside = rest.startswith("shortcut")
        rest = rest.replace("shortcut", "branch1") if beside else f"branch2.{rest}"
        return f"s{int(found[1]) + 2}.pathway0_res{found[2]}.{rest}"
    return {
        "stem": name.replace("stem", "s1.pathway0_stem"),
        "conv": f"head.conv_5.{name.split('.')[-1]}",
        "conv_bn": f"head.conv_5_bn.{name.split('.')[-1]}",
        "linear": "head.lin_5.weight",
        "classifier": name.replace("classifier", "head.projection"),
    }[name.split(".")[0]]


def in_caffe(name: str) -> str | None:
    name, _, end = name.removeprefix("encoder.").rpartition(".")
    if end == "num_batches_tracked":
        return None
    if name == "classifier":
        return f"pred_{end[0]}"
    if name == "stem.conv":
        return "conv1_w"
    if name == "stem.bn":
        return f"res_conv1_bn_{NORMS[end]}"
    _, stage, number, part = name.split(".")
    part, _, norm = part.partition("_")
    branch = "1" if part == "shortcut" else f"2{part}"
    return f"res{int(stage) + 2}_{number}_branch{branch}_{f'bn_{NORMS[end]}' if norm else 'w'}"


def in_pytorchvideo(name: str, kind: str) -> str | None:
    name = name.removeprefix("encoder.")
    last = 1 + len(KINDS[kind]["depths"]) + (kind == "i3d")  # type: ignore[arg-type]
    if found := re.match(r"stages\.(\d)\.(\d+)\.(.+)", name):
        stage, rest = int(found[1]) + 1, found[3]
        stage += kind == "i3d" and stage > 1  # its pooling is one of the blocks
        swish = "norm_b.0." if kind == "x3d" else "norm_b."
        pairs = [("shortcut_bn.", "branch1_norm."), ("shortcut.", "branch1_conv.")]
        pairs += [("squeeze.fc1.", "branch2.norm_b.1.block.0.")]
        pairs += [("squeeze.fc2.", "branch2.norm_b.1.block.2.")]
        pairs += [("b_bn.", f"branch2.{swish}")]
        pairs += [(f"{k}_bn.", f"branch2.norm_{k}.") for k in "ac"]
        pairs += [(f"{k}.", f"branch2.conv_{k}.") for k in "abc"]
        ours, theirs = next(pair for pair in pairs if rest.startswith(pair[0]))
        return f"blocks.{stage}.res_blocks.{found[2]}.{theirs}{rest.removeprefix(ours)}"
    separate = kind == "x3d"
    pairs = [("stem.conv_xy.", "blocks.0.conv.conv_t."), ("stem.bn.", "blocks.0.norm.")]
    pairs += [("stem.conv.", "blocks.0.conv.conv_xy." if separate else "blocks.0.conv.")]
    pairs += [("conv_bn.", f"blocks.{last}.pool.pre_norm.")]
    pairs += [("conv.", f"blocks.{last}.pool.pre_conv.")]
    pairs += [("linear.", f"blocks.{last}.pool.post_conv.")]
    pairs += [("classifier.", f"blocks.{last}.proj.")]
    ours, theirs = next(pair for pair in pairs if name.startswith(pair[0]))
    return theirs + name.removeprefix(ours)


def foreign_tensors(net: VideoNet, dialect: str) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for name, value in net.float().state_dict().items():
        theirs = {
            "slowfast": in_slowfast(name),
            "pytorchvideo": in_pytorchvideo(name, net.encoder.kind),
            "caffe": None if net.encoder.kind == "x3d" else in_caffe(name),
        }[dialect]
        pointwise = "squeeze.fc" in name or "encoder.linear" in name
        if theirs is not None:
            wide = pointwise and value.dim() == 2
            named[theirs] = value[..., None, None, None] if wide else value
    return named


def written(tensors: Mapping[str, Tensor], dialect: str, path: Path) -> Path:
    if dialect == "caffe":
        blobs = {name: value.numpy() for name, value in tensors.items()}
        blobs |= {"conv1_w_momentum": blobs["conv1_w"], "lr": blobs["pred_b"][:1]}
        path.write_bytes(pickle.dumps({"blobs": blobs}, protocol=2))
    else:
        state = {"model_state": dict(tensors), "epoch": 3, "cfg": "NUM_GPUS: 8"}
        torch.save(state, path)
    return path


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("sliding", [False, True])
@pytest.mark.parametrize(
    ("dialect", "kind"),
    [*((d, k) for d in ("slowfast", "pytorchvideo") for k in KINDS), ("caffe", "i3d")],
)
def test_the_network_is_the_same(dialect: str, kind: str, sliding: bool, tmp_path: Path) -> None:
    net = small_net(kind)
    path = written(foreign_tensors(net, dialect), dialect, tmp_path / "net.pyth")
    labels = tmp_path / "labels.txt"
    labels.write_text("walk\nrun\njump\n")
    config = {"labels": str(labels)} | ({"sliding": "2"} if sliding else {"pool": "3"})
    if kind == "x3d":
        config["network"] = "x3d-s"
    card, tensors = import_files([path], "mine", config)
    assert card.architecture == (kind if sliding else f"co{kind}")
    assert (card.labels, card.rate_hz, card.task) == (("walk", "run", "jump"), 5.0, TASK)
    assert (card.frontend, card.frontend_arguments) == ("crop", {"size": 19, "short_side": 24})
    with torch.no_grad():
        own, _ = build(card, tensors)
        x = video(6).float()
        torch.testing.assert_close(own.eval()(x), net(x))
    assert own.stride == (2 if sliding or kind == "i3d" else 1)


@pytest.mark.skipif(not REFERENCES.exists(), reason="needs ../shared/refs beside the repository")
@pytest.mark.parametrize("dialect", ["slowfast", "ptv"])
def test_names_of_the_published_x3d(dialect: str) -> None:
    convert = from_slowfast if dialect == "slowfast" else from_pytorchvideo
    shapes = published_keys(f"{dialect}_x3d_s")
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    config = ImportSettings({"network": "x3d-s", "pool": "64", "start": "replicate"}, KEYS)
    given = convert(ForeignCheckpoint(Path("x3d_s.pyth"), tensors, {}), config)
    with torch.device("meta"):
        own = VideoNet(**given.arguments).state_dict()
    assert {k: v.shape for k, v in given.tensors.items()} == {k: v.shape for k, v in own.items()}
    assert (given.rate_hz, given.num_classes, given.arguments["pool"]) == (5.0, 400, 64)
    norm = "encoder.stages.0.0.shortcut_bn."
    if dialect == "ptv":  # it has none there: ours does nothing
        assert given.tensors[f"{norm}weight"].unique().tolist() == [1.0]
        var = given.tensors[f"{norm}running_var"] + 1e-5
        torch.testing.assert_close(var, torch.ones(24), rtol=0, atol=1e-7)


@pytest.mark.usefixtures("small")
def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    whole = foreign_tensors(small_net("slow"), "slowfast")
    more = {**whole, "s1.pathway1_stem.conv.weight": torch.zeros(2, 3, 5, 7, 7)}
    with pytest.raises(ModelError, match=r"left over: s1\.pathway1_stem\.conv\.weight"):
        import_files([written(more, "slowfast", tmp_path / "a")], "mine", {})
    less = {k: v for k, v in whole.items() if not k.startswith("s3.")}
    with pytest.raises(ModelError, match="stages are missing"):
        import_files([written(less, "slowfast", tmp_path / "b")], "mine", {})
    odd = {k: v for k, v in whole.items() if not k.startswith("s4.pathway0_res1")}
    with pytest.raises(ModelError, match=r"no published slow has blocks \[1, 1, 1, 1\]"):
        import_files([written(odd, "slowfast", tmp_path / "c")], "mine", {})


def test_x3d_of_the_same_sizes_have_to_be_told_apart(tmp_path: Path) -> None:
    size = find_size("x3d-m")
    assert size is not None
    with torch.device("meta"):
        own = VideoNet(400, **size.arguments()).state_dict()
    tensors = {}
    for name, value in own.items():
        flat = "squeeze.fc" in name or "encoder.linear" in name
        wide = flat and value.dim() == 2
        tensors[in_slowfast(name)] = torch.zeros([*value.shape, *([1] * 3 if wide else [])])
    path = written(tensors, "slowfast", tmp_path / "x3d_m.pyth")
    with pytest.raises(ModelError, match=r"does not contain network .* but image sizes"):
        import_files([path], "mine", SAID)
    card, _ = import_files([path], "mine", {**SAID, "network": "x3d-m"})
    assert card.labels == KINETICS400.names
    assert (card.rate_hz, card.arguments["size"], card.arguments["pool"]) == (6.0, 224, 16)
    assert card.delay_s == pytest.approx((56 + 15) / 2 / 6)
    with torch.device("meta"):
        assert isinstance(new_network(card), VideoNet)
