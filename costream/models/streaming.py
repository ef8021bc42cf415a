"""Streaming models: an optional frontend, a continual network and a card."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.errors import ModelError, SourceError
from costream.core.records import (
    AudioBlock,
    AudioFormat,
    Data,
    FeatureRow,
    SkeletonFrame,
    SourceInfo,
    VideoFrame,
)
from costream.models.base import ModelHead, ModelInfo, NetworkOutput, StepResult, stacked
from costream.models.compatibility import (
    check_source,
    exactness,
    extra_audio,
    input_width,
    source_kind,
    source_notes,
)
from costream.models.oad.audiovisual import stack_audio_blocks
from costream.models.skeleton.pose import BOX, PoseTracker, PoseTrackers
from costream.nn.cuda_graph import GraphedStep
from costream.nn.state import State, numbers_of
from costream.weights_io.card import Card, Familiarity

CHUNK = 16  # items of a recording at once: four seconds of sound, two of video
_TOKENS = 8  # at once: networks with windows take longer for more

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass
class ModelState(State):
    """State of the frontend and the network for the streams of a batch."""

    frontend: State | None
    network: State

    def __post_init__(self) -> None:
        # Pose trackers, whose state cannot be copied or saved.
        self.poses: PoseTrackers | None = None
        self.graphed: GraphedStep | None = None  # on a GPU

    def reset(self, rows: Iterable[int] | None = None) -> None:
        """Reset these streams (default: all)."""
        numbers = None if rows is None else numbers_of(rows)
        super().reset(numbers)
        if self.poses is not None:
            self.poses.reset(range(self.batch_size) if numbers is None else numbers)

    def put(self, rows: Iterable[int], other: ModelState) -> None:
        """Copy the streams of ``other`` into these rows, and reset their pose trackers.

        Raises like ``State.put``.
        """
        numbers = numbers_of(rows)
        super().put(numbers, other)
        if self.poses is not None:
            self.poses.reset(numbers)


def familiarity_of(
    card: Card,
) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None:
    """Return the function from logits [..., K] to how familiar the input is, 0 to 1 [...].

    None if the card does not say how to tell; see ``weights_io.card.Familiarity``. It can be
    pickled.
    """
    known = card.familiarity
    if known is None:
        return None
    counted = np.isin(card.labels, [label for label in card.events if label != known.rest])
    return partial(_familiar, np.flatnonzero(counted), known)


def _familiar(
    counted: npt.NDArray[np.intp], known: Familiarity, logits: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    with np.errstate(invalid="ignore"):  # logits that are no numbers
        energy = np.logaddexp.reduce(logits.take(counted, -1), -1, np.float64)
    half_odds = (energy - known.centre) * (0.5 / known.scale)
    out: npt.NDArray[np.float32] = (0.5 + 0.5 * np.tanh(half_odds)).astype(np.float32)
    return out


def _rows_without_numbers(probabilities: npt.NDArray[np.float32]) -> list[int]:
    """Return the rows [C] that are not numbers.

    Values too large for the arithmetic would be remembered for a window, by recurrent networks for
    ever, so the state of their streams is reset.
    """
    return [k for k, row in enumerate(np.isnan(probabilities)) if row.any()]


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
        heads: Sequence[ModelHead] = (),
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Take over the modules.

        Raises ModelError for an unavailable device or dtype, and for skeletons that the network
        does not take.

        ``heads``: the classifiers of a network with several, whose logits are concatenated.
        """
        self.device, self.dtype = find_device(device), find_dtype(dtype)
        if self.device.type == "mps" and self.dtype is torch.float64:
            raise ModelError("mps has no float64", hint="use --dtype float32")
        kind, beside = source_kind(frontend), extra_audio(frontend)
        if self.dtype.itemsize < 4 and (kind == "audio" or beside):
            raise ModelError(f"no spectrograms in {dtype}", hint="use --dtype float32")
        for name in ("persons", "joints", "channels"):  # of skeletons; tensors do not depend on all
            given, taken = getattr(frontend, name, None), getattr(network, name, None)
            if given != taken and isinstance(given, int) and isinstance(taken, int):
                raise ModelError(f"the frontend gives {given} {name}, the network takes {taken}")
        self.network = self._place(network)
        # Preparing a few joints takes many small operations, which are slow on an accelerator.
        placed = kind in ("video", "audio", "text")
        self.frontend: Any = self._place(frontend) if placed else frontend
        pose_box = BOX if kind == "skeleton" else None
        together = kind == "video" and beside is None and hasattr(frontend, "forward_steps")
        persons = int(frontend.persons) if kind == "skeleton" else None
        alone = ModelHead(card, weights_sha256, slice(None), by_person=persons == 1)
        self.info = ModelInfo(
            card,
            weights_sha256,
            tuple(heads) or (alone,),
            stride=int(getattr(network, "stride", 1)),
            delay=int(getattr(network, "delay", 0)),
            box=(frontend.box[0], frontend.box[1]) if kind == "video" else pose_box,
            frames=int(getattr(frontend, "frames", 1)),
            sound=AudioFormat(frontend.sample_rate_hz, frontend.block) if kind == "audio" else None,
            beside=beside,
            text=kind == "text",
            chunk=CHUNK if kind in ("audio", "text") or together else 1,
            persons=persons,
            # With strides in time, or a pose tracker each.
            in_time=kind == "skeleton" or any(hasattr(p, "in_time") for p in (frontend, network)),
        )
        cards = [head.card for head in self.info.heads]
        self._scales = [(c.multilabel, torch.tensor(c.temperature, device="cpu")) for c in cards]
        self._familiar = [familiarity_of(card) for card in cards]

    @property
    def input_width(self) -> int:
        """Number of values of a feature row."""
        return input_width(self.info.card)

    @cached_property
    def network_macs(self) -> int:
        """Multiply-accumulates of one step of one stream, without the frontend."""
        return int(self.network.count_macs())

    @cached_property
    def network_dense_macs(self) -> int:
        """Multiply-accumulates of the same output when the network recomputes its whole window."""
        return int(self.network.dense_macs)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one step of one stream, frontend included."""
        return self._frontend_macs + self.network_macs

    @cached_property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same output when the whole window is recomputed.

        So does a frontend with overlapping windows; most process each frame once in any case.
        """
        frontend = getattr(self.frontend, "dense_macs", None) or self._frontend_macs
        return int(frontend) + self.network_dense_macs

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Raise SourceError if this source does not fit the model.

        Return entries for the run's header on how it reaches the network. Raises ModelError if the
        model has no classifier (an imported encoder).
        """
        check_source(self.info.card, self.frontend, source)
        return source_notes(self.frontend, source) | exactness(self)

    def init_state(self, batch_size: int = 1) -> ModelState:
        """Return an initial state for ``batch_size`` streams."""
        frontend = None if self.frontend is None else self.frontend.init_state(batch_size)
        return ModelState(frontend, self.network.init_state(batch_size))

    @torch.inference_mode()
    def step(self, items: Sequence[Data], state: ModelState) -> StepResult:
        """Take one item per stream, all of the same type, return the newest output.

        Feature rows go straight to the network, frames and skeletons through the frontend; a
        skeleton frontend gets the persons that MediaPipe detects in frames. The probabilities
        are the softmax over all logits at the card's temperature, or the sigmoid of each where
        labels are independent; where no person is present, the background has probability 1.
        """
        began = time.perf_counter()
        if len({type(item) for item in items}) != 1:
            raise ValueError("all items of a step must be of one type")
        rows = [item.values for item in items if isinstance(item, FeatureRow)]
        skeletons = self._find(items, state)
        if rows:
            tokens = torch.from_numpy(stacked(rows)).to(self.device, self.dtype)
        else:
            tokens = self.see(skeletons or items, state)
        synchronize(self.device)
        frontend_s = 0.0 if rows else time.perf_counter() - began
        skip = bool(rows) and self.frontend is not None  # feature rows bypass it
        spectra = tuple(self._spectra(state, 1)[:, 0]) if isinstance(items[0], AudioBlock) else None
        return self._answer(tokens, state, frontend_s, skeletons, spectra, skip=skip)

    @torch.inference_mode()
    def steps(self, items: Sequence[Data], state: ModelState) -> list[StepResult]:
        """Take T items of one stream, return the same results as T calls of ``step``.

        Audio blocks and frames go through frontend and network together, others one by one.
        """
        kinds = {type(item) for item in items}
        if len(items) > 1 and self.info.chunk > 1 and kinds in ({VideoFrame}, {AudioBlock}):
            return self._together(items, state)
        return [self.step([item], state) for item in items]

    def _together(self, items: Sequence[Data], state: ModelState) -> list[StepResult]:
        began, sound = time.perf_counter(), isinstance(items[0], AudioBlock)
        given = torch.from_numpy(np.stack([self._prepare(item) for item in items])[None])
        given = given.to(self.device, self.dtype if sound else given.dtype)
        tokens = self.frontend.forward_steps(given, state.frontend).to(self.device, self.dtype)
        synchronize(self.device)
        seen = time.perf_counter()
        several = self.info.stride == 1 and hasattr(self.network, "forward_steps")
        if not sound and (not several or self.device.type == "cuda"):  # where steps are graphs
            return [self._answer(t, state, (seen - began) / len(items)) for t in tokens.unbind(1)]
        parts = (tokens,) if sound else tokens.split(_TOKENS, 1)
        outs = [self.network.forward_steps(part, state.network) for part in parts]
        results = self._results(torch.cat([o.logits[0] for o in outs]), state, (began, seen))
        if sound:
            spectra = self._spectra(state, len(items))[0]
            return [replace(r, spectra=(s,)) for r, s in zip(results, spectra, strict=True)]
        if outs[0].anticipation is None:
            return results
        future = torch.cat([o.anticipation[0] for o in outs]).float().softmax(-1).cpu().numpy()
        return [replace(r, anticipation=f[None]) for r, f in zip(results, future, strict=True)]

    def _results(
        self,
        logits: Tensor,
        state: ModelState,
        times: tuple[float, float],
        counts: Sequence[int] | None = None,
    ) -> list[StepResult]:
        """Return a result for each of the logits [T, K] of the newest T items of one stream.

        ``times``: when the frontend began and ended. ``counts``: tokens of each item, or one.
        """
        counts = counts or [1] * len(logits)
        probabilities, familiarity = self._probabilities(logits), self._familiarity(logits)
        overflowed = _rows_without_numbers(probabilities)
        began, seen = times
        frontend_s = (seen - began) / len(counts)
        network_s = (time.perf_counter() - seen) / len(counts)
        results, ago = [], sum(counts)
        for k, count in enumerate(counts):
            ago -= count
            result = StepResult(
                probabilities[k : k + 1],
                None,
                self.network.warmup(state.network, ago),
                macs=count * self.macs,
                dense_macs=self.dense_macs,
                frontend_s=frontend_s,
                network_s=network_s,
                network_macs=count * self.network_macs,
                network_dense_macs=self.network_dense_macs,
                familiarity=None if familiarity is None else familiarity[k : k + 1],
                overflowed=(True,) if k in overflowed else None,
            )
            results.append(result)
        if overflowed:
            state.reset()
        return results

    def _answer(
        self,
        tokens: Tensor,
        state: ModelState,
        frontend_s: float,
        skeletons: tuple[SkeletonFrame, ...] | None = None,
        spectra: tuple[npt.NDArray[np.float32], ...] | None = None,
        *,
        skip: bool = False,
    ) -> StepResult:
        """Take one token per stream, [B, ...]; ``skip``: the frontend had no part in them."""
        began, count = time.perf_counter(), len(tokens)
        out = self._network_step(tokens, state)
        future = None if out is None else out.anticipation
        probabilities = None if out is None else self._probabilities(out.logits)
        familiarity = None if out is None else self._familiarity(out.logits)
        if probabilities is not None and skeletons is not None and self.info.card.background:
            present = tokens.flatten(1).any(1).tolist()
            if not all(present):
                alone = np.equal(self.info.card.labels, self.info.card.background)
                probabilities[np.logical_not(present)] = alone
        overflowed = () if probabilities is None else _rows_without_numbers(probabilities)
        if overflowed:
            state.reset(overflowed)
        # The temperature was fitted for the present; anticipation has a classifier of its own.
        anticipation = None if future is None else future.float().softmax(-1).cpu().numpy()
        return StepResult(
            probabilities,
            anticipation,
            self.network.warmup(state.network),
            macs=(self.network_macs if skip else self.macs) * count,
            dense_macs=(self.network_dense_macs if skip else self.dense_macs) * count,
            frontend_s=frontend_s,
            network_s=time.perf_counter() - began,
            skeletons=skeletons,
            spectra=spectra,
            network_macs=self.network_macs * count,
            network_dense_macs=self.network_dense_macs * count,
            familiarity=familiarity,
            overflowed=tuple(k in overflowed for k in range(count)) if overflowed else None,
        )

    def _network_step(self, tokens: Tensor, state: ModelState) -> NetworkOutput | None:
        step: Callable[[Tensor, Any], NetworkOutput | None] = self.network.forward_step
        if self.device.type != "cuda" or not hasattr(self.network, "graph_key"):
            return step(tokens, state.network)
        state.graphed = state.graphed or GraphedStep(self.network, state.network)
        return cast("NetworkOutput | None", state.graphed(tokens))

    def _spectra(self, state: ModelState, steps: int) -> npt.NDArray[np.float32]:
        """Return the spectrograms of the newest steps, [B, steps, frames, bands]."""
        spectrum = self.frontend.newest_spectrum(state.frontend).float().cpu().numpy()
        spectra: npt.NDArray[np.float32] = spectrum.reshape(
            len(spectrum), steps, -1, spectrum.shape[-1]
        )
        return spectra

    def _probabilities(self, logits: Tensor) -> npt.NDArray[np.float32]:
        """Return the softmax over the logits [..., K] of each head, at its temperature.

        Of independent labels it is the sigmoid of each.
        """
        parts, several = [], len(self.info.heads) > 1
        for head, (independent, scale) in zip(self.info.heads, self._scales, strict=True):
            own = (logits[..., head.columns] if several else logits).float() / scale
            parts.append(own.sigmoid() if independent else own.softmax(-1))
        whole: Tensor = torch.cat(parts, -1) if several else parts[0]
        return cast("npt.NDArray[np.float32]", whole.cpu().numpy())

    def _familiarity(self, logits: Tensor) -> npt.NDArray[np.float32] | None:
        """Return how familiar the input is to each head, [..., heads]; None if no card can tell."""
        if not any(self._familiar):
            return None
        rows = logits.float().cpu().numpy()
        if len(self._familiar) == 1 and self._familiar[0] is not None:
            return self._familiar[0](rows)[..., None]
        out = np.full((*rows.shape[:-1], len(self._familiar)), np.nan, np.float32)
        for k, (head, familiar) in enumerate(zip(self.info.heads, self._familiar, strict=True)):
            if familiar is not None:
                out[..., k] = familiar(rows[..., head.columns])
        return out

    def _find(self, items: Sequence[Data], state: ModelState) -> tuple[SkeletonFrame, ...] | None:
        """Return the skeletons among the items, or those detected in frames."""
        if source_kind(self.frontend) != "skeleton":
            return None
        frames = [item for item in items if isinstance(item, VideoFrame)]
        if not frames:
            return tuple(item for item in items if isinstance(item, SkeletonFrame)) or None
        if state.poses is None:
            front = self.frontend
            state.poses = PoseTrackers(len(items), front.persons, front.places)
        return tuple(state.poses.find(frames))

    def person_finder(self, most: int) -> PoseTracker:
        """Return a finder of up to ``most`` persons in the frames of one stream."""
        return PoseTracker(most, self.frontend.places)

    def see(self, items: Sequence[Data], state: ModelState) -> Tensor:
        """Take one item per stream, no feature rows, and return their tokens [B, ...]."""
        if self.frontend is None:
            raise SourceError(f"{self.info.card.name} takes precomputed features")
        given = torch.from_numpy(stacked([self._prepare(item) for item in items]))
        if self.frontend.takes == "video":
            given = given.to(self.device)
        elif self.frontend.takes == "audio":
            given = given.to(self.device, self.dtype)
        if self.info.beside is None:
            tokens: Tensor = self.frontend.forward_step(given, state.frontend)
        else:
            sound = [self._audio_blocks(item) for item in items]
            tokens = self.frontend.forward_step(given, state.frontend, sound)
        return tokens.to(self.device, self.dtype)

    def _audio_blocks(self, item: Data) -> Tensor:
        """Return the audio blocks of a frame, [n, block]."""
        blocks = stack_audio_blocks(item) if isinstance(item, VideoFrame) else torch.zeros(0)
        return blocks.to(self.device, self.dtype)

    def _prepare(self, item: Data) -> npt.NDArray[Any]:
        if isinstance(item, AudioBlock):
            return item.samples
        if self.info.frames > 1 and isinstance(item, VideoFrame):
            given: Any = (*item.earlier, item)
        else:
            given = item.rgb if isinstance(item, VideoFrame) else item
        prepared: npt.NDArray[Any] = self.frontend.prepare(given)
        return prepared

    def _place(self, module: Any) -> Any:
        return module.to(self.device, self.dtype).eval().requires_grad_(False)

    @cached_property
    def _frontend_macs(self) -> int:
        return 0 if self.frontend is None else int(self.frontend.count_macs())


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work, which is asynchronous on a GPU.

    Without this its time would be attributed to the code that reads the result.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def find_dtype(name: str, known: Collection[str] = DTYPES) -> torch.dtype:
    """Return a type of weights. Raises ModelError for one that is not among ``known``."""
    if name in DTYPES and name not in known:
        hint = f"possible are {', '.join(known)}"
        raise ModelError(f"this model cannot be computed in {name}", hint=hint)
    if name not in known:
        raise ModelError(f"unknown type {name!r}", hint=f"known are {', '.join(known)}")
    return DTYPES[name]


def find_device(name: str) -> torch.device:
    """Return a device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises ModelError for one that is unknown or unavailable.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
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
        raise ModelError(f"device {name!r} is not available ({have})", hint="use the device cpu")
    return device
