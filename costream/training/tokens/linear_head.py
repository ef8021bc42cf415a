"""Linear heads on frozen features, chosen by groups.

Class means, logistic regression, and linear discriminants with a covariance that is shrunk.
A few clips of each class are too few for a transformer on features that know the world; a linear
classifier of their mean over time is hard to beat (Chen et al., "A closer look at few-shot
classification", ICLR 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.formatting import counted
from costream.models.oad.linear import LinearClassifier
from costream.training.baselines import SHARPNESS, logistic_regression
from costream.training.verdict import share_text

FOLDS = 5
PENALTIES = (0.1, 0.01, 0.001)  # of squared weights, relative to the mean loss
SHRINKAGE = 0.5  # share of a multiple of the identity in a covariance
MEAN, CHANGE, SPREAD = "mean", "mean and change", "mean and spread"  # of the rows of a window
_MOST_STEPS = 64  # of a window
_ROWS = 4  # of an example, at most: its steps are alike
_ASKED = 16  # steps of an example of which a head is asked, at most
_MOST_ROWS = 1600  # of all examples
_ABSENT = -20.0  # logit of a class without examples
UNSEEN = 1e-7  # a class with less probability was not among the examples
_SMALL = 0.01  # least spread of a feature, relative to the largest
_GOOD = 0.7  # share of right answers that needs no explanation
_FEW_GROUPS = 3
_RANKS_WELL = 0.85  # area under the ROC curve from which on only the boundary is wrong
_LEAST = 1e-6  # least probability in a logarithm
_TEMPERATURES = 2.0 ** np.arange(-3.0, 4.0, 0.5)
Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clip:
    """An example: the feature rows of its recording [T, C], its steps, class and group.

    ``twins``: rows [T, C] of the same as a mirror shows it, and the like, which may be learnt from.
    """

    tokens: Tensor
    steps: npt.NDArray[np.int64]
    label: int
    group: str
    twins: Sequence[Tensor] = ()


@dataclass(frozen=True)
class HeadKind:
    """A way to fit a head to MEAN, CHANGE or SPREAD.

    ``penalty``: of logistic regression; 0: linear discriminants; None: class means. ``twins``:
    whether the twins of clips are examples, too.
    """

    pooled: str
    penalty: float | None
    twins: bool = False

    def __str__(self) -> str:
        way = "nearest class mean" if self.penalty is None else "logistic regression"
        way = "linear discriminants" if self.penalty == 0 else way
        more = ", mirrored too" if self.twins else ""
        return f"{way} of the {self.pooled} of the features{more}"

    def head(self, width: int, classes: int, window: int) -> LinearClassifier:
        """Return a head of this kind for rows of ``width`` values, not fitted."""
        unit = self.penalty is None
        changes, spread = self.pooled == CHANGE, self.pooled == SPREAD
        return LinearClassifier(width, classes, window, unit, changes, spread)


KINDS = (
    HeadKind(MEAN, None),
    *(
        HeadKind(pooled, penalty)
        for pooled in (MEAN, CHANGE, SPREAD)
        for penalty in (*PENALTIES, 0.0)
    ),
)


@dataclass
class HeldOut:
    """Probabilities [N, K] of examples by heads that were fitted to other groups, by kind."""

    labels: npt.NDArray[np.int64]
    answers: dict[HeadKind, Probabilities] = field(default_factory=dict)

    def best(self) -> HeadKind:
        """Return the kind with the least ``error``."""
        return min(self.answers, key=self.error)

    def error(self, kind: HeadKind) -> float:
        """Return the cross entropy of a kind at its best temperature, all classes with one weight.

        Otherwise it would depend on the sharpness of the cosines of class means. Examples of
        classes that were held out completely do not count.
        """
        known = self._known()
        return surprise(self.tempered(kind)[known], self.labels[known])

    def tempered(self, kind: HeadKind) -> Probabilities:
        """Return the answers of a kind [N, K] at their best temperature."""
        known, logs = self._known(), np.log(np.maximum(self.answers[kind], _LEAST))
        scaled = [np.exp(logs / t) for t in _TEMPERATURES]
        scaled = [p / p.sum(1, keepdims=True) for p in scaled]
        return min(scaled, key=lambda p: surprise(p[known], self.labels[known]))

    def _known(self) -> npt.NDArray[np.bool_]:
        """Return which examples [N] are of classes that their heads were fitted to."""
        rows = np.arange(len(self.labels))
        known: npt.NDArray[np.bool_]
        known = np.max([a[rows, self.labels] for a in self.answers.values()], 0) >= UNSEEN
        return known if known.any() else ~known

    def right(self, kind: HeadKind) -> npt.NDArray[np.bool_]:
        """Return which examples a kind got right."""
        right: npt.NDArray[np.bool_] = self.answers[kind].argmax(1) == self.labels
        return right


def surprise(answers: Probabilities, labels: Sequence[int] | npt.NDArray[np.int64]) -> float:
    """Return the cross entropy of probabilities [N, K], all classes with the same weight."""
    numbers = np.asarray(labels)
    each = -np.log(np.maximum(answers[np.arange(len(numbers)), numbers], _LEAST))
    return float(np.mean([each[numbers == k].mean() for k in np.unique(numbers)]))


def why_few(held: HeldOut, kind: HeadKind, clips: Sequence[Clip], names: Sequence[str] = ()) -> str:
    """Return in words why held-out clips are often wrong; '' if they are not.

    ``names``: of the classes, to say which two are taken for each other most.
    """
    right = held.right(kind)
    shares = [right[held.labels == k].mean() for k in np.unique(held.labels)]
    if np.mean(shares) >= _GOOD:
        return ""
    groups = {k: len({c.group for c in clips if c.label == k}) for k in {c.label for c in clips}}
    fewest = min(groups.values())
    if fewest < _FEW_GROUPS:
        return f"a class has clips of only {counted(fewest, 'group')} (recordings, or --group)"
    total, hits = len(right), int(right.sum())
    right_text = share_text(hits, total)
    answers = held.answers[kind]
    area = ranking(answers, held.labels)
    if area >= _RANKS_WELL:
        return (
            f"it ranks the classes well (area under the ROC curve {area:.2f}), but its boundary is"
            f" off in other recordings, {right_text} right: examples of more recordings place it"
        )
    which = "the classes"
    if names:
        mistakes = np.zeros((len(names), len(names)), np.int64)
        np.add.at(mistakes, (held.labels, answers.argmax(1)), 1)
        np.fill_diagonal(mistakes, 0)
        first, second = np.unravel_index((mistakes + mistakes.T).argmax(), mistakes.shape)
        which = f"{names[first]} and {names[second]}"
        which = which if len(groups) == 2 else f"{which}, most of all,"
    return f"{which} look alike to this frontend, {right_text} right across recordings"


def ranking(answers: Probabilities, labels: npt.NDArray[np.int64]) -> float:
    """Return the area under the ROC curve of each class against the others, the mean of all.

    It is the share of pairs, one clip of the class and one of another, whose answers [N, K] have
    the right order: 1 if a boundary exists that is never wrong, 0.5 by chance. 1 with one class.
    """
    areas = []
    for k in np.unique(labels):
        inside, outside = answers[labels == k, k], answers[labels != k, k]
        order = np.sign(inside[:, None] - outside[None])
        areas.append(float((order.mean() + 1) / 2) if order.size else 1.0)
    return float(np.mean(areas))


class HeadFitter:
    """Fits heads to clips of K ``classes``; all have one window, the median length of the clips.

    ``parts``: widths of features that are standardised to the same total; default: all C as one.
    ``kinds``: the ways that suit the clips; the first one is the nearest class mean.
    """

    def __init__(
        self, clips: Sequence[Clip], classes: int, seed: int, parts: Sequence[int] = ()
    ) -> None:
        """Raises ValueError without clips."""
        lengths = sorted(len(clip.steps) for clip in clips)
        self.window = max(2, min(_MOST_STEPS, lengths[len(lengths) // 2]))
        self._clips, self._classes, self._seed = list(clips), classes, seed
        self._width = clips[0].tokens.shape[1]
        self._parts = tuple(parts) or (self._width,)
        self._count = max(1, min(_ROWS, _MOST_ROWS // len(clips)))
        twins = [replace(kind, twins=True) for kind in KINDS[1:]] if clips[0].twins else []
        self.kinds = (*KINDS, *twins)

    def head(self, kind: HeadKind) -> LinearClassifier:
        """Return a head fitted to all clips."""
        rows = [self._every_row(clip, kind) for clip in self._clips]
        return self._fitted(rows, [clip.label for clip in self._clips], [kind])[0]

    def held_out(self, count: int = FOLDS) -> HeldOut:
        """Return the answers of all kinds to the clips, each by heads of other groups.

        ``count``: folds.
        """
        clips = self._clips
        labels = np.array([clip.label for clip in clips])
        out = HeldOut(labels, {k: np.zeros((len(clips), self._classes)) for k in self.kinds})
        ways = dict.fromkeys((kind.pooled, kind.twins) for kind in self.kinds)
        alike = [[kind for kind in self.kinds if (kind.pooled, kind.twins) == way] for way in ways]
        rows = [[self._every_row(clip, kinds[0]) for clip in clips] for kinds in alike]
        asked = [[self.asked(clip, kinds[0]) for clip in clips] for kinds in alike]
        for train, check in folds([clip.group for clip in clips], self._seed, count):
            for kinds, seen, own in zip(alike, rows, asked, strict=True):
                heads = self._fitted([seen[k] for k in train], labels[train].tolist(), kinds)
                for kind, head in zip(kinds, heads, strict=True):
                    for k in check:
                        out.answers[kind][k] = mean_answer(head, own[k])
        return out

    def asked(self, clip: Clip, kind: HeadKind) -> Tensor:
        """Return pooled rows [n, F] of steps all over a clip.

        A clip is judged by the mean of what is said of all its steps, from the first one on.
        """
        count = min(_ASKED, max(1, 4 * _MOST_ROWS // len(self._clips)), len(clip.steps))
        places = ((np.arange(count) + 0.5) * len(clip.steps) / count).astype(int)
        return self._pooled(clip, kind)[torch.from_numpy(clip.steps[places])]

    def rows(self, clip: Clip, kind: HeadKind) -> Tensor:
        """Return pooled rows [n, F] of a clip to learn from, the newest last."""
        pooled = self._pooled(clip, kind)
        last = len(clip.steps) - 1
        first = min(last, self.window) // 2  # means of fewer rows vary too much to learn from
        chosen = np.unique(np.linspace(last, first, self._count).round().astype(int))
        return pooled[torch.from_numpy(clip.steps[chosen])]

    def _pooled(self, clip: Clip, kind: HeadKind) -> Tensor:
        """Return what a head of a kind pools at each row of a clip's recording, [T, F]."""
        pooling = kind.head(self._width, 1, self.window)
        return pooling.pool(clip.tokens[None].float(), pooling.init_state())[0]

    def _every_row(self, clip: Clip, kind: HeadKind) -> Tensor:
        """Return the rows [n, F] of a clip and, if its kind has them, of its twins."""
        every = [replace(clip, tokens=tokens) for tokens in clip.twins] if kind.twins else []
        return torch.cat([self.rows(each, kind) for each in (*every, clip)])

    def _fitted(
        self, rows: Sequence[Tensor], labels: Sequence[int], kinds: Sequence[HeadKind]
    ) -> list[LinearClassifier]:
        """Return heads of several kinds that are fitted to the same rows."""
        present, basis, heads = sorted(set(labels)), None, []
        for kind in kinds:
            head = kind.head(self._width, self._classes, self.window).requires_grad_(False)
            nn.init.zeros_(head.classifier.weight)
            nn.init.constant_(head.classifier.bias, _ABSENT)
            if kind.penalty is None:
                means = torch.stack([part[-1] for part in rows])  # of the most steps
                numbers = torch.tensor(labels)
                centres = torch.stack([means[numbers == k].mean(0) for k in present])
                head.classifier.weight[present] = SHARPNESS * F.normalize(centres, dim=1)
                head.classifier.bias[present] = 0.0
            else:
                if basis is None:
                    places = [present.index(label) for label in labels]
                    parts = self._parts * (1 + (kind.pooled != MEAN))
                    basis = _Basis(rows, places, len(present), parts)
                found = basis.logistic(kind.penalty) if kind.penalty else basis.discriminants()
                weight, bias = found
                head.classifier.weight[present], head.classifier.bias[present] = weight, bias
            heads.append(head)
        return heads


class _Basis:
    """Standardised rows of examples, in the space that they span: fewer numbers to fit.

    Every class has the same weight, and every example of a class. Parts of a row, of these widths,
    are standardised to the same total.
    """

    def __init__(
        self, rows: Sequence[Tensor], labels: Sequence[int], classes: int, parts: Sequence[int]
    ) -> None:
        x = torch.cat(list(rows)).double()
        counts = torch.bincount(torch.tensor(labels), minlength=classes)
        lengths = torch.tensor([len(part) for part in rows])
        self._classes = classes
        self._numbers = torch.tensor(labels).repeat_interleave(lengths)
        each = 1 / (lengths * classes * counts[torch.tensor(labels)])
        self._weights = each.repeat_interleave(lengths)
        self._centre, spread = x.mean(0), x.std(0, correction=0)
        scales = [
            part.clamp(min=max(_SMALL * float(part.max()), 1e-9)) * len(part) ** 0.5
            for part in torch.split(spread, list(parts))
        ]
        self._scale = torch.cat(scales)
        z = (x - self._centre) / self._scale
        few = len(z) <= z.shape[1]
        squares, vectors = torch.linalg.eigh(z @ z.T if few else z.T @ z)
        kept = squares > 1e-9 * squares[-1].clamp(min=1e-9)
        vectors, sizes = vectors[:, kept], squares[kept].sqrt()
        self._back = (z.T @ vectors) / sizes if few else vectors  # [F, R], orthonormal
        self._inside = (z @ self._back).float()

    def logistic(self, penalty: float) -> tuple[Tensor, Tensor]:
        """Return weight [K, F] and bias [K] of logistic regression."""

        def error(logits: Tensor) -> Tensor:
            each = F.cross_entropy(logits, self._numbers, reduction="none")
            return (self._weights * each).sum()

        return self._outside(*logistic_regression(self._inside, self._classes, error, penalty))

    def discriminants(self) -> tuple[Tensor, Tensor]:
        """Return weight [K, F] and bias [K] of linear discriminant analysis.

        The covariance within classes is shrunk towards a multiple of the identity by ``SHRINKAGE``
        (Friedman, "Regularized discriminant analysis", 1989).
        """
        x, size = self._inside.double(), self._inside.shape[1]
        share = F.one_hot(self._numbers, self._classes).double() * self._weights[:, None]
        means = (share.T @ x) / share.sum(0)[:, None]
        apart = x - means[self._numbers]
        within = apart.T @ (self._weights[:, None] * apart)
        level = within.diagonal().mean().clamp(min=1e-12)
        within = (1 - SHRINKAGE) * within + SHRINKAGE * level * torch.eye(size).to(within)
        weight = torch.linalg.solve(within, means.T).T
        bias = -(weight * means).sum(1) / 2
        # Less the mean of all classes: one of them is always above a class without examples.
        return self._outside(weight - weight.mean(0), bias - bias.mean())

    def _outside(self, inside: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight [K, F] and bias [K] for rows, of those for the space that they span."""
        weight = inside.double() @ self._back.T / self._scale
        return weight.float(), (bias.double() - weight @ self._centre).float()


@torch.no_grad()
def mean_answer(head: LinearClassifier, rows: Tensor) -> Probabilities:
    """Return the mean probabilities [K] that a head gives to pooled rows [n, F]."""
    answer: Probabilities = head(rows).softmax(-1).mean(0).double().numpy()
    return answer


def folds(
    groups: Sequence[str], seed: int, count: int = FOLDS
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield indices to fit to and to check, with no group on both sides.

    The largest groups are dealt first, each to the fold with the fewest examples. Fewer folds if
    there are fewer groups; nothing with a single group.
    """
    names, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    count = min(count, len(names))
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    fold, filled = np.zeros(len(names), np.int64), np.zeros(max(count, 1))
    for name in order:
        fold[name] = filled.argmin()
        filled[fold[name]] += sizes[name]
    for k in range(count if count > 1 else 0):
        held = fold[places] == k
        yield np.flatnonzero(~held), np.flatnonzero(held)


def fitted_bias(
    answers: Sequence[npt.NDArray[Any]], labels: Sequence[int], groups: Sequence[str], seed: int
) -> npt.NDArray[np.float64] | None:
    """Return the bias [K] to add to logits, or None if none is right more often.

    ``answers``: mean probabilities [K] of each example. It must be right more often on groups that
    it was not fitted to.
    """
    logits = torch.tensor(np.log(np.maximum(np.stack(answers), _LEAST)))
    target = torch.tensor(labels)

    def bias_of(chosen: npt.NDArray[np.int64]) -> Tensor:
        target_of = target[chosen]
        error = partial(_biased_error, logits[chosen].float(), target_of)
        none = torch.zeros(len(chosen), 0)
        return logistic_regression(none, logits.shape[1], error, 0.0)[1].double()

    before = logits.argmax(1) == target
    after = torch.zeros(len(labels), dtype=torch.bool)
    for train, check in folds(groups, seed):
        after[check] = (logits[check] + bias_of(train)).argmax(1) == target[check]
    if int(after.sum()) <= int(before.sum()):
        return None
    bias: npt.NDArray[np.float64] = bias_of(np.arange(len(labels))).numpy()
    return bias


_BIAS_PENALTY = 0.003  # of squared biases


def _biased_error(logits: Tensor, target: Tensor, bias: Tensor) -> Tensor:
    counts = torch.bincount(target, minlength=logits.shape[1]).clamp(min=1)
    each = F.cross_entropy(logits + bias, target, reduction="none") / counts[target]
    classes = len(set(target.tolist()))
    total: Tensor = each.sum() / classes + _BIAS_PENALTY * bias[0].square().sum()
    return total
