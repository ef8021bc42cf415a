"""Which features and which linear head suit labelled clips: nested cross-validation by groups.

All options are fitted to some groups and judged on the others. The choice itself is judged on
groups that had no part in it (Varma and Simon, "Bias in error estimation when using
cross-validation for model selection", 2006). Features that seldom suit, and those of several
frontends, are only chosen if they are better by more than a standard error (Breiman et al.,
"Classification and regression trees", 1984), heads if they are better by more than 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.oad.linear import LinearClassifier
from costream.training.stream_calibration import StreamPredictions
from costream.training.tokens.linear_head import (
    FOLDS,
    KINDS,
    UNSEEN,
    Clip,
    HeadFitter,
    HeadKind,
    HeldOut,
    folds,
    surprise,
)

_LEAST = 1e-6  # least probability in a logarithm
_ALIKE = 0.995  # cosine of two clips' features, less the mean of all, from which they are copies
_INNER_FOLDS = 3
_ERRORS = 1.5  # standard errors by which one of many heads is surely better
_RANKED = 1.0  # the same of features of a higher rank
_FEWEST = 12  # clips from which on cosines of centred features mean something
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClipFeatures:
    """The features of all clips by one frontend, or by several whose names are joined by "+".

    ``parts``: widths of the frontends' features. ``runs``: whether one weight file can have them.
    ``extra``: clips of the background that heads are fitted to as well. ``rank``: of features that
    are about as good, those with the least rank are chosen. ``first``: the head that suits such
    features in general.
    """

    name: str
    clips: Sequence[Clip]
    parts: tuple[int, ...]
    runs: bool = True
    extra: Sequence[Clip] = ()
    rank: int = 0
    first: HeadKind = KINDS[0]

    def some(self, chosen: npt.NDArray[np.int64]) -> ClipFeatures:
        """Return the features of some of the clips."""
        return replace(self, clips=[self.clips[k] for k in chosen])

    def fitter(self, classes: int, seed: int) -> HeadFitter:
        """Return the fitter of heads to these clips."""
        return HeadFitter([*self.clips, *self.extra], classes, seed, self.parts)


def joined(
    name: str, several: Sequence[ClipFeatures], *, scales: Sequence[float] = (), runs: bool = True
) -> ClipFeatures:
    """Return the features of several frontends, in the steps of the first.

    ``scales``: what those of each are multiplied by, if given.
    """
    clips, scales = [], scales or [1.0] * len(several)
    for alike in zip(*(features.clips for features in several), strict=True):
        count = len(alike[0].steps)
        columns, mirrored = [], []
        for clip, scale in zip(alike, scales, strict=True):
            places = np.arange(count) * len(clip.steps) // count
            columns.append(scale * clip.tokens[torch.from_numpy(clip.steps[places])])
            mirrored.append([scale * twin for twin in clip.twins])
        twins = [torch.cat(rows, 1) for rows in zip(*mirrored, strict=False)]
        made = {"tokens": torch.cat(columns, 1), "steps": np.arange(count), "twins": twins}
        clips.append(replace(alike[0], **made))
    parts = tuple(width for features in several for width in features.parts)
    rank = max(features.rank for features in several) + len(several) - 1
    return ClipFeatures(name, clips, parts, runs, rank=rank)


@dataclass(frozen=True)
class Choice:
    """Features and kind of head, and the cross entropy by which they were chosen."""

    features: ClipFeatures
    kind: HeadKind
    error: float
    answers: Numbers  # [N, K], by heads fitted to other groups, at the best temperature

    def head(self, classes: int, seed: int) -> LinearClassifier:
        """Return the head, fitted to all clips."""
        return self.features.fitter(classes, seed).head(self.kind)

    def right(self) -> float:
        """Return the share of clips that are answered rightly, all classes with one weight."""
        labels = np.array([clip.label for clip in self.features.clips])
        right = self.answers.argmax(1) == labels
        return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def options(
    every: Sequence[ClipFeatures], classes: int, seed: int, count: int = FOLDS
) -> list[Choice]:
    """Return the best kind of head for each of the features, by ``count`` folds.

    It is the ``first`` one unless another one is better by more than 1.5 standard errors, and not
    right less often: of few groups, the error of an error is small by chance.
    """
    out = []
    for features in every:
        held: HeldOut = features.fitter(classes, seed).held_out(count)
        simple, other = (
            Choice(features, kind, held.error(kind), held.tempered(kind)[: len(features.clips)])
            for kind in (features.first, held.best())
        )
        is_better = surely_better(other, simple) and other.right() >= simple.right()
        out.append(other if is_better else simple)
    return out


def best(choices: Sequence[Choice]) -> Choice:
    """Return the choice with the least error that can run, that with the least rank if close.

    Of those of a rank the one with the least error counts. One of a higher rank replaces it if the
    difference, summed over the groups, is more than one of its standard errors.
    """
    running = [choice for choice in choices if choice.features.runs]
    ranks = sorted({choice.features.rank for choice in running})
    chosen: Choice | None = None
    for rank in ranks:
        alike = [choice for choice in running if choice.features.rank == rank]
        other = min(alike, key=lambda choice: choice.error)
        if chosen is None or surely_better(other, chosen, _RANKED):
            chosen = other
    assert chosen is not None
    return chosen


def surely_better(first: Choice, second: Choice, errors: float = _ERRORS) -> bool:
    """Return whether the error of ``first`` is less by more than some standard errors over groups.

    ``errors``: of them. The best of many is better than another one by more than one too often.
    """
    clips = first.features.clips
    labels = np.array([clip.label for clip in clips])
    rows = np.arange(len(labels))
    weights = 1 / np.bincount(labels)[labels] / len(set(labels.tolist()))
    gains = weights * np.log(
        np.maximum(first.answers[rows, labels], _LEAST)
        / np.maximum(second.answers[rows, labels], _LEAST)
    )
    _, places = np.unique([clip.group for clip in clips], return_inverse=True)
    by_group = np.bincount(places, gains)
    error = by_group.std(ddof=1) * len(by_group) ** 0.5 if len(by_group) > 1 else np.inf
    return bool(by_group.sum() > errors * error)


@dataclass(frozen=True)
class Nested:
    """Answers to clips by what was chosen and fitted without their groups.

    ``answers`` [N, K]: of the choice. ``each`` [N, K]: of each of the features with its best head.
    ``means`` [N, K]: of the nearest class mean. ``rows``: of the choice, for the steps of each
    clip, [T, K]. ``streams``: the same for clips one after the other.
    """

    answers: Numbers
    rows: list[npt.NDArray[np.float32]]
    each: dict[str, Numbers]
    means: dict[str, Numbers]
    streams: list[StreamPredictions]


def nested(every: Sequence[ClipFeatures], classes: int, seed: int) -> Nested:
    """Return what the choice is worth: every group is answered by heads that did not know it."""
    clips = every[0].clips
    none = np.zeros((len(clips), classes))
    out = Nested(
        none.copy(),
        [np.zeros((0, classes), np.float32)] * len(clips),
        {features.name: none.copy() for features in every},
        {features.name: none.copy() for features in every},
        [],
    )
    for train, check in folds([clip.group for clip in clips], seed):
        choices = options([f.some(train) for f in every], classes, seed, _INNER_FOLDS)
        chosen = best(choices)
        for features, choice in zip(every, choices, strict=True):
            fitter = choice.features.fitter(classes, seed)
            asked = features.some(check).clips
            for kind, answers in ((choice.kind, out.each), (KINDS[0], out.means)):
                head = fitter.head(kind)
                rows = [_steps(head, clip) for clip in asked]
                answers[features.name][check] = [row.mean(0) for row in rows]
                if choice is chosen and answers is out.each:
                    out.streams.append(_stream(head, asked))
                    for k, row in zip(check, rows, strict=True):
                        out.rows[k] = row
        out.answers[check] = out.each[chosen.features.name][check]
    return out


@torch.no_grad()
def _steps(head: LinearClassifier, clip: Clip) -> npt.NDArray[np.float32]:
    """Return the probabilities [T, K] of the steps of a clip, as in a stream."""
    logits = head.forward_steps(clip.tokens[None].float(), head.init_state()).logits[0]
    rows: npt.NDArray[np.float32] = logits[torch.from_numpy(clip.steps)].softmax(-1).numpy()
    return rows


def _stream(head: LinearClassifier, clips: Sequence[Clip]) -> StreamPredictions:
    tokens = torch.cat([clip.tokens[torch.from_numpy(clip.steps)] for clip in clips])
    labels = np.concatenate([np.full(len(clip.steps), clip.label) for clip in clips])
    whole = Clip(tokens, np.arange(len(tokens)), 0, "")
    return StreamPredictions(_steps(head, whole), labels)


@dataclass(frozen=True)
class Scaling:
    """A factor of logits and biases [K], which make probabilities mean what they say."""

    factor: float
    biases: Tensor

    def apply(self, answers: npt.NDArray[np.floating]) -> Numbers:
        """Return scaled probabilities [..., K]."""
        logits = torch.tensor(np.log(np.maximum(answers, _LEAST)), dtype=torch.float64)
        scaled: Numbers = (logits * self.factor + self.biases).softmax(-1).numpy()
        return scaled

    def put_into(self, head: LinearClassifier) -> None:
        """Change the logits of a head."""
        with torch.no_grad():
            head.classifier.weight.mul_(self.factor)
            head.classifier.bias.mul_(self.factor)
            head.classifier.bias.add_(self.biases.to(head.classifier.bias))


_PULL = 0.1  # of squared biases
_NEVER = -20.0  # a bias


def fitted_scaling(
    rows: Sequence[npt.NDArray[np.float32]],
    labels: npt.NDArray[np.int64],
    groups: Sequence[str],
    seed: int,
) -> tuple[Scaling, Numbers] | None:
    """Return a temperature and biases of classes, and clips' answers scaled by those of others.

    ``rows``: probabilities [T, K] of the steps of each clip, by heads fitted to other groups. None
    unless the cross entropy of groups that the scaling was not fitted to becomes less (Platt
    scaling of several classes: Guo et al., "On calibration of modern neural networks", ICML 2017).
    """
    scaled = np.stack([row.mean(0) for row in rows]).astype(np.float64)
    if bool((scaled[np.arange(len(labels)), labels] < UNSEEN).any()):
        return None  # a class was not known to the heads that were asked for its clips
    before = surprise(scaled, labels)
    for train, check in folds(groups, seed):
        scaling = _scaling([rows[k] for k in train], labels[train])
        scaled[check] = [scaling.apply(rows[k]).mean(0) for k in check]
    if surprise(scaled, labels) >= before:
        return None
    return _scaling(rows, labels), scaled


def _scaling(rows: Sequence[npt.NDArray[np.float32]], labels: npt.NDArray[np.int64]) -> Scaling:
    """Return the scaling of least cross entropy; clips of a class, and classes, weigh the same."""
    logits = torch.tensor(np.log(np.maximum(np.concatenate(rows), _LEAST)), dtype=torch.float64)
    lengths = torch.tensor([len(row) for row in rows])
    clips = torch.from_numpy(labels)
    counts = torch.bincount(clips, minlength=logits.shape[1])
    each_clip = 1.0 / (lengths * counts[clips] * int((counts > 0).sum()))
    target, weights = (x.repeat_interleave(lengths) for x in (clips, each_clip))
    power = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    biases = torch.zeros(logits.shape[1], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([power, biases], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        changed = logits * power.exp() + biases
        total = (weights * F.cross_entropy(changed, target, reduction="none")).sum()
        total = total + _PULL * biases.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    search.step(closure)  # type: ignore[no-untyped-call]
    found = biases.detach()
    found[counts == 0] = _NEVER  # a class without examples
    return Scaling(float(power.detach().exp()), found)


def near_copies(features: ClipFeatures) -> list[tuple[int, int]]:
    """Return the pairs of clips with nearly the same features, and groups that differ."""
    if len(features.clips) < _FEWEST:
        return []
    means = torch.stack(
        [clip.tokens[torch.from_numpy(clip.steps)].mean(0) for clip in features.clips]
    )
    unit = F.normalize(means - means.mean(0), dim=1)
    alike = torch.triu(unit @ unit.T >= _ALIKE, 1)
    pairs = [(int(a), int(b)) for a, b in alike.nonzero()]
    clips = features.clips
    return [(a, b) for a, b in pairs if clips[a].group != clips[b].group]
