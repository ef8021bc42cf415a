"""Exported steps of a model in other runtimes, where their packages are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from costream.core.errors import ModelError
from costream.models.build import build
from costream.models.export import step_graph
from costream.models.exporting.graph import StepGraph, to_onnx
from costream.models.int8 import without_int8
from costream.models.onnx_step import onnx_session
from costream.weights_io.file import Weights

Arrays = dict[str, npt.NDArray[Any]]
STEPS = 32  # of noise, that answers are compared on
_LOUD, _BRIGHT = 0.3, 255  # deviation of samples; the most of a picture


class ForeignStep:
    """The step of a model in another runtime, with its state.

    ``size``: of the ONNX file, bytes. ``whole``: whether the frontend is part of it. ``inputs``:
    noise [STEPS, ...].
    """

    def __init__(self, name: str, graph: StepGraph, size: int, whole: bool, run: Any) -> None:
        self.name, self.size, self.whole = name, size, whole
        self._run: Callable[[Arrays], Arrays] = run
        self.state: Arrays = {
            key: np.zeros(value.shape, np.int64 if value.whole else np.float32)
            for key, value in graph.inputs.items()
            if key != "x"
        }
        noise, shape = np.random.default_rng(0), graph.inputs["x"].shape
        if whole and len(shape) == 4:
            self.inputs = noise.integers(0, _BRIGHT + 1, (STEPS, *shape)).astype(np.float32)
        else:
            rows = noise.standard_normal((STEPS, *shape), np.float32)
            self.inputs = rows * np.float32(_LOUD if whole else 1)

    def step(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Take an input [1, ...], return the probabilities [1, K]."""
        found = self._run({"x": x, **self.state})
        self.state = {key: found[f"next_{key}"] for key in self.state}
        return found["probabilities"]


def foreign_steps(stored: Weights, threads: int) -> list[ForeignStep]:
    """Return the step in each runtime that is installed; none for a step that is not exported."""
    runners = list(_runners(threads))
    if not runners or find_spec("onnx") is None:
        return []
    graph = None
    for whole in (True, False):
        try:
            graph = step_graph(stored, whole=whole)
            break
        except ModelError:
            continue
    if graph is None:
        return []
    data = to_onnx(graph, stored.card.name, {})
    end = "" if whole else ", network alone"
    return [
        ForeignStep(f"{name}{end}", graph, len(data), whole, start(data)) for name, start in runners
    ]


@torch.inference_mode()
def difference(stored: Weights, foreign: ForeignStep) -> float:
    """Return the largest difference of a probability to ours on noise, from an empty state."""
    card, tensors = without_int8(stored.card, stored.tensors)
    network: Any
    frontend: Any
    network, frontend = build(card, tensors)
    network.eval()
    state, before = network.init_state(1), None
    if frontend is not None and foreign.whole:
        before = frontend.eval().init_state(1)
    foreign.state = {key: np.zeros_like(value) for key, value in foreign.state.items()}
    most = 0.0
    for x in foreign.inputs:
        row = torch.from_numpy(x)
        if frontend is not None and foreign.whole:
            row = frontend.forward_step(row, before)
        out = network.forward_step(row, state)
        found = foreign.step(x)
        if out is not None:
            scaled = out.logits / card.temperature
            expected = (scaled.sigmoid() if card.multilabel else scaled.softmax(-1)).numpy()
            most = max(most, float(np.abs(found - expected).max()))
    return most


def _runners(threads: int) -> Iterator[tuple[str, Callable[[bytes], Callable[[Arrays], Arrays]]]]:
    if find_spec("onnxruntime") is not None:
        yield "ONNX Runtime", lambda data: _onnx_runtime(data, threads)
    if find_spec("openvino") is not None:
        yield "OpenVINO", lambda data: _openvino(data, threads)


def _onnx_runtime(data: bytes, threads: int) -> Callable[[Arrays], Arrays]:
    session = onnx_session(data, threads)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def _openvino(data: bytes, threads: int) -> Callable[[Arrays], Arrays]:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(data), "CPU", settings)
    names = [output.any_name for output in compiled.outputs]
    request = compiled.create_infer_request()

    def run(inputs: Arrays) -> Arrays:
        found = request.infer(inputs)
        return {name: found[name].copy() for name in names}

    return run
