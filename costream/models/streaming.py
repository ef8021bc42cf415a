"""The one kind of model that runs: an optional frontend, a continual network and a card."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.errors import ModelError, SourceError
from costream.models.base import StepResult
from costream.models.card import Card
from costream.nn.functional import store_by_columns
from costream.nn.state import State
from costream.records import Data, FeatureRow, VideoFrame
from costream.sources.base import SourceKind

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Output(Protocol):
    """What a classifying network gives for a step (B streams, K classes, A future steps)."""

    logits: Tensor  # [B, K]
    anticipation: Tensor | None  # [B, A, K]


class Network(Protocol):
    """A continual network with a classifier. It holds weights only; streams are in the state."""

    window: int  # tokens
    delay: int  # steps
    dense_macs: int  # of one step of one stream, the whole window computed anew

    def init_state(self, batch_size: int = 1) -> Any: ...  # noqa: D102

    def forward_step(self, x: Tensor, state: Any) -> Output: ...  # noqa: D102

    def warmup(self, state: Any) -> tuple[bool, ...]: ...  # noqa: D102

    def count_macs(self) -> int: ...  # noqa: D102


@dataclass
class ModelState(State):
    """What the streams of a batch have seen, in the frontend and in the network."""

    frontend: State | None
    network: State


class StreamingModel:
    """Frontend and network of one weight file, ready to step; implements ``models.base.Model``.

    ``network`` and ``frontend`` are in ``eval`` mode on ``device`` with ``dtype`` weights.
    """

    def __init__(
        self,
        card: Card,
        network: Any,
        frontend: Any = None,
        *,
        weights_sha256: str = "",
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Take the modules over. Raises ModelError for a device or type that is not there."""
        self.card, self.weights_sha256 = card, weights_sha256
        self.device = find_device(device)
        if dtype not in DTYPES:
            raise ModelError(f"unknown type {dtype!r}", hint=f"known are {', '.join(DTYPES)}")
        self.dtype = DTYPES[dtype]
        if self.device.type == "mps" and self.dtype is torch.float64:
            raise ModelError("mps has no float64", hint="use --dtype float32")
        self.network = self._settle(network)
        if self.device.type == "cpu":
            store_by_columns(self.network)
        self.frontend = None if frontend is None else self._settle(frontend)

    @property
    def box(self) -> tuple[int, int] | None:
        """Width and height that pictures should be fitted into; None: no pictures."""
        return None if self.frontend is None else (self.frontend.box[0], self.frontend.box[1])

    @property
    def input_width(self) -> int:
        """Values a feature row must have."""
        return int(self.card.arguments.get("input_width") or self.card.arguments["embed_dim"])

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of one step of one stream, frontend included."""
        return self._frontend_macs() + int(self.network.count_macs())

    @cached_property
    def dense_macs(self) -> int:
        """The same answer with the whole window computed anew by the network."""
        return self._frontend_macs() + int(self.network.dense_macs)

    def check(self, kind: SourceKind, width: int | None) -> None:
        """Raise SourceError when a source of this kind and feature width does not fit.

        Raises ModelError when the model has no classifier (an imported encoder).
        """
        if not self.card.labels:
            raise ModelError(
                f"{self.card.name} is an encoder without classifier: it gives no scores",
                hint="use it from Python: load_model(...).network",
            )
        if kind == "video" and self.frontend is None:
            raise SourceError(
                f"{self.card.name} takes precomputed features, not video",
                hint=f"give a .npy or .npz file with {self.input_width} values a row, or use a"
                " model with a frontend",
            )
        if kind == "features" and width is not None and width != self.input_width:
            raise SourceError(
                f"rows of {width} values, but {self.card.name} takes {self.input_width}",
                hint="use the features it was trained on, or other weights",
            )

    def init_state(self, batch_size: int = 1) -> ModelState:
        """Give a fresh state for ``batch_size`` streams."""
        frontend = None if self.frontend is None else self.frontend.init_state(batch_size)
        return ModelState(frontend, self.network.init_state(batch_size))

    def reset(self, state: ModelState, rows: Sequence[int]) -> None:
        """Forget what these streams have seen."""
        state.reset(rows)

    @torch.inference_mode()
    def step(self, items: Sequence[Data], state: ModelState) -> StepResult:
        """Take one item a stream (all frames or all feature rows), give the newest output.

        Frames go through the frontend, feature rows straight to the network. The probabilities
        are the softmax over all logits.
        """
        began = time.perf_counter()
        frames = [item for item in items if isinstance(item, VideoFrame)]
        rows = [item.values for item in items if isinstance(item, FeatureRow)]
        if frames and rows:
            raise ValueError("a step takes either frames or feature rows, not both")
        if frames:
            tokens = self._see(frames, state)
        else:
            tokens = torch.from_numpy(np.stack(rows)).to(self.device, self.dtype)
        self._wait()
        seen = time.perf_counter()
        out: Output = self.network.forward_step(tokens, state.network)
        probabilities = _probabilities(out.logits)
        future = None if out.anticipation is None else _probabilities(out.anticipation)
        skipped = 0 if frames else self._frontend_macs()  # feature rows pass it by
        return StepResult(
            probabilities,
            future,
            self.network.warmup(state.network),
            macs=(self.macs - skipped) * len(items),
            dense_macs=(self.dense_macs - skipped) * len(items),
            frontend_s=seen - began if frames else 0.0,
            network_s=time.perf_counter() - seen,
        )

    def _see(self, frames: Sequence[VideoFrame], state: ModelState) -> Tensor:
        if self.frontend is None:
            raise SourceError(f"{self.card.name} takes precomputed features, not video")
        pictures = np.stack([self.frontend.prepare(frame.rgb) for frame in frames])
        tokens: Tensor = self.frontend.forward_step(
            torch.from_numpy(pictures).to(self.device), state.frontend
        )
        return tokens

    def _settle(self, module: Any) -> Any:
        return module.to(self.device, self.dtype).eval().requires_grad_(False)

    def _frontend_macs(self) -> int:
        return 0 if self.frontend is None else int(self.frontend.count_macs())

    def _wait(self) -> None:
        # Work on a GPU runs on by itself; without this its time would count as the network's.
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def find_device(name: str) -> torch.device:
    """Give a device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises ModelError for one that is not known or not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(
            f"unknown device {name!r}", hint="use auto, cpu, cuda, cuda:N or mps"
        ) from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        there, have = (device.index or 0) < count, f"{count} CUDA devices here"
    elif device.type == "mps":
        there, have = torch.backends.mps.is_available(), "no Apple GPU here"
    else:
        there, have = False, "costream runs on cpu, cuda and mps"
    if not there:
        raise ModelError(f"device {name!r} is not available ({have})", hint="use --device cpu")
    return device


def _probabilities(logits: Tensor) -> npt.NDArray[np.float32]:
    probabilities: npt.NDArray[np.float32] = torch.softmax(logits.float(), -1).cpu().numpy()
    return probabilities
