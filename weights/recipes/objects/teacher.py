"""NanoDet-Plus-m-1.5x as teacher: first stages, targets for every place, and boxes of clips.

NanoDet-Plus (RangiLyu/nanodet, Apache-2.0) was trained on COCO train2017. Teacher and student get
the very same views, cropped and coloured (Beyer et al., "Knowledge distillation: A good teacher is
patient and consistent", CVPR 2022). The student's stem begins with the teacher's ShuffleNet V2.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.errors import UsageError
from costream.frontends.crops import Pixels
from costream.models.eventful.rcnn import Detections
from costream.nn.boxes import suppress
from costream.nn.shuffle import ShuffleBackbone
from weights.recipes.common import teacher_file

SIDE = 512  # longer side of the pictures it detects in
STRIDES = (8, 16, 32, 64)
_NAME = "nanodet_plus_m_1.5x_416.onnx"
_CLASSES, _BINS = 80, 8
_MAPS = ("164", "184", "204")  # names of the feature maps at strides 8, 16, 32


class NanoDet:
    """The teacher: maps images to classes of places and boxes.

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
        with teacher_file(path, _NAME) as file:
            model = onnx.load(file)
        self._graph = model.graph
        for name in _MAPS:
            output = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            model.graph.output.append(output)
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options)

    def maps(self, view: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return its feature maps [128, h, w] and scores of the classes [h, w, 80] of a view.

        Both at strides 8, 16 and 32. ``view`` uint8 [3, H, W], sides multiples of 32.
        """
        scores, *features = self._run(Pixels()(view[None])[0])
        sizes = [(part.shape[1], part.shape[2]) for part in features]
        ends = np.cumsum([0, *(h * w for h, w in sizes)])
        parts = (scores[a:b, :_CLASSES] for a, b in itertools.pairwise(ends))
        return features, [torch.unflatten(p, 0, size) for p, size in zip(parts, sizes, strict=True)]

    def detect(self, picture: Tensor, score: float) -> Detections:
        """Return the detections, labels into the 80 classes, in an image uint8 [3, H, W]."""
        scale = SIDE / max(picture.shape[1:])
        size = [max(1, round(side * scale)) for side in picture.shape[1:]]
        fitted = F.interpolate(picture[None], size, mode="bilinear", antialias=True)
        padded = Pixels((SIDE, SIDE), 64)(fitted)
        seen = self._run(padded[0])[0]
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

    def _run(self, picture: Tensor) -> list[Tensor]:
        """Return outputs [places, 112] and feature maps for a normalised image [3, H, W]."""
        blue_first = np.ascontiguousarray(picture.flip(0)[None].numpy())
        return [torch.from_numpy(x[0]) for x in self._session.run(None, {"data": blue_first})]


def _grid(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the centre in pixels and the stride of every place: [n, 2] and [n, 1]."""
    centres, strides = [], []
    for stride in STRIDES:
        y, x = (torch.arange(-(-side // stride)) * stride for side in (height, width))
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).view(-1, 2)
        centres.append(grid)
        strides.append(torch.full((len(grid), 1), stride))
    return torch.cat(centres), torch.cat(strides)
