"""Streaming models: an optional frontend, a continual network and a card."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.errors import ModelError, SourceError
from costream.core.layouts import COCO_17
from costream.core.records import (
    AudioBlock,
    AudioFormat,
    Data,
    FeatureRow,
    SkeletonFrame,
    SourceInfo,
    VideoFrame,
)
from costream.models.base import Looks, ModelHead, ModelInfo, NetworkOutput, StepResult, stacked
from costream.models.compatibility import (
    check_source,
    exactness,
    extra_audio,
    input_width,
    source_kind,
    source_notes,
)
from costream.models.devices import find_device, find_dtype, synchronize
from costream.models.frontend import holds_tokens
from costream.models.head_scores import HeadScores, rows_with_nan
from costream.models.oad.audiovisual import stack_audio_blocks
from costream.models.pose.movenet import MoveNet
from costream.models.pose.tracker import BOX, PoseTracker, PoseTrackers
from costream.models.pose.weights import ESTIMATOR, pose_network
from costream.nn.cuda_graph import GraphedStep
from costream.nn.state import State, numbers_of
from costream.weights_io.card import Card

CHUNK = 16  # items of a recording at once: four seconds of sound, two of video
_TOKENS = 8  # at once: networks with windows take longer for more


@dataclass
class ModelState(State):
    """State of the frontend and the network for the streams of a batch."""

    frontend: State | None
    network: State

    def __post_init__(self) -> None:
        # Pose trackers, whose state cannot be copied or saved.
        self.poses: PoseTrackers | None = None
        self.graphed: GraphedStep | None = None  # on a GPU
        # A setting: whether tokens may be held, of a single stream; None: every frame is computed.
        self.looks: Looks | None = None

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


def _check_skeletons(frontend: Any, network: Any) -> None:
    """Raise ModelError if the sizes of skeletons differ, which tensors do not always show."""
    for name in ("persons", "joints", "channels"):
        output, taken = getattr(frontend, name, None), getattr(network, name, None)
        if output != taken and isinstance(output, int) and isinstance(taken, int):
            raise ModelError(f"the frontend outputs {output} {name}, the network takes {taken}")


def _model_info(
    card: Card, network: Any, frontend: Any, weights_sha256: str, heads: Sequence[ModelHead]
) -> ModelInfo:
    """Return the properties of a model that follow from its modules."""
    kind, extra = source_kind(frontend), extra_audio(frontend)
    box: tuple[int, int] | None = None
    if kind == "video":
        box = (frontend.box[0], frontend.box[1])
    elif kind == "skeleton":
        box = BOX
    in_chunks = kind == "video" and extra is None and hasattr(frontend, "forward_steps")
    persons = int(frontend.persons) if kind == "skeleton" else None
    single = ModelHead(card, weights_sha256, slice(None), by_person=persons == 1)
    return ModelInfo(
        card,
        weights_sha256,
        tuple(heads) or (single,),
        stride=int(getattr(network, "stride", 1)),
        delay=int(getattr(network, "delay", 0)),
        box=box,
        frames=int(getattr(frontend, "frames", 1)),
        sound=AudioFormat(frontend.sample_rate_hz, frontend.block) if kind == "audio" else None,
        beside=extra,
        text=kind == "text",
        chunk=CHUNK if kind in ("audio", "text") or in_chunks else 1,
        persons=persons,
        # A frontend or network with strides in time, or a pose tracker for each stream.
        holds=holds_tokens(card.frontend),
        in_time=kind == "skeleton" or any(hasattr(p, "in_time") for p in (frontend, network)),
    )


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
        """Move the modules to the device.

        ``heads``: the classifiers of a network with several, whose logits are concatenated.

        Raises ModelError for a device or dtype that is not available, and if the frontend's
        skeletons differ from those that the network takes.
        """
        self.device, self.dtype = find_device(device), find_dtype(dtype)
        if self.device.type == "mps" and self.dtype is torch.float64:
            raise ModelError("mps has no float64", hint="use --dtype float32")
        kind = source_kind(frontend)
        if self.dtype.itemsize < 4 and (kind == "audio" or extra_audio(frontend)):
            raise ModelError(f"no spectrograms in {dtype}", hint="use --dtype float32")
        _check_skeletons(frontend, network)
        self.network = self._place(network)
        # Preparing a few joints takes many small operations, which are slow on an accelerator.
        on_device = kind in ("video", "audio", "text")
        self.frontend: Any = self._place(frontend) if on_device else frontend
        if kind == "skeleton":
            frontend.eval().requires_grad_(False)
        self.info = _model_info(card, network, frontend, weights_sha256, heads)
        self.scores = HeadScores(self.info.heads)
        self._pose = ESTIMATOR  # weights that find the joints of persons in frames

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
        """Multiply-accumulates of the same output when the network recomputes its window."""
        return int(self.network.dense_macs)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one step of one stream, frontend included."""
        return self._frontend_macs + self.network_macs

    @cached_property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same output when all of its window is recomputed.

        A frontend counts too where its windows overlap; most process each frame only once.
        """
        frontend = getattr(self.frontend, "dense_macs", None) or self._frontend_macs
        return int(frontend) + self.network_dense_macs

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Return entries for the run's header on how the source reaches the network.

        Raises SourceError if the source does not fit the model, ModelError if the model has no
        classifier (an imported encoder).
        """
        check_source(self.info.card, self.frontend, source)
        notes = source_notes(self.frontend, source)
        if "pose" in notes and isinstance(pose_network(self._pose), MoveNet):
            notes["pose"] = "MoveNet on complete pictures, operations not counted"
        return notes | exactness(self)

    def init_state(self, batch_size: int = 1) -> ModelState:
        """Return an initial state for ``batch_size`` streams."""
        frontend = None if self.frontend is None else self.frontend.init_state(batch_size)
        return ModelState(frontend, self.network.init_state(batch_size))

    @torch.inference_mode()
    def step(self, items: Sequence[Data], state: ModelState) -> StepResult:
        """Take one item per stream, all of the same type, return the newest output.

        Feature rows go straight to the network, frames and skeletons through the frontend; a
        skeleton frontend gets the persons that a pose estimator finds in frames. The probabilities
        are the softmax over all logits at the card's temperature, or the sigmoid of each where
        labels are independent; where no person is present, the background has probability 1.
        Raises ValueError for items of several types.
        """
        began = time.perf_counter()
        if len({type(item) for item in items}) != 1:
            raise ValueError("all items of a step must be of one type")
        rows = [item.values for item in items if isinstance(item, FeatureRow)]
        skeletons = self._skeletons(items, state)
        held_macs: int | None = None
        if rows:
            tokens = torch.from_numpy(stacked(rows)).to(self.device, self.dtype)
        elif state.looks is not None and self.info.holds:
            frame = torch.from_numpy(stacked([self._prepare(items[0])])).to(self.device)
            ask = state.looks.may
            may = ask is None or ask(self.info.card.name, 1.0, 0.0)
            tokens, held_macs = self.frontend.forward_held(frame, state.frontend, may=may)
        else:
            tokens = self.see(skeletons or items, state)
        if self.device.type != "cpu":
            synchronize(self.device)
        frontend_s = 0.0 if rows else time.perf_counter() - began
        skip = bool(rows) and self.frontend is not None  # feature rows bypass it
        spectra = tuple(self._spectra(state, 1)[:, 0]) if isinstance(items[0], AudioBlock) else None
        result = self._network_result(tokens, state, frontend_s, skeletons, spectra, skip=skip)
        if held_macs is None:
            return result
        name = self.info.card.name
        ran = {} if held_macs == 0 else {f"{name} frontend": "budget"}
        return replace(result, macs=held_macs + self.network_macs, ran=(ran,))

    @torch.inference_mode()
    def steps(self, items: Sequence[Data], state: ModelState) -> list[StepResult]:
        """Take T items of one stream, return the same results as T calls of ``step``.

        Audio blocks and frames are computed in chunks, other items one by one.
        """
        kinds = {type(item) for item in items}
        if len(items) > 1 and self.info.chunk > 1 and kinds in ({VideoFrame}, {AudioBlock}):
            return self._chunk(items, state)
        return [self.step([item], state) for item in items]

    @property
    def may_skip(self) -> bool:
        """Whether there is ``skip``."""
        return hasattr(self.network, "skip")

    @torch.inference_mode()
    def skip(self, items: Sequence[AudioBlock], state: ModelState) -> None:
        """Take audio blocks of one stream without a result; the next result is as if it had one.

        It takes the time of the frontend. For networks that compute each window on its own.
        """
        prepared = torch.from_numpy(np.stack([self._prepare(item) for item in items])[None])
        tokens = self.frontend.forward_steps(prepared.to(self.device, self.dtype), state.frontend)
        self.network.skip(tokens.to(self.device, self.dtype), state.network)

    def _chunk(self, items: Sequence[Data], state: ModelState) -> list[StepResult]:
        """Take several audio blocks or frames of one stream at once."""
        began, sound = time.perf_counter(), isinstance(items[0], AudioBlock)
        prepared = torch.from_numpy(np.stack([self._prepare(item) for item in items])[None])
        prepared = prepared.to(self.device, self.dtype if sound else prepared.dtype)
        tokens = self.frontend.forward_steps(prepared, state.frontend).to(self.device, self.dtype)
        if self.device.type != "cpu":
            synchronize(self.device)
        encoded = time.perf_counter()
        in_chunks = self.info.stride == 1 and hasattr(self.network, "forward_steps")
        if not sound and (not in_chunks or self.device.type == "cuda"):  # there, steps are graphs
            share_s = (encoded - began) / len(items)
            return [self._network_result(t, state, share_s) for t in tokens.unbind(1)]
        parts = (tokens,) if sound else tokens.split(_TOKENS, 1)
        outs = [self.network.forward_steps(part, state.network) for part in parts]
        results = self._results(torch.cat([o.logits[0] for o in outs]), state, (began, encoded))
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

        ``times``: when the frontend began and ended. ``counts``: tokens of each item; default: 1.
        """
        counts = counts or [1] * len(logits)
        probabilities, familiarity = (
            self.scores.probabilities(logits),
            self.scores.familiarity(logits),
        )
        overflowed = rows_with_nan(probabilities)
        began, encoded = times
        frontend_s = (encoded - began) / len(counts)
        network_s = (time.perf_counter() - encoded) / len(counts)
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

    def _network_result(
        self,
        tokens: Tensor,
        state: ModelState,
        frontend_s: float,
        skeletons: tuple[SkeletonFrame, ...] | None = None,
        spectra: tuple[npt.NDArray[np.float32], ...] | None = None,
        *,
        skip: bool = False,
    ) -> StepResult:
        """Step the network with one token per stream, [B, ...].

        ``skip``: the tokens are feature rows, without the frontend's cost.
        """
        began, count = time.perf_counter(), len(tokens)
        out = self._network_step(tokens, state)
        future = None if out is None else out.anticipation
        probabilities = None if out is None else self.scores.probabilities(out.logits)
        familiarity = None if out is None else self.scores.familiarity(out.logits)
        if probabilities is not None and skeletons is not None:
            self._set_background(probabilities, tokens)
        overflowed = () if probabilities is None else rows_with_nan(probabilities)
        if overflowed:
            state.reset(overflowed)
        # The temperature was fitted for the present; anticipation has another classifier.
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

    def _set_background(self, probabilities: npt.NDArray[np.float32], tokens: Tensor) -> None:
        """Set the background to 1 in streams without a person, whose tokens are zeros."""
        card = self.info.card
        if card.background:
            present = tokens.flatten(1).any(1).tolist()
            if not all(present):
                probabilities[np.logical_not(present)] = np.equal(card.labels, card.background)

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

    def _skeletons(
        self, items: Sequence[Data], state: ModelState
    ) -> tuple[SkeletonFrame, ...] | None:
        """Return the skeletons among the items, or those detected in frames."""
        if source_kind(self.frontend) != "skeleton":
            return None
        frames = [item for item in items if isinstance(item, VideoFrame)]
        if not frames:
            return tuple(item for item in items if isinstance(item, SkeletonFrame)) or None
        if state.poses is None:
            front = self.frontend
            state.poses = PoseTrackers(len(items), front.persons, front.places, self._pose)
        return tuple(state.poses.find(frames))

    def person_finder(self, most: int, *, detects: bool = True) -> PoseTracker:
        """Return a finder of up to ``most`` persons in the frames of one stream.

        ``detects``: as for ``PoseTracker``.
        """
        return PoseTracker(most, self.frontend.places, self._pose, detects=detects)

    def find_joints_with(self, weights: str) -> None:
        """Find the joints of persons in frames with these weights, given by name, from now on.

        Raises ModelError if they are missing, or find no joints in space for a model that takes
        these.
        """
        if isinstance(pose_network(weights), MoveNet):
            name = self.info.card.name
            if self.frontend.places is None:
                what = f"{name} takes joints in metres, and {weights} finds places in the picture"
                raise ModelError(what, hint="use -m costgcn-2d, or --pose lite")
            self.frontend.check(COCO_17, self.frontend.axes, name)
        self._pose = weights

    def see(self, items: Sequence[Data], state: ModelState) -> Tensor:
        """Return the tokens [B, ...] of one item per stream, which are not feature rows.

        Raises SourceError if the model has no frontend.
        """
        if self.frontend is None:
            raise SourceError(f"{self.info.card.name} takes precomputed features")
        prepared = torch.from_numpy(stacked([self._prepare(item) for item in items]))
        if self.frontend.takes == "video":
            prepared = prepared.to(self.device)
        elif self.frontend.takes == "audio":
            prepared = prepared.to(self.device, self.dtype)
        if self.info.beside is None:
            tokens: Tensor = self.frontend.forward_step(prepared, state.frontend)
        else:
            sound = [self._audio_blocks(item) for item in items]
            tokens = self.frontend.forward_step(prepared, state.frontend, sound)
        return tokens.to(self.device, self.dtype)

    def _audio_blocks(self, item: Data) -> Tensor:
        """Return the audio blocks of a frame, [n, block]."""
        blocks = stack_audio_blocks(item) if isinstance(item, VideoFrame) else torch.zeros(0)
        return blocks.to(self.device, self.dtype)

    def _prepare(self, item: Data) -> npt.NDArray[Any]:
        """Return the array of an item that the frontend takes."""
        if isinstance(item, AudioBlock):
            return item.samples
        if self.info.frames > 1 and isinstance(item, VideoFrame):
            taken: Any = (*item.earlier, item)
        else:
            taken = item.rgb if isinstance(item, VideoFrame) else item
        prepared: npt.NDArray[Any] = self.frontend.prepare(taken)
        return prepared

    def _place(self, module: Any) -> Any:
        return module.to(self.device, self.dtype).eval().requires_grad_(False)

    @cached_property
    def _frontend_macs(self) -> int:
        return 0 if self.frontend is None else int(self.frontend.count_macs())
