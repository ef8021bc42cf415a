"""Token-gated models for action recognition in video (Eventful ViViT)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.records import Data
from costream.models.base import StepResult
from costream.models.eventful.vivit.network import ViViT, ViViTState
from costream.models.gated import GatedModelBase, TokenState, check_single_stream
from costream.models.images import Crops, temporal_views
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from costream.nn.state import zeros
from costream.weights_io.card import Card

VIEWS = (4, 3)  # views of a video in time and in space, in the paper


@dataclass
class ActionState(TokenState):
    """State of a stream: of the network, and the frames of an incomplete tubelet."""

    network: ViViTState
    pictures: Tensor  # [B, t - 1, 3, S, S]
    count: Tensor  # int64 [B], frames so far


class ActionModel(GatedModelBase[ViViT, Crops, ActionState]):
    """Network and frontend of one weight file, ready to step; implements ``GatedModel``.

    A step takes a frame; one that completes a tubelet gives an output, the others cost nothing.
    """

    frontend_type = Crops

    def __init__(self, card: Card, network: ViViT, frontend: Crops | None, **settings: Any) -> None:
        """Take over the modules, see ``GatedModelBase``."""
        super().__init__(card, network, frontend, **settings)
        size, patch = self.frontend.size, network.patch
        if network.size != (size // patch,) * 2 or size % patch:
            raise ModelError(f"{card.name}: crops of {size} pixels for {network.size} tokens")

    @staticmethod
    def count_classes(network: ViViT) -> int:
        """Return the number of classes of a network."""
        return network.num_classes

    def init_state(self, batch_size: int = 1) -> ActionState:
        """Return an initial state. ValueError for more than one stream: each has its own state."""
        check_single_stream(batch_size)
        size, like = self.frontend.size, self.network.classifier.weight
        pictures = zeros(1, self.network.tubelet - 1, 3, size, size, like=like)
        return ActionState(self.network.init_state(1), pictures, zeros(1))

    def token_count(self, state: ActionState) -> int | None:
        """Return the number of tokens of a tubelet of this stream; None before its first."""
        return self.network.tokens if int(state.count) >= self.network.stride else None

    def step_macs(self, state: ActionState, count: int) -> int:
        """Return the approximate cost of a step with an output and ``count`` tokens."""
        return self.network.count_macs(min(count, self.network.tokens))

    @torch.inference_mode()
    def step(self, items: Sequence[Data], state: ActionState) -> StepResult:
        """Take the next frame of the stream, return predictions if it completes a tubelet."""
        began = time.perf_counter()
        picture = self.prepare(items)[1][0]
        seen = time.perf_counter()
        network, spent = self.network, Operations()
        place = int(state.count) % network.stride
        state.count += 1
        if place < network.stride - 1:
            state.pictures[:, place] = picture
            warmup = network.warmup(state.network)
            return StepResult(None, None, warmup, 0, 0, seen - began, time.perf_counter() - seen)
        gates = state.policy(network.tokens, every=self.all_tokens)
        tubelet = torch.cat([state.pictures, picture[:, None]], 1)
        logits = network.forward_step(tubelet, state.network, gates, spent)
        return StepResult(
            self._probabilities(logits),
            None,
            network.warmup(state.network),
            macs=spent.total,
            dense_macs=network.dense_macs,
            frontend_s=seen - began,
            network_s=time.perf_counter() - seen,
            tokens=(int(gates.updated.sum()),),
            policy=None if gates.updated.all() else state.policy_name(None),
        )

    @torch.inference_mode()
    def classify(
        self,
        video: npt.NDArray[np.uint8],
        tokens: int | None = None,
        *,
        stride: int = 1,
        views: tuple[int, int] = VIEWS,
        operations: Operations | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the probabilities [K] of a video, uint8 [T, h, w, 3], as in the paper.

        ``tokens``: computed per tubelet after the first of each view; None: all.
        ``stride``: frames from one frame of a view to the next. ``views``: in time and in
        space; their logits are averaged. Each view is a stream. ``operations``: counts the
        operations.
        """
        network, logits = self.network, []
        policy = TopTokens(network.tokens if tokens is None else tokens)
        length = network.tubelet * network.window
        for chosen in temporal_views(len(video), length, stride, views[0]):
            pictures = torch.from_numpy(video[chosen].transpose(0, 3, 1, 2))
            clips = self.frontend(pictures.to(self.device), views[1])
            logits.append(network.forward_clip(clips, policy, operations))
        probabilities: npt.NDArray[np.float32] = self._probabilities(
            torch.cat(logits).mean(0, keepdim=True)
        )[0]
        return probabilities

    def _probabilities(self, logits: Tensor) -> npt.NDArray[np.float32]:
        scaled = logits.float() / self.info.card.temperature
        probabilities: npt.NDArray[np.float32] = scaled.softmax(-1).cpu().numpy()
        return probabilities
