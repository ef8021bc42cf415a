"""Importer of SlowFast checkpoints (Fan et al., 2020): X3D, Slow and I3D.

Those converted from Caffe2 (I3D) have other names and also contain the training state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from costream.models.video.video3d.importer import VIDEO_KEYS, convert_video
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import BATCH_NORM, ImportedNetwork, rename

_RENAMED = (
    (r"s1\.pathway0_stem\.(conv|conv_xy|bn)\.", r"encoder.stem.\1."),
    (r"head\.conv_5\.", "encoder.conv."),
    (r"head\.conv_5_bn\.", "encoder.conv_bn."),
    (r"head\.lin_5\.", "encoder.linear."),
    (r"head\.projection\.", "classifier."),
)
_BLOCK = re.compile(r"s([2-5])\.pathway0_res(\d+)\.(.+)$")
_WITHIN = (
    (r"branch1\.", "shortcut."),
    (r"branch1_bn\.", "shortcut_bn."),
    (r"branch2\.se\.", "squeeze."),
    (r"branch2\.", ""),
)
_CAFFE_NORM = dict(zip(("s", "b", "rm", "riv"), BATCH_NORM, strict=True))
_CAFFE = re.compile(r"res([2-5])_(\d+)_branch(1|2[abc])_(w|bn_(?:s|b|rm|riv))$")
_CAFFE_PLAIN = {
    "conv1_w": "encoder.stem.conv.weight",
    "pred_w": "classifier.weight",
    "pred_b": "classifier.bias",
    **{f"res_conv1_bn_{k}": f"encoder.stem.bn.{v}" for k, v in _CAFFE_NORM.items()},
}
_TRAINING = re.compile(r"(.*_momentum|lr|model_iter)$")  # training state of Caffe2


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of SlowFast's networks."""
    return "s1.pathway0_stem.conv.weight" in tensors or "res_conv1_bn_s" in tensors


@importer(
    "slowfast",
    summary="X3D, Slow or I3D of SlowFast, its PyTorch or Caffe2 files",
    detect=detect,
    keys=VIDEO_KEYS,
    order=12,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    unused = [name for name in foreign.tensors if _TRAINING.match(name)]
    return convert_video(foreign.tensors, _rename, settings, unused)


def _rename(name: str) -> str | None:
    if match := _BLOCK.match(name):
        rest = rename(match[3], _WITHIN)
        return rest and f"encoder.stages.{int(match[1]) - 2}.{match[2]}.{rest}"
    if match := _CAFFE.match(name):
        part = "shortcut" if match[3] == "1" else match[3][1]
        kind = match[4].removeprefix("bn_")
        end = f"{part}.weight" if kind == "w" else f"{part}_bn.{_CAFFE_NORM[kind]}"
        return f"encoder.stages.{int(match[1]) - 2}.{match[2]}.{end}"
    return rename(name, _RENAMED) or _CAFFE_PLAIN.get(name)
