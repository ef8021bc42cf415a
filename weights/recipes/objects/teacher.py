"""NanoDet-Plus-m-1.5x as teacher: first stages, scores of every place, and boxes of clips.

NanoDet-Plus (RangiLyu/nanodet, Apache-2.0) was trained on COCO train2017. Teacher and student get
the very same views, cropped and coloured (Beyer et al., "Knowledge distillation: A good teacher is
patient and consistent", CVPR 2022). The student's stem begins with the teacher's ShuffleNet V2.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.images import Pixels
from costream.nn.shuffle import SLOPE, ShuffleBackbone, depthwise
from costream.nn.suppression import suppress
from weights.recipes.common import teacher_file

SIDE = 512  # longer side of the pictures it detects in
STRIDES = (8, 16, 32, 64)
NAME = "nanodet_plus_m_1.5x_416.onnx"
_CLASSES, _BINS = 80, 8
STAGES, WIDTH = ((176, 4), (352, 8), (704, 4)), 128  # of its first layers


class TeacherMaps(nn.Module):
    """The teacher as far as its scores at strides 8, 16 and 32; nothing of it is learnt.

    ``stages``, ``width``: see ``ShuffleEmbedding``.
    """

    def __init__(self, stages: Sequence[Sequence[int]] = STAGES, width: int = WIDTH) -> None:
        super().__init__()
        self.stem = ShuffleEmbedding(1, 16, stages, width)
        self.heads = nn.ModuleList(_head(width) for _ in stages)
        self.requires_grad_(False)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return the scores [B, h, w, 80] for the maps of its stem [B, 128, h, w]."""
        pairs = zip(self.heads, maps, strict=True)
        return [head(x).sigmoid().permute(0, 2, 3, 1) for head, x in pairs]


def _head(width: int) -> nn.Sequential:
    """Return the layers behind one map: two separable convolutions, then classes and bins."""
    layers: list[nn.Module] = []
    for _ in range(2):
        for layer in (depthwise(width, 5, 1), nn.Conv2d(width, width, 1)):
            layers += [layer, nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers, nn.Conv2d(width, _CLASSES, 1))


class NanoDet:
    """The teacher, run by ONNX Runtime: finds boxes in images.

    Raises UsageError if the pack ``teachers2.tar``, ONNX Runtime or onnx is missing.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise UsageError(
                "the recipe needs onnx and ONNX Runtime, for the teacher",
                hint="pip install onnx onnxruntime",
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        with teacher_file(path, NAME) as file:
            model = onnx.load(file)
        self._graph = model.graph
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options)

    def in_torch(self) -> TeacherMaps:
        """Return its layers in PyTorch."""
        teacher, every = TeacherMaps(), self._convolutions()
        self.begin(teacher.stem)
        # Behind the stem: four of stride 64, the first pairs of all strides, then the rest of each,
        # from stride 64 on.
        rest = every[sum(1 for _ in teacher.stem.pretrained()) + 4 :]
        for number, head in enumerate(teacher.heads):
            first, last = 2 * number, 8 + 3 * (len(teacher.heads) - number)
            layers = [x for x in cast(nn.Sequential, head) if isinstance(x, nn.Conv2d)]
            own = [*rest[first : first + 2], *rest[last : last + 3]]
            for layer, (weight, bias) in zip(layers, own, strict=True):
                wide = layer.out_channels  # the last has bins too
                layer.load_state_dict({"weight": weight[:wide], "bias": bias[:wide]})
        return teacher

    def detect(self, picture: Tensor, score: float) -> Detections:
        """Return the detections, labels into the 80 classes, in an image uint8 [3, H, W]."""
        scale = SIDE / max(picture.shape[1:])
        size = [max(1, round(side * scale)) for side in picture.shape[1:]]
        fitted = F.interpolate(picture[None], size, mode="bilinear", antialias=True)
        padded = Pixels((SIDE, SIDE), 64)(fitted)
        seen = self.run(padded[0])
        centres, strides = _grid(padded.shape[2], padded.shape[3])
        bins = torch.unflatten(seen[:, _CLASSES:], 1, (4, _BINS)).softmax(-1)
        reach = bins @ torch.arange(_BINS, dtype=torch.float32) * strides
        scores, labels = seen[:, :_CLASSES].max(1)
        boxes = torch.cat([centres - reach[:, :2], centres + reach[:, 2:]], 1)
        sure = scores > score
        boxes, scores, labels = boxes[sure] / scale, scores[sure], labels[sure]
        best = suppress(boxes, scores, labels, 0.6)
        return Detections(boxes[best], scores[best], labels[best])

    def begin(self, stem: ShuffleBackbone) -> None:
        """Set a backbone to the weights of the teacher's first convolutions, in the same order."""
        for layer, (weight, bias) in zip(stem.pretrained(), self._convolutions(), strict=False):
            weight = weight.flip(1) if layer is stem.first else weight  # it takes BGR
            layer.load_state_dict({"weight": weight, "bias": bias})

    def _convolutions(self) -> list[tuple[Tensor, Tensor]]:
        """Return weights and biases of all convolutions; norms are part of them."""
        from onnx.numpy_helper import to_array

        stored = {one.name: to_array(one) for one in self._graph.initializer}
        weights = {}
        for node in self._graph.node:
            if node.op_type == "DequantizeLinear":
                values, scale, zero = (stored[name].astype(np.float32) for name in node.input)
                shape = (-1, *[1] * (values.ndim - 1))
                weights[node.output[0]] = (values - zero.reshape(shape)) * scale.reshape(shape)
        found = [node.input for node in self._graph.node if node.op_type == "Conv"]
        return [(torch.tensor(weights[w]), torch.tensor(stored[b])) for _, w, b in found]

    def run(self, picture: Tensor) -> Tensor:
        """Return its outputs [places, 112] for a normalised image [3, H, W], sides of 32 n."""
        blue_first = np.ascontiguousarray(picture.flip(0)[None].numpy())
        return torch.from_numpy(self._session.run(None, {"data": blue_first})[0][0])


def _grid(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the centre in pixels and the stride of every place: [n, 2] and [n, 1]."""
    centres, strides = [], []
    for stride in STRIDES:
        y, x = (torch.arange(-(-side // stride)) * stride for side in (height, width))
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).view(-1, 2)
        centres.append(grid)
        strides.append(torch.full((len(grid), 1), stride))
    return torch.cat(centres), torch.cat(strides)
