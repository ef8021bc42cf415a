"""Training of token classifiers on custom streams, with early stopping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.labels.recording import UNSCORED
from costream.models.oad.cooadtr import OadOutput, TokenClassifier
from costream.models.oad.miniroad import MiniRoad
from costream.models.oad.oadtr import OadTR
from costream.models.oad.testra import TeSTra
from costream.nn.encoder import Encoder
from costream.nn.nystrom.encoder import NystromEncoder
from costream.training.early_stopping import LOSS
from costream.training.optim import Schedule, device_of
from costream.training.stream_calibration import StreamPredictions
from costream.training.tokens.landmarks import LandmarkSchedule, StreamSource
from costream.training.tokens.teacher import Teacher
from costream.training.tokens.token_streams import TokenStream
from costream.training.training_loop import Stopping, TrainingLoop, TrainingRun

STREAM_STEPS = (16, 128)  # minimum and maximum, so that windows are not always full
WINDOWS = 8  # supervised steps of a stream if each needs a separate window
VALIDATE_EVERY = 20  # steps between validations
PATIENCE = 6  # validations without improvement
NOISE = 1.0  # relative to the standard deviation of tokens
COMING = 0.5  # loss weight of anticipated labels (OadTR, Wang et al., ICCV 2021)
_AT_ONCE = 512  # steps of a stream in one call of the network


def classifies_tokens(network: nn.Module) -> bool:
    """Return whether a network classifies each token of a stream, as training here requires."""
    return isinstance(network, (TokenClassifier, OadTR, MiniRoad, TeSTra))


def slides(network: nn.Module) -> bool:
    """Return whether each step has a separate window in training, which makes steps expensive."""
    if isinstance(network, OadTR | TeSTra):
        return True
    encoder = getattr(network, "encoder", None)
    return isinstance(encoder, (Encoder, NystromEncoder)) and encoder.depth > 1


def fit_streams(
    network: nn.Module,
    supply: StreamSource,
    schedule: Schedule,
    run: TrainingRun,
    validation: Sequence[TokenStream] = (),
    spread: Tensor | None = None,
    every: int = VALIDATE_EVERY,
    initial: bool = False,
) -> list[dict[str, float]]:
    """Train the network, keep the weights with the lowest validation loss, return the history.

    Without streams in ``validation`` the last weights are kept. Fixed landmarks are fitted
    during training, see ``LandmarkSchedule``, and no weights count as best before that.
    ``spread`` [D]: standard deviation of the tokens, which scales added noise: few examples are
    overfitted without it. ``every``: steps between validations. ``initial``: whether the weights
    before the first step may be kept. For the history see ``EarlyStopping``.
    """
    rng, device = np.random.default_rng(run.seed), device_of(network)
    supervised = WINDOWS if slides(network) else None
    scale = None if spread is None else NOISE * spread.to(device)

    def validate() -> dict[str, float]:
        return figures(network, validation) if validation else {}

    def loss() -> Tensor:
        length = int(rng.integers(STREAM_STEPS[0], STREAM_STEPS[1] + 1))
        tokens, labels = (x.to(device) for x in supply.batch(schedule.batch, length, rng))
        if scale is not None:
            tokens = tokens + scale * torch.randn_like(tokens)
        return stream_loss(network, tokens, labels, schedule.smoothing, supervised, rng)

    stopping = Stopping(validate, every, PATIENCE, initial)
    phases = [LandmarkSchedule(network, schedule, supply, rng), *run.phases]
    return TrainingLoop(network, loss, schedule, rng, run, stopping, phases).fit()


def stream_loss(
    network: nn.Module,
    tokens: Tensor,
    labels: Tensor,
    smoothing: float,
    counted: int | None,
    rng: np.random.Generator,
    lesson: tuple[Teacher, Tensor] | None = None,
) -> Tensor:
    """Return the loss of a network on streams of tokens [B, T, D] with labels [B, T].

    ``counted``: number of final steps that are supervised; None: all. ``lesson``: a teacher, and
    its tokens for the same streams.
    """
    # Recycled positional embeddings start at a random row.
    offset = torch.from_numpy(rng.integers(0, 1 << 16, size=len(tokens)))
    out: OadOutput = network(tokens, offset, counted)
    steps = out.logits.shape[1]
    total = cross_entropy(out.logits, labels[:, -steps:], smoothing)
    if out.anticipation is not None:
        ahead = coming(labels, steps, out.anticipation.shape[2])
        total = total + COMING * cross_entropy(out.anticipation, ahead, smoothing)
    if lesson is None:
        return total
    teacher, teacher_tokens = lesson
    return teacher.loss(network, (tokens, out.logits), teacher_tokens, (offset, counted), total)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross entropy of logits [..., K] and labels [...], ignoring UNSCORED ones.

    Zero if all are UNSCORED.
    """
    each = F.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=UNSCORED,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return each / (labels != UNSCORED).sum().clamp(min=1)


def coming(labels: Tensor, last: int, count: int) -> Tensor:
    """Return the labels [B, last, A] of the A steps after each of the ``last`` steps of [B, T].

    UNSCORED beyond the end of the stream.
    """
    steps = labels.shape[1]
    padded = F.pad(labels, (0, count), value=UNSCORED)
    times = torch.arange(steps - last, steps)[:, None] + torch.arange(1, count + 1)
    return padded[:, times]


@torch.no_grad()
def standardise(network: nn.Module, tokens: Tensor) -> None:
    """Set a new network's first layers to standardise tokens [N, D] to mean 0 and std 1."""
    tokens = tokens.to(next(network.parameters()).device)
    mean, spread = tokens.mean(0), tokens.std(0)
    for layer in (network.input_projection, getattr(network, "skip", None)):
        if isinstance(layer, nn.Linear):
            layer.weight.div_(spread.clamp(min=0.01 * float(spread.max())))
            layer.bias.sub_(layer.weight @ mean)


@torch.inference_mode()
def predict(network: nn.Module, tokens: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Return the probabilities [T, K] of each stream of tokens [T, D]."""
    return [_probabilities(network, x) for x in tokens]


def predict_streams(network: nn.Module, streams: Sequence[TokenStream]) -> list[StreamPredictions]:
    """Return the network's predictions for streams, with the ground truth."""
    rows = predict(network, [stream.tokens for stream in streams])
    return [StreamPredictions(p, stream.labels) for p, stream in zip(rows, streams, strict=True)]


def figures(network: nn.Module, validation: Sequence[TokenStream]) -> dict[str, float]:
    """Return the mean cross entropy and the accuracy over the steps of streams."""
    network.eval()
    probabilities = np.concatenate(predict(network, [stream.tokens for stream in validation]))
    network.train()
    labels = np.concatenate([stream.labels for stream in validation])
    probabilities, labels = probabilities[labels != UNSCORED], labels[labels != UNSCORED]
    if not len(labels):
        return {}
    surprise = -np.log(probabilities[np.arange(len(probabilities)), labels] + 1e-9)
    right = probabilities.argmax(1) == labels
    return {LOSS: float(surprise.mean()), "validation_accuracy": float(right.mean())}


def _probabilities(network: nn.Module, tokens: Tensor) -> npt.NDArray[Any]:
    state = cast(Any, network).init_state(1)
    parts = torch.split(tokens[None].to(device_of(network)), _AT_ONCE, 1)
    rows = [cast(Any, network).forward_steps(x, state).logits[0].softmax(-1) for x in parts]
    return torch.cat(rows).cpu().numpy()
