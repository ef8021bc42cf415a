"""Common command line of the training recipes: ``python -m weights.recipes.X.train``."""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.errors import CostreamError, UsageError
from costream.core.processor import processor
from costream.weights_io.card import Familiarity

# Where weights belong that are free for any use, and those for research (the second package).
FREE, RESEARCH = Path("weights"), Path("weights/research")
Rows = npt.NDArray[np.float32]  # [N, F]
TREES = 400  # of the tree ensemble
_TIMED = 50  # calls
UNFAMILIAR = 0.05  # share of what is known that is below the limit of familiarity


def parser(
    name: str, packs: str = "", steps: int = 0, folder: Path = RESEARCH
) -> argparse.ArgumentParser:
    """Return the argument parser of the recipe ``name``.

    ``packs``: help text for the data folder, and ``steps``: default number of training steps, of
    recipes with these options. ``folder``: where the weights belong.
    """
    options = argparse.ArgumentParser(prog=f"python -m weights.recipes.{name}.train")
    options.add_argument("-o", "--output", type=Path, default=folder, help="folder")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--threads", type=int, default=1)
    if packs:
        options.add_argument("--packs", type=Path, required=True, help=packs)
        options.add_argument("--steps", type=int, default=steps)
    return options


def carry_out(make: Callable[[], Sequence[Path]], threads: int) -> int:
    """Run a recipe, print the paths of the written files and return the exit code."""
    torch.set_num_threads(threads)
    try:
        written = make()
    except CostreamError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(*written, sep="\n")
    return 0


def timed_costs(macs: int, run: Callable[[], object]) -> dict[str, Any]:
    """Return the costs of a call for a card: operations, and processor time, a lower decile."""
    times = []
    for _ in range(_TIMED):
        began = time.thread_time()
        run()
        times.append(time.thread_time() - began)
    ms = round(1e3 * sorted(times)[_TIMED // 10], 1)
    machine = f"processor time of one core, {processor()}, PyTorch {torch.__version__}"
    return {"macs": macs, "dense_macs": macs, "ms": ms, "machine": machine.partition("+")[0]}


@contextmanager
def teacher_file(pack: Path, name: str) -> Iterator[Path]:
    """Yield the temporary path of a file of a pack of teachers. UsageError if it is missing."""
    if not pack.is_file():
        raise UsageError("the teacher is missing", where=pack)
    with tarfile.open(pack) as archive, tempfile.TemporaryDirectory() as place:
        archive.extract(f"{pack.stem}/{name}", place, filter="data")
        yield Path(place) / pack.stem / name


def read_member(archive: tarfile.TarFile, name: str) -> bytes:
    """Return the contents of a file in a pack. UsageError if it is missing."""
    file = archive.extractfile(name)
    if file is None:
        raise UsageError(f"the pack has no file {name}")
    return file.read()


def soft_cross_entropy(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross entropy of logits and target probabilities [..., K].

    All-zero targets are ignored.
    """
    counts = targets.sum(-1)
    smooth = (1 - smoothing) * targets + smoothing / targets.shape[-1]
    each = -(smooth * scores.log_softmax(-1)).sum(-1)
    return (each * counts).sum() / counts.sum().clamp(min=1)


def forest(
    rows: Rows,
    labels: npt.NDArray[np.integer],
    held_out: Rows,
    classes: int,
    count: int,
    seed: int,
    features: float | str = "sqrt",
    leaf: int = 1,
) -> npt.NDArray[np.float32]:
    """Return the probabilities [M, K] of ``held_out`` [M, F] from trees fitted to ``rows``.

    The baseline of every recipe: extremely randomised trees (Geurts et al., 2006). Needs
    scikit-learn.

    ``labels``: int [N], below ``classes``. ``features``: candidates at each split, as
    scikit-learn's ``max_features``; ``leaf``: the least number of rows in a leaf.
    """
    from sklearn.ensemble import ExtraTreesClassifier

    trees = ExtraTreesClassifier(
        count, max_features=features, min_samples_leaf=leaf, random_state=seed, n_jobs=1
    )
    trees.fit(rows, labels)
    predictions = np.zeros((len(held_out), classes), np.float32)
    predictions[:, trees.classes_] = trees.predict_proba(held_out)
    return predictions


def fitted_familiarity(
    inside: npt.NDArray[np.float64],
    outside: npt.NDArray[np.float64],
    unfamiliar: float = UNFAMILIAR,
) -> Familiarity:
    """Return the familiarity that best separates the energies of familiar and unfamiliar input.

    Logistic regression of one variable, both kinds with the same weight. ``unfamiliar``: share of
    what is known that is below the limit.
    """
    from sklearn.linear_model import LogisticRegression

    truth = np.repeat([1, 0], [len(inside), len(outside)])
    model = LogisticRegression(class_weight="balanced", C=1e3)
    model.fit(np.concatenate([inside, outside])[:, None], truth)
    scale = 1 / max(float(model.coef_[0, 0]), 1e-3)
    centre = -float(model.intercept_[0]) * scale
    familiar = 1 / (1 + np.exp(-(inside - centre) / scale))
    limit = min(0.5, float(np.quantile(familiar, unfamiliar)))
    return Familiarity(round(centre, 3), round(scale, 3), round(limit, 2))


def separation(inside: npt.NDArray[np.float64], outside: npt.NDArray[np.float64]) -> float:
    """Return the area under the ROC curve of ``inside`` above ``outside``."""
    ranks = np.concatenate([inside, outside]).argsort().argsort()[: len(inside)] + 1
    above = ranks.sum() - len(inside) * (len(inside) + 1) / 2
    return float(above / (len(inside) * len(outside)))
