"""YAMNet: 521 kinds of sound, several at once, from patches of a second.

Plakal and Ellis, YAMNet (2020), https://github.com/tensorflow/models/tree/master/research/audioset
/yamnet: MobileNet v1 (Howard et al., 2017) trained on AudioSet (Gemmeke et al., ICASSP 2017).

Checkpoints are those of the PyTorch port torch_audioset and of the original (Keras, HDF5). Their
batch norms (eps 1e-4, the original has no gamma) are folded into the convolutions before them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import AUDIO_TAGGING
from costream.models.audio.logmel import OFFSET
from costream.models.audio.windows import SpectrogramWindows
from costream.models.spec import register_model
from costream.weights_io.card import Timeline
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    COUNTER,
    ImportedNetwork,
    apply,
    fold_norm,
    linear,
    normed_convolution,
    shape_of,
)

FRAMES, BANDS = 96, 64  # of a patch: 0.96 s
HOP_FRAMES = 48  # from one patch to the next, as published
RATE_HZ = 100 / HOP_FRAMES  # patches a second
WIDTHS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
PAPER = "https://github.com/tensorflow/models/tree/master/research/audioset/yamnet"


@register_model(
    "yamnet",
    order=26,
    bench="costream.bench.published:published_steps_table",
    arguments={"num_classes": 521},
    task=AUDIO_TAGGING,
    rate_hz=RATE_HZ,
    whole=True,
    frontend="logmel",
)
class YamNet(SpectrogramWindows):
    """MobileNet v1 over the newest 96 log-mel frames, with independent scores of all classes.

    Every hop computes all of the patch, as published. Sharing the convolutions of overlapping
    patches is not exact: each patch has zeros at both ends, and its last rows are 32 frames apart,
    which does not divide the hop. Before the first frame of a stream there is silence, ln(0.001).

    The batch norms are folded into the convolutions.

    Args:
        num_classes: K.
        hop_frames: frames of a token, 1 to 96.
        widths: channels of the first convolution and of the 13 depthwise separable ones.

    Raises ValueError for other numbers.
    """

    def __init__(
        self, num_classes: int, hop_frames: int = HOP_FRAMES, widths: Sequence[int] = WIDTHS
    ) -> None:
        super().__init__(num_classes, hop_frames, FRAMES, BANDS, math.log(OFFSET), FRAMES)
        if len(widths) != len(STRIDES):
            raise ValueError(f"{len(widths)} widths, not {len(STRIDES)}")
        self.stem = nn.Conv2d(1, widths[0], 3, STRIDES[0])
        self.layers = nn.ModuleList(
            _Separable(*sizes) for sizes in zip(widths, widths[1:], STRIDES[1:], strict=False)
        )
        self.classifier = nn.Linear(widths[-1], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        # Interleaved channels suit depthwise convolutions on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, patches: Tensor) -> Tensor:
        """Return the logits [N, K] of patches [N, 96, 64]."""
        x = F.relu_(self.stem(_pad(patches[:, None], STRIDES[0])))
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.classifier(x.mean((2, 3))))

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream: a patch."""
        places, total = FRAMES * BANDS, self.classifier.weight.numel()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                places //= module.stride[0] ** 2
                total += places * module.weight.numel()
        return total

    dense_macs = property(count_macs)


class _Separable(nn.Module):
    """Depthwise 3x3, ReLU, pointwise, ReLU."""

    def __init__(self, in_width: int, out_width: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(in_width, in_width, 3, stride, groups=in_width)
        self.pointwise = nn.Conv2d(in_width, out_width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, O, T', F'] for maps [N, I, T, F]."""
        x = F.relu_(self.depthwise(_pad(x, self.depthwise.stride[0])))
        return F.relu_(self.pointwise(x))


def _pad(x: Tensor, stride: int) -> Tensor:
    """Return maps with the zeros of TensorFlow's SAME around them; their sizes are even."""
    return F.pad(x, (0, 1, 0, 1) if stride == 2 else (1, 1, 1, 1))


_EPS = 1e-4  # of the batch norms
# At 0.3, the right label was among those of 80 % of 100 clips of ESC-10, with 6.5 labels per clip.
TIMELINE = Timeline(threshold=0.3, min_length_s=0.4, min_gap_s=0.5)
_STEM = "layer1.fused"
_KERAS = re.compile(r"(?:.*/)?(layer\d+)/(?:(depthwise|pointwise)_)?conv/(?:(bn)/)?([a-z_]+):0$")
_KERAS_ENDS = {
    "kernel": "conv.weight",
    "depthwise_kernel": "conv.weight",
    "gamma": "bn.weight",
    "beta": "bn.bias",
    "moving_mean": "bn.running_mean",
    "moving_variance": "bn.running_var",
}


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of YAMNet."""
    return f"{_STEM}.conv.weight" in tensors or any(_is_keras_stem(name) for name in tensors)


@importer(
    "yamnet",
    summary="YAMNet, its PyTorch port or Keras file",
    detect=detect,
    keys=("num_classes",),
    order=17,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    tensors = dict(foreign.tensors)
    if any(map(_is_keras_stem, tensors)):
        tensors = _from_keras(tensors)
    classes = settings.check("num_classes", shape_of(tensors, "classifier.weight", 2)[0])
    pairs = {"stem": _STEM}
    for k in range(2, len(STRIDES) + 1):
        for kind in ("depthwise", "pointwise"):
            pairs[f"layers.{k - 2}.{kind}"] = f"layer{k}.{kind}_conv"
    widths = [
        shape_of(tensors, f"{theirs}.conv.weight", 4)[0]
        for ours, theirs in pairs.items()
        if not ours.endswith("depthwise")
    ]
    with torch.device("meta"):  # only shapes are needed
        network = YamNet(classes, widths=widths)
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    rules = linear("classifier", "classifier", *shapes["classifier.weight"])
    for ours, theirs in pairs.items():
        shape = shapes[f"{ours}.weight"]
        rules += normed_convolution(ours, f"{theirs}.conv", f"{theirs}.bn", shape)
    named = apply(rules, tensors, [name for name in tensors if name.endswith(COUNTER)])
    return ImportedNetwork(
        "yamnet",
        {"num_classes": classes, "hop_frames": HOP_FRAMES, "widths": widths},
        {name: value for ours in pairs for name, value in fold_norm(ours, named, _EPS).items()}
        | {name: named[name] for name in ("classifier.weight", "classifier.bias")},
        classes,
        paper=PAPER,
        task=AUDIO_TAGGING,
        frontend="logmel",
        frontend_arguments={"hop_frames": HOP_FRAMES},
        rate_hz=RATE_HZ,
        delay_steps=network.delay_steps,
        timeline=TIMELINE,
    )


def _is_keras_stem(name: str) -> bool:
    return name.endswith("layer1/conv/kernel:0")


def _from_keras(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the Keras file as those of the port."""
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.endswith("logits/kernel:0"):
            out["classifier.weight"] = value.t().contiguous()
        elif name.endswith("logits/bias:0"):
            out["classifier.bias"] = value
        elif (match := _KERAS.match(name)) and match[4] in _KERAS_ENDS:
            layer, kind, end = match[1], match[2], _KERAS_ENDS[match[4]]
            if end == "conv.weight" and value.dim() != 4:
                raise ModelError(f"the checkpoint does not fit: {name} is {tuple(value.shape)}")
            if end == "conv.weight":
                value = value.permute((2, 3, 0, 1) if kind == "depthwise" else (3, 2, 0, 1))
            out[f"{layer}.{f'{kind}_conv' if kind else 'fused'}.{end}"] = value
        else:
            out[name] = value
    for name in [name for name in out if name.endswith("bn.bias")]:
        out.setdefault(f"{name.removesuffix('bias')}weight", torch.ones_like(out[name]))
    return out
