"""Extremely randomised trees: the baseline of every recipe.

Geurts et al., "Extremely randomized trees" (Machine Learning 63, 2006). Needs scikit-learn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]  # [N, F]

TREES = 400


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

    ``labels``: int [N], below ``classes``. ``features``: candidates at each split, as
    scikit-learn's ``max_features``; ``leaf``: the least number of rows in a leaf.
    """
    from sklearn.ensemble import ExtraTreesClassifier

    trees = ExtraTreesClassifier(
        count, max_features=features, min_samples_leaf=leaf, random_state=seed, n_jobs=1
    )
    trees.fit(rows, labels)
    told = np.zeros((len(held_out), classes), np.float32)
    told[:, trees.classes_] = trees.predict_proba(held_out)
    return told
