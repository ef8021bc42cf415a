"""Checkpoint files of trainings.

A checkpoint is a safetensors file and written atomically, so the last one written is complete.
A resumed training gives, bit for bit, the result of an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from costream.core.errors import UsageError
from costream.weights_io.file import write_whole

log = logging.getLogger("costream")

MIN_INTERVAL_S = 0.5  # between two writes
INTERVAL_RATIO = 30  # interval between two writes, relative to the duration of the last one
SavedState = tuple[dict[str, Tensor], Any]  # tensors by name, and a JSON value


class Stateful(Protocol):
    """A part of the training state that a checkpoint stores."""

    def state(self) -> SavedState:
        """Return the state; tensors need not be copies."""

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore a state that ``state`` returned."""


class RandomState:
    """The random state of a training: a NumPy generator and PyTorch's global one."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def state(self) -> SavedState:
        """Return the states of the generators, including the one of a GPU in use."""
        states = {"torch": torch.get_rng_state()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states["cuda"] = torch.cuda.get_rng_state()
        return states, self._rng.bit_generator.state

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore the states of the generators."""
        torch.set_rng_state(tensors["torch"])
        if "cuda" in tensors:
            torch.cuda.set_rng_state(tensors["cuda"])
        self._rng.bit_generator.state = value


class TrainingCheckpoint:
    """The checkpoint file ``OUTPUT.partial`` of a training.

    ``identity`` holds the options and data of the training as JSON values; a checkpoint of another
    training cannot be resumed. With ``overwrite`` such a file, or one that is not a checkpoint, is
    replaced; without it both raise UsageError.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], overwrite: bool) -> None:
        text = json.dumps(identity, sort_keys=True, default=str)
        self._path, self._digest = path, hashlib.sha256(text.encode()).hexdigest()
        self._written_s, self._took_s = time.monotonic(), 0.0
        self._found: dict[str, Tensor] = {}
        self._values: dict[str, Any] = {}
        if path.exists():
            self._read(overwrite)

    @property
    def path(self) -> Path:
        """Path of the file, which is first written after about a second of training."""
        return self._path

    def restore(self, parts: Mapping[str, Stateful]) -> int:
        """Restore ``parts`` from the file; return the number of steps done, 0 without a file."""
        if not self._values:
            return 0
        steps = int(self._values["steps"])
        for name, part in parts.items():
            head = f"{name}/"
            own = {k.removeprefix(head): v for k, v in self._found.items() if k.startswith(head)}
            part.restore(own, self._values["parts"][name])
        log.info("resuming after step %d (%s)", steps, self._path)
        return steps

    def note(self, steps: int, parts: Mapping[str, Stateful]) -> None:
        """Write the state of ``parts`` after ``steps`` steps if it is due. Raises OutputError."""
        began_s = time.monotonic()
        if began_s - self._written_s < max(MIN_INTERVAL_S, INTERVAL_RATIO * self._took_s):
            return
        self.write(steps, parts)
        self._written_s = time.monotonic()
        self._took_s = self._written_s - began_s

    def write(self, steps: int, parts: Mapping[str, Stateful]) -> None:
        """Write the state of ``parts`` after ``steps`` steps. Raises OutputError."""
        from safetensors.torch import save

        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        for name, part in parts.items():
            state_tensors, values[name] = part.state()
            # Tensors may share memory (weights and the best ones so far), which the format forbids.
            copies = {k: v.detach().to("cpu", copy=True) for k, v in state_tensors.items()}
            tensors |= {f"{name}/{k}": v.contiguous() for k, v in copies.items()}
        state = json.dumps({"steps": steps, "parts": values})
        write_whole(self._path, [save(tensors, {"identity": self._digest, "state": state})])

    def remove(self) -> None:
        """Delete the file after the training is complete."""
        self._path.unlink(missing_ok=True)
        for left in self._path.parent.glob(f".{self._path.name}.*.part"):
            left.unlink(missing_ok=True)  # left by runs killed while writing

    def _read(self, overwrite: bool) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") == self._digest:
                    self._values = json.loads(metadata["state"])
                    self._found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                    return
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            if not overwrite:
                raise UsageError(
                    f"cannot be read ({error})", where=self._path, hint="--overwrite starts over"
                ) from error
        if not overwrite:
            raise UsageError(
                "checkpoint of a training with other options or data",
                where=self._path,
                hint="use the same options and data to resume, or --overwrite to start over",
            )
