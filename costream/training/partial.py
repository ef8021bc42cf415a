"""A training that is not over yet, in a file: where it stands, so that it can be gone on with.

The file is safetensors and written in one go, so whatever stops a training, the last one written
is whole. Going on from it gives, bit for bit, what the training would have given undisturbed.
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

from costream.checkpoints.weights_file import write_whole
from costream.errors import UsageError

log = logging.getLogger("costream")

EVERY_S = 0.5  # at most this often ...
SHARE = 30  # ... and no sooner than so many times as long as writing took

Remembered = tuple[dict[str, Tensor], Any]  # tensors by name, and a value of JSON


class Part(Protocol):
    """What changes while a network learns, and has to be remembered to go on."""

    def remembered(self) -> Remembered:
        """Give all of it; tensors need not be copies."""

    def recall(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Be as when ``remembered`` gave these."""


class Chance:
    """The random numbers of a training: a generator of NumPy and the one of PyTorch."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def remembered(self) -> Remembered:
        """Give the states of both."""
        return {"torch": torch.get_rng_state()}, self._rng.bit_generator.state

    def recall(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Go on with the same numbers."""
        torch.set_rng_state(tensors["torch"])
        self._rng.bit_generator.state = value


class Partial:
    """The file ``OUTPUT.partial`` of a training.

    ``identity`` is what the training was asked for and what it learns from, as values of JSON: a
    file of another one is not gone on with. With ``overwrite`` such a file is replaced; without it,
    and where the file is no such file, that is a UsageError.
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
        """The file; it is there once the training has gone on for about a second."""
        return self._path

    def restore(self, parts: Mapping[str, Part]) -> int:
        """Bring ``parts`` to where the file left them; gives the steps done, 0 without a file."""
        if not self._values:
            return 0
        steps = int(self._values["steps"])
        for name, part in parts.items():
            head = f"{name}/"
            own = {k.removeprefix(head): v for k, v in self._found.items() if k.startswith(head)}
            part.recall(own, self._values["parts"][name])
        log.info("going on after step %d (%s)", steps, self._path)
        return steps

    def note(self, steps: int, parts: Mapping[str, Part]) -> None:
        """Write where ``parts`` stand after so many steps, when it is time. Raises OutputError."""
        began_s = time.monotonic()
        if began_s - self._written_s < max(EVERY_S, SHARE * self._took_s):
            return
        self.write(steps, parts)
        self._written_s = time.monotonic()
        self._took_s = self._written_s - began_s

    def write(self, steps: int, parts: Mapping[str, Part]) -> None:
        """Write where ``parts`` stand after so many steps. Raises OutputError."""
        from safetensors.torch import save

        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        for name, part in parts.items():
            own, values[name] = part.remembered()
            # Tensors may share memory (weights and the best ones so far), which the format forbids.
            tensors |= {f"{name}/{k}": v.detach().clone().contiguous() for k, v in own.items()}
        state = json.dumps({"steps": steps, "parts": values})
        write_whole(self._path, [save(tensors, {"identity": self._digest, "state": state})])

    def remove(self) -> None:
        """Take the file away: the training is over."""
        self._path.unlink(missing_ok=True)
        for left in self._path.parent.glob(f".{self._path.name}.*.part"):
            left.unlink(missing_ok=True)  # of runs that were killed while they wrote

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
                "an unfinished training with other options or data",
                where=self._path,
                hint="give the same ones to go on, or --overwrite to start over",
            )
