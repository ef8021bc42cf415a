"""Trainer of labels for lines of text: the vectors of the words and the network together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.core.records import TextLine
from costream.labels.examples import Example
from costream.labels.recording import BACKGROUNDS, UNSCORED
from costream.labels.text_lines import read_lines
from costream.models.oad.cooadtr import OadOutput, TokenClassifier
from costream.training.base import (
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
    in_classes,
    refuse_fine_tuning,
    untrainable_error,
    warn_of_unchecked,
)
from costream.training.baselines import CENTROID, logistic_regression, nearest_centroid
from costream.training.optim import Schedule
from costream.training.sequence_trainer import SequenceTrainer, TrainResult
from costream.training.stream_calibration import StreamPredictions
from costream.training.tokens.token_streams import STAYING, TokenStream, TokenStreams
from costream.training.tokens.token_training import VALIDATE_EVERY, fit_streams, predict
from costream.training.training_loop import TrainingRun
from costream.weights_io.card import Card

log = logging.getLogger("costream")

OTHER = "other"  # the background: lines without words
WORDLESS = 64  # such lines that are made up
STREAMS = 16  # in a batch
RATE = 5e-3  # learning rate
STEPS = 300  # of a training without lines
STEPS_PER_LINE = 2
MAX_STEPS = 3000
ROUNDS = 50  # validations of a long one
CHECKS = 4  # streams to validate with
LINES = 64  # in each of them
COMPARED = 4000  # lines that baselines learn from, and that are scored
PENALTY = 1e-4  # L2 penalty, of the linear baseline


class WordReader(nn.Module):
    """Frontend and network as one, from rows of the frontend's table [B, T, N] to logits."""

    def __init__(self, frontend: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.frontend, self.network = frontend, network
        self.init_state = network.init_state

    def forward(self, x: Tensor, offset: int | Tensor = 0, last: int | None = None) -> OadOutput:
        """Return the output after each token; see ``TokenClassifier``."""
        out: OadOutput = self.network(self.frontend(x.long()), offset, last)
        return out

    def forward_steps(self, x: Tensor, state: Any) -> OadOutput:
        """Return the same, continuing from a state."""
        network: Any = self.network
        out: OadOutput = network.forward_steps(self.frontend(x.long()), state)
        return out


class TextTrainer(SequenceTrainer):
    """Trainer of labels of lines."""

    metric = ("top1", "top-1", "lines")
    command = "read"
    backgrounds = (OTHER, *BACKGROUNDS)

    def remedy(self, card: Card, settings: TrainSettings) -> str:
        """Return what to do for a better result."""
        return "label more lines"

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Raise UsageError for --fps, --labels and --fine-tune: all of a network learns."""
        refuse_fine_tuning(card, settings, "all of the network is trained")
        for name, value in (("--fps", settings.rate_hz), ("--labels", settings.labels)):
            if value is not None:
                raise UsageError("is not for text", where=name, hint="give --data TABLE.csv")
        return super().check(card, settings)

    def read(self, card: Card, settings: TrainSettings) -> TrainingData:
        """Return the lines. UsageError for unusable data or fewer than two labels."""
        lines = read_lines(settings.data, settings.group)
        labels = self.labels({line.label for line in lines}, card)
        lines = in_classes(lines, labels)
        found = {line.label for line in lines}
        if len(found) < 2:
            what = f"only one label ({found.pop()})" if found else "no lines with a label"
            raise UsageError(what, where=settings.data, hint="at least two labels are needed")
        training, held_out = split_lines(lines, settings.validation, settings.seed)
        warn_of_unchecked(found - {line.label for line in held_out}, settings)
        log.info("%d lines to train on, %d to validate with", len(training), len(held_out))
        rows = [[line.source, line.label, line.group] for line in lines]
        return TrainingData(labels, training, held_out, rows)

    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> TrainResult:
        """Train on streams of parts of lines, every word with the label of its line.

        Lines without words are added as background. ModelError for a network that does not
        classify tokens.
        """
        network, frontend, card, _ = setup
        settings = workspace.settings
        if not isinstance(network, TokenClassifier):
            raise untrainable_error(card)
        rng = np.random.default_rng(settings.seed)
        wordless_lines = [
            Example(text, card.labels[0], 0.0, None, "", "") for text in wordless(WORDLESS, rng)
        ]
        training = [tokens_of(frontend, line, card) for line in (*data.training, *wordless_lines)]
        checks = [tokens_of(frontend, line, card) for line in data.validation]
        validation = [stream_of(checks, LINES, rng) for _ in range(CHECKS if checks else 0)]
        enough = min(MAX_STEPS, STEPS + STEPS_PER_LINE * len(training)) * (
            2 if settings.scratch else 1
        )
        schedule = Schedule(settings.steps or enough, STREAMS, RATE, 0.05, 0.05)
        reader = WordReader(frontend, network)
        every = max(VALIDATE_EVERY, schedule.steps // ROUNDS)
        history = fit_streams(
            reader,
            TokenStreams([[line] for line in training]),
            schedule,
            TrainingRun(settings.seed, workspace.checkpoint),
            validation,
            every=every,
        )
        if not checks:
            return TrainResult(history=history)
        # As many as take part in the data returned: all of the validation.
        rows = [row[-1:] for row in predict(reader, [line.tokens for line in checks])]
        streams = []
        for stream, row in zip(
            validation, predict(reader, [s.tokens for s in validation]), strict=True
        ):
            ends = stream.labels != UNSCORED
            streams.append(StreamPredictions(row[ends], stream.labels[ends]))
        return TrainResult(rows, streams, _baselines(training, checks, card, rng), history)


def split_lines(
    lines: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Return lines to train on and to validate with, with no group on both sides.

    A group is held out by a hash of its name. Lines of labels that would have no training lines are
    not held out.
    """
    sides: tuple[list[Example], list[Example]] = ([], [])
    for line in lines:
        drawn = crc32(f"{seed} {line.group}".encode()) / 2**32
        sides[drawn < share].append(line)
    kept = {line.label for line in sides[0]}
    return (
        [*sides[0], *(line for line in sides[1] if line.label not in kept)],
        [line for line in sides[1] if line.label in kept],
    )


def wordless(count: int, rng: np.random.Generator) -> list[str]:
    """Return lines of numbers, marks and digits of hashes."""
    forms = (
        lambda: " ".join(str(rng.integers(10 ** rng.integers(1, 8))) for _ in range(4)),
        lambda: "".join(rng.choice(list("-=*#_.:|/+~<>")) for _ in range(1)) * 20,
        lambda: f"{rng.integers(2**62):x}",
        lambda: " ".join(rng.choice(["!", "?", "...", "->", "()", "%", "$", ":)", "&"], 3)),
        lambda: f"{rng.integers(24):02d}:{rng.integers(60):02d}:{rng.integers(60):02d}",
    )
    return [str(forms[k % len(forms)]()) for k in range(count)]


def tokens_of(frontend: Any, line: Example, card: Card) -> TokenStream:
    """Return the tokens of a line, as rows of the frontend's table, each with its label."""
    rows = frontend.prepare(TextLine(0, 0.0, line.source))
    small = torch.from_numpy(rows.astype(np.int16 if frontend.buckets < 2**15 else np.int32))
    return TokenStream(small, np.full(len(rows), card.labels.index(line.label)))


def stream_of(lines: Sequence[TokenStream], count: int, rng: np.random.Generator) -> TokenStream:
    """Return complete lines one after the other, with a label at the end of each.

    As in ``TokenStreams``, the next line often has the same label.
    """
    by_label: dict[int, list[TokenStream]] = {}
    for line in lines:
        by_label.setdefault(int(line.labels[0]), []).append(line)
    drawn: list[TokenStream] = []
    while len(drawn) < count:
        staying = bool(drawn) and rng.random() < STAYING
        label = int(drawn[-1].labels[0]) if staying else int(rng.choice(sorted(by_label)))
        drawn.append(by_label[label][int(rng.integers(len(by_label[label])))])
    labels = np.concatenate([line.labels for line in drawn])
    ends = np.cumsum([len(line.labels) for line in drawn]) - 1
    marked = np.full_like(labels, UNSCORED)
    marked[ends] = labels[ends]
    return TokenStream(torch.cat([line.tokens for line in drawn]), marked)


def _baselines(
    training: Sequence[TokenStream],
    checks: Sequence[TokenStream],
    card: Card,
    rng: np.random.Generator,
) -> dict[str, list[npt.NDArray[Any]]]:
    """Return the probabilities of linear models of how often each n-gram occurs."""
    chosen = rng.permutation(len(training))[:COMPARED]
    width = 1 + int(card.frontend_arguments.get("buckets", 0) or _most(training, checks))
    rows = np.stack([_counts(training[k], width) for k in chosen])
    numbers = [int(training[k].labels[0]) for k in chosen]
    check_rows = np.stack([_counts(line, width) for line in checks])
    target, count = torch.tensor(numbers), len(card.labels)
    weight, bias = logistic_regression(
        torch.from_numpy(rows), count, lambda y: F.cross_entropy(y, target), PENALTY
    )
    linear = F.linear(torch.from_numpy(check_rows), weight, bias).softmax(-1).numpy()
    return {
        CENTROID: nearest_centroid(rows, numbers, check_rows, count),
        "linear on n-grams": [row[None] for row in linear],
    }


def _most(*sides: Sequence[TokenStream]) -> int:
    return max(int(line.tokens.max()) for side in sides for line in side)


def _counts(line: TokenStream, width: int) -> npt.NDArray[np.float32]:
    """Return the n-grams of a line, [width], of length 1."""
    counts = np.bincount(line.tokens.flatten().numpy(), minlength=width).astype(np.float32)
    counts[0] = 0.0  # padding
    return counts / float(np.linalg.norm(counts) or 1.0)
