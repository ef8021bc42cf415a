"""Training of a skeleton network on streams of all sets, and on the outputs of a teacher."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.errors import UsageError
from costream.models.build import build
from costream.models.skeleton.network import SkeletonNet
from costream.training.checkpoint import SavedState, Stateful
from costream.training.optim import Average, Optimizer, Schedule, fastest_autocast
from costream.training.skeleton.skeleton_training import loss
from costream.training.training_loop import TrainingRun
from costream.weights_io.file import read_weights
from weights.recipes.skeleton.clips import clip_logits
from weights.recipes.skeleton.streams import StreamBatch
from weights.recipes.skeleton.tokens import body_tokens

log = logging.getLogger("costream")
REPORT_S = 10.0  # between two lines of progress
ORDINARY = 5  # updates on a GPU before one is recorded
TEMPERATURE, TAUGHT = 2.0, 0.5  # of the teacher's outputs, and their weight relative to the labels


class Streams(Protocol):
    """Draws batches of streams; labels are int64 [B, T], or bool [B, T, K]: those that may be."""

    def draw(self, count: int, steps: int, generator: torch.Generator) -> StreamBatch: ...  # noqa: D102


Tokens = Callable[[StreamBatch, torch.Generator], Tensor]  # -> [B, T, 1, V, C]


class _Chance:
    """The generator of the streams' seeds, as a part of checkpoints."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state(self) -> SavedState:
        return {"streams": self._generator.get_state()}, None

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        self._generator.set_state(tensors["streams"])


class _Progress:
    """The mean loss and the speed of a training, logged every ten seconds."""

    def __init__(self, title: str, schedule: Schedule) -> None:
        self._title, self._schedule = title, schedule
        self._since_s, self._step = time.monotonic(), 0
        self._costs: list[Tensor] = []

    def add(self, step: int, cost: Tensor) -> None:
        """Take the cost of a gradient step, on any device."""
        self._step = step + 1
        self._costs.append(cost)
        if time.monotonic() - self._since_s > REPORT_S:
            self.report()

    def report(self) -> None:
        """Log the losses since the last report."""
        if not self._costs:
            return
        loss, count = float(torch.stack(self._costs).mean()), len(self._costs)
        rate = count * self._schedule.batch / (time.monotonic() - self._since_s)
        place = f"{self._title}: step {self._step} of {self._schedule.steps}"
        log.info("%s, %d updates, loss %.3f, %.0f streams/s", place, count, loss, rate)
        self._since_s, self._costs = time.monotonic(), []


class _Gradients:
    """Computes the cost of each batch, and its gradients, which the network's parameters then have.

    An update is hundreds of small kernels, which a GPU computes faster than Python starts them:
    there it is a CUDA graph, recorded after some ordinary updates. Batches have one shape.
    """

    def __init__(self, network: SkeletonNet, cost: Callable[..., Tensor]) -> None:
        self._network, self._cost = network, cost
        self._before = ORDINARY  # updates before the graph is recorded
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self._graph is None:
            self._network.zero_grad(set_to_none=True)
            if not inputs[0].is_cuda or self._before > 0:
                self._before -= 1
                return self._backward(inputs)
            self._inputs = [x.clone() for x in inputs]
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = self._backward(self._inputs)
        for own, x in zip(self._inputs, inputs, strict=True):
            own.copy_(x)
        self._graph.replay()
        return self._result.clone()

    def _backward(self, inputs: Sequence[Tensor]) -> Tensor:
        cost = self._cost(*inputs)
        cost.backward()  # type: ignore[no-untyped-call]
        return cost.detach()


def learn(
    network: SkeletonNet,
    streams: Streams,
    tokens: Tokens,
    schedule: Schedule,
    length: int,
    run: TrainingRun,
    teacher: SkeletonNet | None = None,
) -> None:
    """Train ``network`` on batches of streams of ``length`` steps; it gets the averaged weights.

    Every output is scored, the first ones of a motion with less weight. ``teacher``: a network on
    the same device that gets the same streams in space; its outputs are learnt too. Progress goes
    to the log.
    """
    chance, generator = (
        torch.Generator().manual_seed(run.seed),
        torch.Generator(network.fc.weight.device),
    )
    average, stride = Average(network), network.stride
    parts: dict[str, Stateful] = {"chance": _Chance(chance), "average": average}
    optimizer = Optimizer([network], schedule, run.title, run.checkpoint, parts)
    progress = _Progress(run.title, schedule)

    def cost_of(seen: Tensor, labels: Tensor, weights: Tensor, space: Tensor) -> Tensor:
        with fastest_autocast():
            logits = clip_logits(network, seen).float()
        if labels.dtype == torch.bool:
            return set_loss(logits, labels, weights, schedule.smoothing)
        cost = loss(logits, labels, weights, schedule.smoothing)
        if teacher is None:
            return cost
        with torch.no_grad(), fastest_autocast():
            taught = clip_logits(teacher, space).float()
        return cost + TAUGHT * taught_loss(logits, taught, labels, weights)

    gradients = _Gradients(network, cost_of)
    for step in optimizer:
        generator.manual_seed(int(torch.randint(2**62, (), generator=chance)))
        batch = streams.draw(schedule.batch, length, generator)
        seen = tokens(batch, generator)
        space = seen if teacher is None else body_tokens(batch.joints, batch.seen)
        labels, weights = batch.labels[:, ::stride], batch.weights[:, ::stride]
        cost = gradients(seen, labels, weights, space)
        optimizer.apply(cost)
        average.update(network)
        progress.add(step, cost)
    progress.report()
    if run.checkpoint is not None:
        run.checkpoint.write(schedule.steps, optimizer.parts)
    network.load_state_dict(average.weights)
    network.eval()


def set_loss(logits: Tensor, may: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """Return the loss of logits [B, T, K] where each of the labels ``may``, bool, may be true.

    The negative logarithm of the sum of their probabilities (Cour et al., "Learning from partial
    labels", JMLR 2011), and a share ``smoothing`` of the mean over all labels.
    """
    logs = logits.log_softmax(-1)
    one = -logs.masked_fill(~may, -1e4).logsumexp(-1)
    each = (1 - smoothing) * one - smoothing * logs.mean(-1)
    weights = weights * may.any(-1)
    return (each * weights).sum() / weights.sum().clamp(min=1e-6)


def taught_loss(logits: Tensor, taught: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return how far logits [B, T, K] are from a teacher's where there is an action.

    Divergence of the probabilities of the actions, without the background, which is label 0: Hinton
    et al., "Distilling the knowledge in a neural network" (2015).
    """
    one, two = (F.log_softmax(x[..., 1:] / TEMPERATURE, -1) for x in (logits, taught))
    each = F.kl_div(one, two, reduction="none", log_target=True).sum(-1) * TEMPERATURE**2
    weights = weights * (labels > 0)
    return (each * weights).sum() / weights.sum().clamp(min=1e-6)


def read_teacher(path: Path, labels: Sequence[str]) -> SkeletonNet:
    """Return the network of weights for space. UsageError if its labels are others."""
    stored = read_weights(path)
    if list(stored.card.labels) != list(labels):
        raise UsageError("the teacher knows other labels", where=path)
    return cast(SkeletonNet, build(stored.card, stored.tensors)[0].eval())


def start_from(network: SkeletonNet, labels: list[str], path: Path) -> None:
    """Copy the weights of a file for equal names, and the classifier rows of equal labels.

    A network for pictures gets those of one for space without depth, one for several persons
    treats each as the first. In a wider network further channels get what the first ones have, and
    give these nothing: it begins with the same output.
    """
    stored = read_weights(path)
    state = network.state_dict()
    tensors = {name.removeprefix("network."): tensor for name, tensor in stored.tensors.items()}
    if network.channels < int(stored.card.arguments["channels"]):
        tensors |= _without_depth(tensors, network.joints)
    others = network.persons // int(stored.card.arguments["persons"])
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensors[f"data_bn.{name}"] = tensors[f"data_bn.{name}"].repeat(others)
    labelled = ("fc.weight", "fc.bias", "reading.weight")
    found = {
        k: _widened(v, state[k]) for k, v in tensors.items() if k in state and k not in labelled
    }
    known = {label: k for k, label in enumerate(stored.card.labels)}
    both = [(k, known[label]) for k, label in enumerate(labels) if label in known]
    for name in labelled:
        if name in tensors:
            found[name] = state[name].clone()
            for new, old in both:
                found[name][new] = _widened(tensors[name][old][None], state[name][new][None])[0]
    network.load_state_dict(state | found)


def _widened(tensor: Tensor, wider: Tensor) -> Tensor:
    """Return ``wider`` with ``tensor`` in its first rows and columns, zeros in other columns.

    ``wider`` itself if the tensor does not fit.
    """
    if tensor.dim() != wider.dim() or any(
        a > b for a, b in zip(tensor.shape, wider.shape, strict=True)
    ):
        return wider
    out = wider.clone()
    if tensor.dim() > 1:
        out[: len(tensor), tensor.shape[1] :] = 0
    out[tuple(slice(size) for size in tensor.shape)] = tensor
    return out


def _without_depth(tensors: dict[str, Tensor], joints: int) -> dict[str, Tensor]:
    """Return the first layers for joint, bone and motion in x and y; in pictures x is turned."""
    kept = [0, 1, 3, 4, 6, 7]
    out = {}
    for name in ("weight", "bias", "running_mean", "running_var"):
        rows = tensors[f"data_bn.{name}"].view(joints, -1)[:, kept].clone()
        if name in ("weight", "running_mean"):
            rows[:, 0::2] *= -1
        out[f"data_bn.{name}"] = rows.flatten()
    for name, tensor in tensors.items():
        if name.startswith("layers.layer1.gcn.") and name.endswith("weight") and tensor.ndim == 4:
            out[name] = tensor[:, kept]
    return out
