"""Importer of MMAction2's TSN checkpoints with a ResNet: feature extractors for RGB and flow.

Wang et al., Temporal Segment Networks (ECCV 2016). One file per stream, recognised by the channels
of its first convolution; the classifiers are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from costream.core.errors import ModelError
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors
from costream.weights_io.tensor_rules import (
    BATCH_NORM,
    COUNTER,
    ImportedFrontend,
    TensorRule,
    apply,
    shape_of,
    with_counters,
)

PAPER = "https://arxiv.org/abs/1608.00859"
RATE_HZ = 4.0  # chunks of 6 frames at 24 frames per second
_FIRST = "backbone.conv1.conv.weight"


detect = has_tensors(_FIRST, "backbone.layer1.0.conv3.conv.weight")  # a bottleneck ResNet


def read_frontend(
    parts: Sequence[ForeignCheckpoint], settings: ImportSettings, rate_hz: float
) -> ImportedFrontend:
    """Return the frontend of these files: RGB, flow or both.

    ``rate_hz``: of the network after it; a chunk always has 6 frames. Raises ModelError when a
    file does not fit, two have the same stream, or they differ in their blocks.
    """
    read = [_stream(part.tensors) for part in parts]
    streams = {name: (sizes, tensors) for name, sizes, tensors in read}
    if len(streams) < len(read):
        raise ModelError(f"two checkpoints of {read[0][0]}; TSN has one for rgb, one for flow")
    order = [name for name in ("rgb", "flow") if name in streams]
    sizes = streams[order[0]][0]
    if any(other != sizes for other, _ in streams.values()):
        raise ModelError("the checkpoints of rgb and flow have different blocks")
    tensors = {
        f"networks.{name}.{key}": value for name in order for key, value in streams[name][1].items()
    }
    width = 4 * (sizes["width"] << len(sizes["layers"]) - 1)
    description = f"TSN of MMAction2 ({' and '.join(order)})"
    arguments: dict[str, Any] = {"streams": order, **sizes}
    return ImportedFrontend("tsn", arguments, tensors, width * len(order), description)


def _stream(tensors: Mapping[str, Tensor]) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Return stream, sizes and tensors of a checkpoint as ``frontends.tsn`` expects them."""
    width, channels = shape_of(tensors, _FIRST, 4)[:2]
    if channels not in (3, 10):
        raise ModelError(f"the first convolution has {channels} channels; rgb has 3, flow 10")
    blocks = {
        (int(m[1]), int(m[2])) for n in tensors if (m := re.match(r"backbone\.layer(\d)\.(\d+)", n))
    }
    layers = [sum(layer == k for layer, _ in blocks) for k in range(1, max(blocks)[0] + 1)]
    rules = _unit("conv1", width, channels, 7)
    inputs = width
    for k, count in enumerate(layers):
        inner = width << k
        for i in range(count):
            at = f"layer{k + 1}.{i}"
            rules += _unit(f"{at}.conv1", inner, inputs, 1)
            rules += _unit(f"{at}.conv2", inner, inner, 3)
            rules += _unit(f"{at}.conv3", 4 * inner, inner, 1)
            if not i:
                rules += _unit(f"{at}.downsample", 4 * inner, inputs, 1)
            inputs = 4 * inner
    unused = [n for n in tensors if n.startswith(("cls_head.", "data_preprocessor."))]
    unused += [n for n in tensors if n.endswith(COUNTER)]
    renamed = with_counters(apply(rules, tensors, unused))
    return "rgb" if channels == 3 else "flow", {"layers": layers, "width": width}, renamed


def _unit(name: str, outputs: int, inputs: int, size: int) -> list[TensorRule]:
    """Return the rules of a convolution and its BatchNorm."""
    weight = f"{name}.conv.weight"
    rules = [TensorRule(weight, (f"backbone.{weight}",), (outputs, inputs, size, size))]
    names = [f"{name}.bn.{part}" for part in BATCH_NORM]
    return rules + [TensorRule(n, (f"backbone.{n}",), (outputs,)) for n in names]
