"""YAMNet of the pack teachers.tar, its 8-bit weights written as floats, in a TFLite interpreter."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from kit.data_packs import packs

FILE = "teachers/yamnet_b_waveform.tflite"
_CONSTANTS = 71  # tensors before it are weights
_NAMES = (
    (r"dense/MatMul$", "classifier.weight"),
    (r"15480$", "classifier.bias"),
    (r"layer1/conv/Conv2D$", "stem.weight"),
    (r"layer1/conv/bn/\w+$", "stem.bias"),
    (r"layer(\d+)/pointwise_conv/Conv2D$", "layers.{}.pointwise.weight"),
    (r"layer(\d+)/pointwise_conv/bn/\w+$", "layers.{}.pointwise.bias"),
    (r"layer(\d+)/depthwise_conv/bn/\w+$", "layers.{}.depthwise."),
    (r"tf_op_layer_MatMul/MatMul$", "mel"),
)


def teacher() -> tuple[Callable[[np.ndarray], np.ndarray], dict[str, Tensor]]:
    """Return the network, 15,600 samples to 521 scores, and its weights under our names.

    As stored it also rounds what passes between its layers to 8 bits; with float weights the same
    graph computes in float32. The matrix of the spectrogram, [257, 64], is the weight "mel".
    """
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    flatbuffers = pytest.importorskip("flatbuffers")
    with tarfile.open(packs("teachers.tar") / "teachers.tar") as archive:
        content = archive.extractfile(FILE).read()  # type: ignore[union-attr]
    model = schema.ModelT.InitFromPackedBuf(bytearray(content), 0)
    for tensor in model.subgraphs[0].tensors:
        data = model.buffers[tensor.buffer].data
        if tensor.type == schema.TensorType.INT8 and data is not None and len(data):
            scale = np.asarray(tensor.quantization.scale, np.float32)
            shape = [1] * len(tensor.shape)
            shape[tensor.quantization.quantizedDimension] = -1
            numbers = np.asarray(data, np.uint8).view(np.int8).reshape(tensor.shape)
            buffer = schema.BufferT()
            values = numbers.astype("<f4") * scale.reshape(shape)
            buffer.data = np.frombuffer(values.tobytes(), np.uint8)
            model.buffers.append(buffer)
            tensor.buffer, tensor.quantization = len(model.buffers) - 1, None
            tensor.type = schema.TensorType.FLOAT32
    builder = flatbuffers.Builder(1 << 24)
    builder.Finish(model.Pack(builder), b"TFL3")
    run = interpreter.Interpreter(model_content=bytes(builder.Output()), num_threads=1)
    run.allocate_tensors()

    def scores(wave: np.ndarray) -> np.ndarray:
        run.set_tensor(run.get_input_details()[0]["index"], wave)
        run.invoke()
        return run.get_tensor(run.get_output_details()[0]["index"])[0].copy()

    return scores, _weights(run)


def _weights(run: object) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for detail in run.get_tensor_details()[:_CONSTANTS]:  # type: ignore[attr-defined]
        name = detail["name"].partition(";")[0].removeprefix("yamnet_frames/")
        for pattern, ours in _NAMES:
            if (match := re.match(pattern, name)) and detail["dtype"] is np.float32:
                value = torch.from_numpy(run.get_tensor(detail["index"]).copy())  # type: ignore[attr-defined]
                key = ours.format(int(match[1]) - 2) if match.groups() else ours
                if key.endswith("depthwise."):
                    key += "weight" if value.dim() == 4 else "bias"
                    value = value.permute(3, 0, 1, 2) if value.dim() == 4 else value
                elif value.dim() == 4:
                    value = value.permute(0, 3, 1, 2)
                weights[key] = value.t() if key == "mel" else value
    return weights
