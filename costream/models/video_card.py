"""Model cards of the published 3D networks, to be completed with weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from costream.checkpoints.card import Card
from costream.models.video3d import VideoNet
from costream.nn.video3d.sizes import PAPER, TASK, find_size


def video_card(
    name: str, labels: Sequence[str], pool: int | None = None, start: str = "zeros"
) -> Card:
    """Return the card of a network of ``nn.video_sizes.SIZES`` with these labels.

    ``pool`` (default: that of a clip), ``start``: of a continual one, see ``VideoEncoder``.
    Raises KeyError for an unknown name.
    """
    size = find_size(name)
    if size is None:
        raise KeyError(name)
    arguments = {"num_classes": len(labels), **size.arguments()}
    if name == size.clip:
        architecture, arguments["window"] = size.kind, size.frames
        delay = (size.frames - 1) / 2
    else:
        architecture = f"co{size.kind}"
        arguments |= {"pool": pool or size.features, "start": start}
        with torch.device("meta"):  # the sizes are enough
            delay = VideoNet(**arguments).encoder.age
    return Card(
        name=name,
        task=TASK,
        architecture=architecture,
        arguments=arguments,
        labels=tuple(labels),
        rate_hz=size.rate_hz,
        delay_s=delay / size.rate_hz,
        frontend="crop",
        frontend_arguments={"size": size.size, "short_side": size.short_side},
        paper=PAPER,
    )
