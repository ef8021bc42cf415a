"""Models whose step runs in ONNX Runtime: ``-m step.onnx``, as ``models export`` writes it.

The file has the card of the model, so everything but the step is as for its weights. Only steps of
video models, exported with ``--whole``, and the networks of NanoDet, YAMNet and EfficientAT are
faster there; see the manual.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.models.base import stacked
from costream.models.eventful.box_heads import Detections
from costream.models.frontend import frontend_class, load_frontend
from costream.models.images import Pixels
from costream.models.oad.cooadtr import OadOutput
from costream.models.objects.model import DetectorModel
from costream.models.objects.nanodet import NanoDetPlus, best_objects
from costream.models.pose.weights import PoseWeights
from costream.models.streaming import StreamingModel
from costream.nn.eventful.counts import Operations
from costream.nn.state import State, zeros
from costream.weights_io.card import Card
from costream.weights_io.file import card_in, read_header

Arrays = dict[str, npt.NDArray[Any]]
_BARE = ("logmel", "efficientat-mel", "pixels")  # frontends without weights
_TYPES = {"tensor(float)": torch.float32, "tensor(int64)": torch.int64}


@dataclass
class StepState(State):
    """State of an exported step for each stream; ``steps``: int64 [B], taken so far."""

    values: tuple[Tensor, ...]  # [B, ...], in the order of the inputs
    steps: Tensor


class OnnxStep(nn.Module):
    """An exported step with its state; see ``models.base.Network``.

    ``data``: the ONNX file. ``facts``: of the graph, see ``models.export``. ``provider``: see
    ``execution_provider``. Raises ModelError if ONNX Runtime is not installed or refuses the file.
    """

    delay = 0

    def __init__(self, data: bytes, facts: dict[str, Any], provider: str | None = None) -> None:
        super().__init__()
        session = onnx_session(data, torch.get_num_threads(), provider)
        self._run: Callable[[list[str] | None, Arrays], list[Any]] = session.run
        self._inputs = [i for i in session.get_inputs() if i.name != "x"]
        self._outputs = [output.name for output in session.get_outputs()]
        self.window, self._macs = int(facts["field"]), int(facts["macs"][0])
        self.dense_macs = int(facts["dense_macs"][0])
        self.exact = bool(facts.get("exact", [False])[0])  # older files do not say
        if not {"logits", *(f"next_{i.name}" for i in self._inputs)} <= set(self._outputs):
            raise ModelError("the inputs and outputs of the file are not those of a step")
        if "ready" in self._outputs:  # CoX3D and CoSlow
            raise ModelError("this step is not faster in ONNX Runtime", hint="give its weights")

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream."""
        return self._macs

    def init_state(self, batch_size: int = 1) -> StepState:
        """Return the initial state of a batch of streams."""
        kinds = [(i.shape, torch.zeros(0, dtype=_TYPES[i.type])) for i in self._inputs]
        values = tuple(zeros(batch_size, *shape, like=like) for shape, like in kinds)
        return StepState(values, zeros(batch_size))

    def warmup(self, state: StepState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its field is not yet full; ``ago``: steps before."""
        return tuple(steps - ago < self.window for steps in state.steps.tolist())

    def forward_steps(self, x: Tensor, state: StepState) -> OadOutput:
        """Take T inputs of every stream [B, T, ...], return the logits [B, T, K]."""
        logits = [self.forward_step(row, state).logits for row in x.unbind(1)]
        return OadOutput(torch.stack(logits, 1), None)

    def forward_step(self, x: Tensor, state: StepState) -> OadOutput:
        """Take an input of every stream [B, ...], return the logits [B, K]."""
        streams = []  # which run one by one
        for row in range(len(x)):
            values = (value[row].numpy() for value in state.values)
            before = dict(zip([i.name for i in self._inputs], values, strict=True))
            streams.append(self._run(None, {"x": x[row : row + 1].numpy(), **before}))
        outputs = dict(zip(self._outputs, zip(*streams, strict=True), strict=True))
        with torch.inference_mode(False):
            after = (stacked(outputs[f"next_{i.name}"]) for i in self._inputs)
            state.values = tuple(map(torch.from_numpy, after))
            state.steps += 1
        return OadOutput(torch.from_numpy(np.concatenate(outputs["logits"])), None)


class OnnxDetector(nn.Module):
    """An exported NanoDet; see ``NanoDetPlus``.

    ``data``: the ONNX file. ``facts``: of the graph, see ``detector_graph``. ``provider``: see
    ``execution_provider``. Raises ModelError if ONNX Runtime is not installed or refuses the file.
    """

    patch = NanoDetPlus.patch

    def __init__(self, data: bytes, facts: Mapping[str, Any], provider: str | None = None) -> None:
        super().__init__()
        session = onnx_session(data, torch.get_num_threads(), provider)
        self._run: Callable[[list[str] | None, Arrays], list[Any]] = session.run
        if not {"boxes", "logits"} <= {output.name for output in session.get_outputs()}:
            raise ModelError("the outputs of the file are not those of a detector")
        self.classes, self.score = int(facts["classes"]), float(facts["score"])
        self._costs = [(int(stride), int(macs)) for stride, macs in facts["costs"]]

    def detect(self, pictures: Tensor, operations: Operations) -> list[Detections]:
        """Return the objects in each of the images [B, 3, H, W], the best score first."""
        found = []
        for picture in pictures:
            boxes, logits = self._run(["boxes", "logits"], {"x": picture[None].numpy()})
            places: Tensor = torch.from_numpy(boxes[0])
            found.append(best_objects(torch.from_numpy(logits[0]), places.__getitem__, self.score))
        height, width = pictures.shape[2:]
        for stride, macs in self._costs:
            operations.linear += len(pictures) * macs * -(-height // stride) * -(-width // stride)
        return found


class _Pictures(nn.Module):
    """The frontend inside a step: prepares pictures, without weights."""

    takes = "video"

    def __init__(self, frontend: Any, facts: dict[str, Any]) -> None:
        super().__init__()
        self.prepare, self.box = frontend.prepare, frontend.box
        self._macs, self.dense_macs = (int(facts[key][1]) for key in ("macs", "dense_macs"))
        self.exact = bool(facts.get("exact", [False, False])[1])

    def init_state(self, batch_size: int = 1) -> None:
        """Return None: the state is that of the step."""

    def forward_step(self, x: Tensor, _state: None) -> Tensor:
        """Return pictures as the step takes them, float32 [B, 3, H, W]."""
        return x.float()

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame."""
        return self._macs


def load_step(
    path: Path, device: str = "auto", dtype: str = "float32", provider: str | None = None
) -> StreamingModel | DetectorModel:
    """Return the model in an ONNX file that ``models export`` wrote, whole if it is of video.

    ``provider``: see ``execution_provider``.

    Raises ModelError for other files, for steps that were measured to be no faster than with
    PyTorch, without ONNX Runtime or the provider, and for other devices and types than float32 on
    the CPU.
    """
    header = read_header(path)
    card, metadata = card_in(header, path), header.metadata
    if device not in ("auto", "cpu") or dtype != "float32":
        raise ModelError("a step in ONNX runs on the processor, in float32", where=path)
    try:
        facts = json.loads(metadata["step"])
        takes = frontend_class(card.frontend).takes if card.frontend else ""  # type: ignore[attr-defined]
        bare = card.frontend in _BARE and not facts["whole"]
        bad = (
            facts["whole"] if card.frontend == "pixels" else takes != "video" or not facts["whole"]
        )
        if not card.labels:
            PoseWeights(card)  # raises: it is part of other models
        if not bare and bad:
            hint = f"give its weights, -m {card.name}"
            if takes == "video":
                hint += f", or export it with{'out' * facts['whole']} --whole"
            raise ModelError("this step is not faster in ONNX Runtime", hint=hint)
        if card.frontend == "pixels":
            detector = OnnxDetector(path.read_bytes(), facts, provider)
            return _detector(detector, card, metadata.get("tensors_sha256", ""))
        step = OnnxStep(path.read_bytes(), facts, provider)
        with torch.random.fork_rng(devices=[]):
            module = load_frontend(str(card.frontend), **card.frontend_arguments)
        frontend = module.eval() if bare else _Pictures(module, facts)
    except ModelError as error:
        raise ModelError(str(error), where=path) from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        what = f"invalid description of the step ({type(error).__name__}: {error})"
        raise ModelError(what, where=path) from error
    return StreamingModel(card, step, frontend, weights_sha256=metadata.get("tensors_sha256", ""))


def _detector(step: OnnxDetector, card: Card, sha256: str) -> DetectorModel:
    frontend = load_frontend(str(card.frontend), **card.frontend_arguments)
    network = cast(NanoDetPlus, step)
    return DetectorModel(card, network, cast(Pixels, frontend), weights_sha256=sha256)


def execution_provider(text: str, available: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the provider that a text means, and its options for ONNX Runtime.

    ``text``: the provider's name without "ExecutionProvider", in any case, and a device after a
    colon: ``cuda:1``, ``openvino:NPU``. ``available``: the names that ONNX Runtime has.

    Raises ModelError for others, with those that there are.
    """
    name, _, device = text.partition(":")
    known = {each.removesuffix("ExecutionProvider").lower(): each for each in available}
    known.pop("azure", None)  # sends what it gets to a server
    if name.lower() not in known:
        what = f"this ONNX Runtime has no provider {name!r}; it has {', '.join(known)}"
        hint = "onnxruntime-gpu, onnxruntime-openvino and onnxruntime-directml have others"
        raise ModelError(what, where="--provider", hint=hint)
    key = "device_type" if name.lower() == "openvino" else "device_id"
    return known[name.lower()], {key: device} if device else {}


def onnx_session(data: bytes, threads: int, provider: str | None = None) -> Any:
    """Return an ``onnxruntime.InferenceSession``, which sends and writes nothing.

    ``provider``: see ``execution_provider``; None: the CPU. Raises ModelError if the package is not
    installed or rejects the file, and if the provider is missing or does not start: ONNX Runtime
    would compute on the CPU then.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        hint = "pip install 'costream[onnx]'"
        raise ModelError("steps in ONNX need the package onnxruntime", hint=hint) from error
    onnxruntime.set_default_logger_severity(4)  # nothing about a provider that does not start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are in the exception
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    chosen = execution_provider(provider or "cpu", onnxruntime.get_available_providers())
    try:
        session = onnxruntime.InferenceSession(data, options, providers=[chosen])
    except Exception as error:  # its exceptions have no common class
        what = str(error).partition("\n")[0]
        raise ModelError(f"ONNX Runtime rejects the file ({what})") from error
    if chosen[0] not in session.get_providers():
        what = f"{chosen[0]} did not start, for want of a device or its libraries"
        raise ModelError(what, where="--provider", hint="leave it out: the step runs on the CPU")
    return session
