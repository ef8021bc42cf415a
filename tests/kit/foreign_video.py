"""3D networks under the names of SlowFast, of its Caffe2 files and of PyTorchVideo."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from costream.models.video.video3d.network import VideoNet
from costream.nn.video3d.sizes import VideoNetSize
from kit.video_nets import KINDS

NORMS = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}


class SmallSize(VideoNetSize):
    """The sizes of a small network in place of a published one's."""

    def arguments(self) -> dict[str, Any]:
        """Return those of ``video_nets``."""
        sizes = {key: list(v) if isinstance(v, tuple) else v for key, v in KINDS[self.kind].items()}
        return {"kind": self.kind, "size": 19, "head": [], **sizes}


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


# in place of the published ones
SIZES = [SmallSize(kind, kind, 19, 24, 6, 5.0, ()) for kind in KINDS]
