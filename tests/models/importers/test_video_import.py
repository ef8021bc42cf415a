"""3D networks under the names of SlowFast, of its Caffe2 files and of PyTorchVideo."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.label_sets import KINETICS400
from costream.models.build import build, new_network
from costream.models.importing import import_files
from costream.models.video.video3d.network import VideoNet
from costream.models.video.video3d.pytorchvideo import convert as from_pytorchvideo
from costream.models.video.video3d.slowfast import convert as from_slowfast
from costream.nn.video3d.sizes import TASK, find_size
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import KEYS, ImportSettings
from kit.foreign_video import foreign_tensors
from kit.video_nets import KINDS, REFERENCES, published_keys, small_net, video

CONFIG = {"labels": "kinetics-400"}


def written(tensors: Mapping[str, Tensor], dialect: str, path: Path) -> Path:
    if dialect == "caffe":
        blobs = {name: value.numpy() for name, value in tensors.items()}
        blobs |= {"conv1_w_momentum": blobs["conv1_w"], "lr": blobs["pred_b"][:1]}
        path.write_bytes(pickle.dumps({"blobs": blobs}, protocol=2))
    else:
        state = {"model_state": dict(tensors), "epoch": 3, "cfg": "NUM_GPUS: 8"}
        torch.save(state, path)
    return path


@pytest.mark.usefixtures("small_sizes")
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


@pytest.mark.usefixtures("small_sizes")
def test_other_stages_are_refused(tmp_path: Path) -> None:
    whole = foreign_tensors(small_net("slow"), "slowfast")
    less = {k: v for k, v in whole.items() if not k.startswith("s3.")}
    with pytest.raises(ModelError, match="stages are missing"):
        import_files([written(less, "slowfast", tmp_path / "b")], "mine", {})
    odd = {k: v for k, v in whole.items() if not k.startswith("s4.pathway0_res1")}
    with pytest.raises(ModelError, match=r"no published slow has blocks \[1, 1, 1, 1\]"):
        import_files([written(odd, "slowfast", tmp_path / "c")], "mine", {})


def test_x3d_of_the_same_sizes_have_to_be_distinguished(tmp_path: Path) -> None:
    size = find_size("x3d-m")
    assert size is not None
    with torch.device("meta"):
        theirs = foreign_tensors(VideoNet(400, **size.arguments()), "slowfast")
    tensors = {name: torch.zeros(value.shape) for name, value in theirs.items()}
    path = written(tensors, "slowfast", tmp_path / "x3d_of_mine.pyth")
    with pytest.raises(ModelError, match=r"does not contain network .* but image sizes"):
        import_files([path], "mine", CONFIG)
    published = path.rename(tmp_path / "x3d_m.pyth")
    card, _ = import_files([published], "mine", {"pool": "16"})
    assert "cox3d-m-kinetics: labels=kinetics-400, network=x3d-m." in card.limits
    assert card.labels == KINETICS400.names
    assert (card.rate_hz, card.arguments["size"], card.arguments["pool"]) == (6.0, 224, 16)
    assert card.delay_s == pytest.approx((56 + 15) / 2 / 6)
    with torch.device("meta"):
        assert isinstance(new_network(card), VideoNet)
