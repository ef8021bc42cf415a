"""Common code of the 3D network importers: arguments of the card's network and frontend.

The sizes are read from the tensors; they identify the published network and so its input format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.nn.video3d.encoder import VideoEncoder
from costream.nn.video3d.sizes import PAPER, SIZES, TASK, VideoNetSize
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.tensor_rules import (
    BATCH_NORM,
    ImportedNetwork,
    apply,
    matrix,
    rename_rules,
    rows,
    shape_of,
    with_counters,
)

VIDEO_KEYS = ("network", "pool", "start", "sliding", "num_classes")
_FLAT = ("squeeze.fc1.weight", "squeeze.fc2.weight", "encoder.linear.weight")
_EPS = 1e-5  # of batch norms


def convert_video(
    tensors: Mapping[str, Tensor],
    rename: Callable[[str], str | None],
    settings: ImportSettings,
    unused: Iterable[str] = (),
) -> ImportedNetwork:
    """Return the network of a checkpoint.

    ``rename``: their name -> ours, None for an unknown one; ``unused``: names that are optional.
    Raises ModelError for missing or unused tensors and unknown settings.
    """
    rules = rename_rules(tensors, rename, lambda ours: matrix if ours.endswith(_FLAT) else rows)
    named = with_counters(_with_norms(apply(rules, tensors, unused)))
    sizes = _sizes(named)
    size = _known(sizes, settings)
    classes = settings.check("num_classes", shape_of(named, "classifier.weight", 2)[0])
    arguments = {"num_classes": classes, **sizes, "size": size.size}
    hop = settings.get("sliding")
    if hop is None:
        arguments |= {
            "pool": settings.get("pool") or size.features,
            "start": settings.get("start") or "zeros",
        }
        with torch.device("meta"):  # only sizes are needed
            of_encoder = {k: v for k, v in arguments.items() if k != "num_classes"}
            delay = VideoEncoder(**of_encoder).age
    else:
        arguments |= {"window": size.frames, "hop": hop}
        delay = (size.frames - 1) / 2
    return ImportedNetwork(
        f"co{size.kind}" if hop is None else size.kind,
        arguments,
        named,
        classes,
        paper=PAPER,
        task=TASK,
        frontend="crop",
        frontend_arguments={"size": size.size, "short_side": size.short_side},
        rate_hz=size.rate_hz,
        limits="Trained on whole clips, not on streams." if hop is None else "",
        delay_steps=delay,
    )


def _sizes(named: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the network arguments that the tensors determine."""
    numbers = [
        (int(match[1]), int(match[2]))
        for name in named
        if (match := re.match(r"encoder\.stages\.(\d+)\.(\d+)\.a\.weight$", name))
    ]
    stages = 1 + max((stage for stage, _ in numbers), default=-1)
    depths = [1 + max((n for s, n in numbers if s == k), default=-1) for k in range(stages)]
    if not stages or 0 in depths:
        raise ModelError("the checkpoint does not fit: stages are missing")
    lasts = [f"encoder.stages.{k}.0.c.weight" for k in range(stages)]
    stem = shape_of(named, "encoder.stem.conv.weight", 5)
    kind = "i3d" if stem[2] > 1 else "slow"
    head = []
    if "encoder.stem.conv_xy.weight" in named:
        kind = "x3d"
        head = [
            shape_of(named, "encoder.conv.weight", 5)[0],
            shape_of(named, "encoder.linear.weight", 2)[0],
        ]
    return {
        "kind": kind,
        "widths": [shape_of(named, name, 5)[0] for name in lasts],
        "depths": depths,
        "stem_width": stem[0],
        "head": head,
    }


def _known(sizes: Mapping[str, Any], settings: ImportSettings) -> VideoNetSize:
    """Return the published network that has these sizes."""
    alike = [s for s in SIZES if {**s.arguments(), "size": 0} == {**sizes, "size": 0}]
    if not alike:
        raise ModelError(
            f"no published {sizes['kind']} has blocks {sizes['depths']} of widths {sizes['widths']}"
        )
    if len(alike) == 1:
        return alike[0]
    name = settings.require("network", alike[0].clip)
    return next(size for size in alike if size.clip == name)


def _with_norms(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the batch norms of shortcuts, which a dialect omits, as the identity."""
    for name, value in list(named.items()):
        norm = name.replace("shortcut.weight", "shortcut_bn.")
        if norm != name and f"{norm}weight" not in named:
            ones, zeros = torch.ones(len(value)), torch.zeros(len(value))
            values = (ones, zeros, zeros.clone(), ones - _EPS)
            named |= {f"{norm}{part}": v for part, v in zip(BATCH_NORM, values, strict=True)}
    return named
