"""Scores of ``costgcn-2d``: from pixels on sources left out, and on the motions of each set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.records import Segment
from costream.evaluation.clips import sequence_scores
from costream.evaluation.metrics.sequence_metrics import fuse, timeline_shares, top1_by_rivals
from costream.labels.recording import BACKGROUND
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.training.skeleton.motions import Motion
from weights.recipes.common import forest
from weights.recipes.skeleton.films import FilmPerson
from weights.recipes.skeleton.people_choices import Choices, probabilities, rows_of
from weights.recipes.skeleton.scoring import (
    SkeletonWeights,
    features,
    majority,
    score,
    timeline_of,
    trees,
)
from weights.recipes.skeleton.sets import RATE_HZ, SETS, labels_of
from weights.recipes.skeleton.train import FLAT_FRONTEND

Rows = npt.NDArray[np.floating]
FEWEST = 3  # clips of an exercise that is scored


def film_rows(network: SkeletonNet, films: Sequence[FilmPerson]) -> list[Rows]:
    """Return the probabilities [T', K] of each person in films."""
    return [probabilities(rows_of(network, film.joints), 1.0, 0.0) for film in films]


def film_timelines(
    films: Sequence[FilmPerson], rows: Sequence[Rows], labels: Sequence[str], choices: Choices
) -> dict[str, list[Segment]]:
    """Return what the timeline of each film shows, of all of its persons."""
    out: dict[str, list[Segment]] = defaultdict(list)
    for film, row in zip(films, rows, strict=True):
        rate_hz = RATE_HZ * len(row) / len(film.joints)
        out[film.film] += timeline_of(row, labels, choices.timeline, rate_hz)
    return out


def film_scores(
    networks: Sequence[SkeletonNet],
    films: Sequence[FilmPerson],
    labels: Sequence[str],
    choices: Choices,
    count: int,
    seed: int,
) -> dict[str, Any]:
    """Return the scores of exercises in films, each by the network that knows the other sources.

    ``networks``: for each fold one that did not learn from it. Beside it trees on the same input,
    which learnt from the same films.
    """
    mine = [p for p in films if p.fold >= 0 and p.sure]
    counts: dict[str | None, int] = defaultdict(int)
    for person in mine:
        counts[person.sure] += 1
    own = sorted(label for label, number in counts.items() if label and number >= FEWEST)
    columns = [labels.index(label) for label in own]
    rows: dict[int, Rows] = {}
    shown: dict[str, list[Segment]] = {}
    for fold, network in enumerate(networks):
        part = [p for p in films if p.fold == fold]
        found = film_rows(network, part)
        shown |= film_timelines(part, found, labels, choices)
        rows |= {id(p): row for p, row in zip(part, found, strict=True)}
    mine = [p for p in mine if p.sure in own]
    truth = np.array([own.index(str(p.sure)) for p in mine])
    all_rows = [rows[id(p)] for p in mine]
    groups = [p.source for p in mine]
    result = sequence_scores([row[:, columns] for row in all_rows], truth, groups, own)
    indices = np.array([labels.index(str(p.sure)) for p in mine])
    rivals = top1_by_rivals(fuse(all_rows), indices, labels.index(BACKGROUND))
    told = [shown[p.film] for p in mine]
    scores = {
        "sequences": len(mine),
        **result,
        "top1_all": rivals["top1_all"],
        "top1_background": rivals["top1_background"],
        "timeline": timeline_shares(told, [str(p.sure) for p in mine]),
    }
    baseline = _trees(mine, truth, own, count, seed)
    title = f"Exercises in films, {len(set(groups))} sources, each left out, {len(own)} classes"
    return {title: {"costgcn-2d": scores, "tree ensemble": baseline}}


def _trees(
    persons: Sequence[FilmPerson], truth: Any, own: Sequence[str], count: int, seed: int
) -> dict[str, Any]:
    motions = [Motion("", str(p.sure), p.source, p.joints) for p in persons]
    rows = features(motions, JointStreams(**FLAT_FRONTEND))
    folds = np.array([p.fold for p in persons])
    scores = np.zeros((len(persons), len(own)), np.float32)
    for fold in np.unique(folds):
        train, test = folds != fold, folds == fold
        scores[test] = forest(
            rows[train], truth[train], rows[test], len(own), count, seed, features=0.02
        )
    return {"sequences": len(persons), "top1": float((scores.argmax(1) == truth).mean())}


def set_scores(
    network: SkeletonNet,
    test: Mapping[str, Sequence[Motion]],
    taught: Mapping[str, Sequence[Motion]],
    marked: tuple[Sequence[Motion], Sequence[Motion]],
    labels: Sequence[str],
    choices: Choices,
    count: int,
    seed: int,
) -> dict[str, Any]:
    """Return the scores on the tests of the sets and of JHMDB (``marked``: test, learnt from)."""
    frontend = JointStreams(**FLAT_FRONTEND)
    weights = SkeletonWeights(network, frontend, choices.timeline, RATE_HZ)
    parts = {
        **{SETS[name].title: (some, taught[name]) for name, some in test.items()},
        "JHMDB, test part": ([m for m in marked[0] if m.label in labels], marked[1]),
    }
    out = {}
    for title, (held_out, known) in parts.items():
        if not held_out:  # of a small part of a set
            continue
        own = labels_of([*held_out, *known])
        rows = {"costgcn-2d": score(weights, held_out, labels, own, seed)}
        known = [m for m in known if m.label in own]
        rows["tree ensemble"] = trees(known, held_out, own, frontend, count, seed)
        rows["majority"] = majority(known, held_out, own)
        out[f"{title}, {len(own)} classes"] = rows
    return out
