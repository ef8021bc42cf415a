"""Importer of SlowFast checkpoints (Fan et al., 2020): X3D, Slow and I3D.

Those converted from Caffe2 (I3D) have other names and also contain the training state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from costream.importers.base import importer
from costream.importers.config import ImportSettings
from costream.importers.pickles import ForeignCheckpoint
from costream.importers.rules import ImportedNetwork
from costream.importers.video3d import VIDEO_KEYS, convert_video

KEYS = VIDEO_KEYS
_RENAMED = (
    (r"s1\.pathway0_stem\.(conv|conv_xy|bn)\.", r"encoder.stem.\1."),
    (r"head\.conv_5\.", "encoder.conv."),
    (r"head\.conv_5_bn\.", "encoder.conv_bn."),
    (r"head\.lin_5\.", "encoder.linear."),
    (r"head\.projection\.", "classifier."),
)
_BLOCK = re.compile(r"s([2-5])\.pathway0_res(\d+)\.(.+)$")
_WITHIN = (("branch1.", "shortcut."), ("branch1_bn.", "shortcut_bn."), ("branch2.se.", "squeeze."))
_CAFFE_NORM = {"s": "weight", "b": "bias", "rm": "running_mean", "riv": "running_var"}
_CAFFE = re.compile(r"res([2-5])_(\d+)_branch(1|2[abc])_(w|bn_(?:s|b|rm|riv))$")
_CAFFE_PLAIN = {
    "conv1_w": "encoder.stem.conv.weight",
    "pred_w": "classifier.weight",
    "pred_b": "classifier.bias",
    **{f"res_conv1_bn_{k}": f"encoder.stem.bn.{v}" for k, v in _CAFFE_NORM.items()},
}
_TRAINING = re.compile(r"(.*_momentum|lr|model_iter)$")  # training state of Caffe2


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the names are those of SlowFast's networks."""
    return "s1.pathway0_stem.conv.weight" in tensors or "res_conv1_bn_s" in tensors


@importer(
    "slowfast",
    summary="X3D, Slow or I3D of SlowFast, its PyTorch or Caffe2 files",
    detect=detect,
    keys=KEYS,
    order=12,
)
def convert(foreign: ForeignCheckpoint, config: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    unused = [name for name in foreign.tensors if _TRAINING.match(name)]
    return convert_video(foreign.tensors, rename, config, unused)


def rename(name: str) -> str | None:
    """Return our name for a tensor, None for one that is not part of the networks."""
    if found := _BLOCK.match(name):
        stage, number, rest = int(found[1]) - 2, found[2], found[3]
        for theirs, ours in _WITHIN:
            if rest.startswith(theirs):
                return f"encoder.stages.{stage}.{number}.{ours}{rest.removeprefix(theirs)}"
        if rest.startswith("branch2."):
            return f"encoder.stages.{stage}.{number}.{rest.removeprefix('branch2.')}"
        return None
    if found := _CAFFE.match(name):
        part = "shortcut" if found[3] == "1" else found[3][1]
        kind = found[4].removeprefix("bn_")
        end = f"{part}.weight" if kind == "w" else f"{part}_bn.{_CAFFE_NORM[kind]}"
        return f"encoder.stages.{int(found[1]) - 2}.{found[2]}.{end}"
    for pattern, ours in _RENAMED:
        renamed, count = re.subn(f"^{pattern}", ours, name)
        if count:
            return renamed
    return _CAFFE_PLAIN.get(name)
