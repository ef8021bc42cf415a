"""Checkpoints of networks for sound: VGGish by the hash recipe of its reference arrays, others."""

from __future__ import annotations

import math
import zlib
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from costream.models.oad.cooadtr import CoTrans

CONVOLUTIONS = (0, 3, 6, 8, 11, 13)


def values(name: str, shape: tuple[int, ...], scale: float) -> Tensor:
    """The numbers of a tensor, between -scale and scale, from its name."""
    h = np.arange(math.prod(shape), dtype=np.uint32) + np.uint32(zlib.crc32(name.encode()))
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    numbers = (h / 2**32 * 2 - 1) * scale
    return torch.from_numpy(numbers.astype(np.float32)).view(shape)


def vggish(
    widths: tuple[int, ...] = (64, 128, 256, 256, 512, 512), hidden: int = 4096, width: int = 128
) -> dict[str, Tensor]:
    """The state dict of torchvggish, without its PCA."""
    shapes: dict[str, tuple[int, ...]] = {}
    channels = 1
    for k, out in zip(CONVOLUTIONS, widths, strict=True):
        shapes[f"features.{k}"] = (out, channels, 3, 3)
        channels = out
    shapes["embeddings.0"] = (hidden, 24 * channels)
    shapes["embeddings.2"] = (hidden, hidden)
    shapes["embeddings.4"] = (width, hidden)
    weights = {}
    for name, shape in shapes.items():
        scale = math.sqrt(6 / math.prod(shape[1:]))
        weights[f"{name}.weight"] = values(f"{name}.weight", shape, scale)
        weights[f"{name}.bias"] = values(f"{name}.bias", shape[:1], 0.05)
    return weights


def pca(width: int = 128) -> dict[str, Tensor]:
    """The file of the post-processing that goes with it."""
    vectors, means = "pca_eigen_vectors", "pca_means"
    return {
        vectors: values(f"pproc.{vectors}", (width, width), 0.3),
        means: values(f"pproc.{means}", (width, 1), 0.5),
    }


def cotrans(width: int = 128) -> tuple[dict[str, Tensor], CoTrans]:
    """A CoTrans of one block in the 0.17 dialect, and the same network as it should come out."""
    net = CoTrans(10, width, embed_dim=16, num_heads=4, feedforward=24, window=6, num_positions=16)
    names = {
        "0.": "input_projection.",
        "1.pe.weight": "positions.table",
        "3.0.1.": "encoder.layers.0.self_attn.",
        "3.1.fn.": "encoder.layers.0.norm1.",
        "3.2.1.0.": "encoder.layers.0.linear1.",
        "3.2.1.3.": "encoder.layers.0.linear2.",
        "3.3.fn.": "encoder.layers.0.norm2.",
        "4.fn.": "encoder.norm.",
        "5.": "head.",
    }
    ours = net.state_dict()
    theirs = {
        their + name.removeprefix(our): value
        for their, our in names.items()
        for name, value in ours.items()
        if name.startswith(our)
    }
    assert len(theirs) == len(ours)
    return theirs, net.eval()


YAMNET_WIDTHS = [4, 4, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6]


def yamnet(classes: int = 5) -> dict[str, Tensor]:
    """A small YAMNet with the names of torch_audioset."""
    tensors: dict[str, Tensor] = {}

    def block(name: str, out: int, inside: int, kernel: int) -> None:
        shape = (out, inside, kernel, kernel)
        tensors[f"{name}.conv.weight"] = values(
            f"{name}.conv", shape, 2 / math.sqrt(inside) / kernel
        )
        for end in ("weight", "bias", "running_mean", "running_var"):
            base = 1.0 if end in ("weight", "running_var") else 0.0
            tensors[f"{name}.bn.{end}"] = base + values(f"{name}.bn.{end}", (out,), 0.2)
        tensors[f"{name}.bn.num_batches_tracked"] = torch.tensor(0)

    block("layer1.fused", YAMNET_WIDTHS[0], 1, 3)
    for k, (width, out) in enumerate(pairwise(YAMNET_WIDTHS), 2):
        block(f"layer{k}.depthwise_conv", width, 1, 3)
        block(f"layer{k}.pointwise_conv", out, width, 1)
    last = YAMNET_WIDTHS[-1]
    tensors["classifier.weight"] = values("classifier.weight", (classes, last), 1.0)
    tensors["classifier.bias"] = values("classifier.bias", (classes,), 0.5)
    return tensors


def yamnet_in_keras(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, but gamma, under the names and in the layouts of the Keras file."""
    out = {
        "logits/logits/kernel:0": tensors["classifier.weight"].t(),
        "logits/logits/bias:0": tensors["classifier.bias"],
    }
    ends = {"bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    for name, value in tensors.items():
        layer, _, rest = name.partition(".")
        if not layer.startswith("layer"):
            continue
        kind, part, end = rest.split(".")
        path = f"{layer}/conv" if kind == "fused" else f"{layer}/{kind}"
        if part == "conv":
            depthwise = kind == "depthwise_conv"
            order = (2, 3, 0, 1) if depthwise else (2, 3, 1, 0)
            leaf = "depthwise_kernel" if depthwise else "kernel"
            out[f"{path}/{path}/{leaf}:0"] = value.permute(order)
        elif end in ends:
            out[f"{path}/bn/{path}/bn/{ends[end]}:0"] = value
    return out


EFFICIENTAT = (  # of each block: kernel, channels inside and out, squeezed, hard swish, stride
    *((3, 8, 8, 0, False, 1), (3, 8, 8, 0, False, 2), (3, 8, 8, 0, False, 1)),
    *((5, 8, 8, 8, False, 2), (5, 16, 8, 8, False, 1), (5, 16, 8, 8, False, 1)),
    *((3, 24, 8, 0, True, 2), (3, 24, 8, 0, True, 1), (3, 24, 8, 0, True, 1)),
    *((3, 24, 8, 0, True, 1), (3, 48, 16, 16, True, 1), (3, 64, 16, 16, True, 1)),
    *((5, 64, 16, 16, True, 2), (5, 96, 16, 24, True, 1), (5, 96, 16, 24, True, 1)),
)


class EfficientAtModules(nn.Module):
    """MobileNetV3 of width 0.1 with the module names of EfficientAT, norms as such, untrained."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        width, layers = 8, [_normed(1, 8, 3, 2, 1, nn.Hardswish())]
        for kernel, inside, out, squeezed, hard, stride in EFFICIENTAT:
            layers.append(_Residual(width, kernel, inside, out, squeezed, hard, stride))
            width = out
        layers.append(_normed(width, 6 * width, 1, 1, 1, nn.Hardswish()))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6 * width, 128),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(128, classes),
        )
        for name, tensor in self.state_dict().items():
            if name.endswith(("running_mean", "running_var", "bias", "1.weight")):
                base = 1.0 if name.endswith(("running_var", "1.weight")) else 0.0
                tensor.copy_(base + values(name, tuple(tensor.shape), 0.2))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def _normed(
    inputs: int, out: int, kernel: int, stride: int, groups: int, then: nn.Module | None
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers = [conv, nn.BatchNorm2d(out, eps=1e-3)]
    return nn.Sequential(*layers, *([] if then is None else [then]))


class _Excitation(nn.Module):
    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, squeezed), nn.Linear(squeezed, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.fc2(self.fc1(x.mean((2, 3))).relu()).sigmoid()
        return x * gate[:, :, None, None]


class _Concurrent(nn.Module):
    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.conc_se_layers = nn.ModuleList([_Excitation(width, squeezed)])

    def forward(self, x: Tensor) -> Tensor:
        return self.conc_se_layers[0](x)


class _Residual(nn.Module):
    def __init__(
        self,
        width: int,
        kernel: int,
        inside: int,
        out: int,
        squeezed: int,
        hard: bool,
        stride: int,
    ) -> None:
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        layers = [] if inside == width else [_normed(width, inside, 1, 1, 1, act())]
        layers.append(_normed(inside, inside, kernel, stride, inside, act()))
        layers += [_Concurrent(inside, squeezed)] if squeezed else []
        layers.append(_normed(inside, out, 1, 1, 1, None))
        self.block, self.shortcut = nn.Sequential(*layers), stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return x + y if self.shortcut else y
