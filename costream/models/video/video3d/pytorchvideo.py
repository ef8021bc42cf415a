"""Importer of PyTorchVideo checkpoints (Fan et al., 2021): X3D, Slow and I3D.

In the stem of X3D, PyTorchVideo swaps the names of the temporal and the spatial convolution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from costream.models.video.video3d.importer import VIDEO_KEYS, convert_video
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import ImportedNetwork, rename

_RENAMED = (
    (r"blocks\.0\.conv\.conv_t\.", "encoder.stem.conv_xy."),
    (r"blocks\.0\.conv\.(conv_xy\.)?", "encoder.stem.conv."),
    (r"blocks\.0\.norm\.", "encoder.stem.bn."),
    (r"blocks\.\d+\.pool\.pre_conv\.", "encoder.conv."),
    (r"blocks\.\d+\.pool\.pre_norm\.", "encoder.conv_bn."),
    (r"blocks\.\d+\.pool\.post_conv\.", "encoder.linear."),
    (r"blocks\.\d+\.proj\.", "classifier."),
)
_BLOCK = re.compile(r"blocks\.(\d+)\.res_blocks\.(\d+)\.(.+)$")
_WITHIN = (
    (r"branch1_conv\.", "shortcut."),
    (r"branch1_norm\.", "shortcut_bn."),
    (r"branch2\.norm_b\.1\.block\.0\.", "squeeze.fc1."),
    (r"branch2\.norm_b\.1\.block\.2\.", "squeeze.fc2."),
    (r"branch2\.norm_b\.(0\.)?", "b_bn."),
    (r"branch2\.norm_([ac])\.", r"\1_bn."),
    (r"branch2\.conv_([abc])\.", r"\1."),
)


@importer(
    "pytorchvideo",
    summary="X3D, Slow or I3D of PyTorchVideo",
    detect=has_tensors("blocks.1.res_blocks.0.branch2.conv_a.weight"),
    keys=VIDEO_KEYS,
    order=13,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    numbers = {int(match[1]) for name in foreign.tensors if (match := _BLOCK.match(name))}
    # I3D has a pooling layer, without tensors, between its stages.
    stages = {number: stage for stage, number in enumerate(sorted(numbers))}
    return convert_video(foreign.tensors, lambda name: _rename(name, stages), settings)


def _rename(name: str, stages: Mapping[int, int]) -> str | None:
    match = _BLOCK.match(name)
    if match is None:
        return rename(name, _RENAMED)
    rest = rename(match[3], _WITHIN)
    return rest and f"encoder.stages.{stages[int(match[1])]}.{match[2]}.{rest}"
