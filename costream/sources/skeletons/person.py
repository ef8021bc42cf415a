"""A person in a frame; joints that stand at numbers for "missing"."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.float32]
# A joint is an outlier (a number for "missing", a tracking error) if its distance from the median
# of the joints is more than this many times the median distance.
_FAR = 50


@dataclass(frozen=True)
class Person:
    """One person in one frame; missing joints have score 0 and zero coordinates."""

    joints: Numbers  # float32 [V, C], y up
    scores: Numbers  # float32 [V], 0 to 1
    key: Hashable = None  # the person's identifier, if the format has one
    strays: int = 0  # joints that were too far from the others and are missing
    # bool [V], joints with numbers that stand for "missing", whatever their scores; None: none
    unset: npt.NDArray[np.bool_] | None = None


def make_person(
    joints: npt.ArrayLike,
    scores: npt.ArrayLike | None = None,
    key: Hashable = None,
    *,
    shift: npt.ArrayLike = 0.0,
    signs: npt.ArrayLike = 1.0,
) -> Person:
    """Return a person from the coordinates [V, C] and scores [V] of a file.

    A joint is missing if a coordinate is not finite, its score is not above 0, it has numbers that
    mean "missing" (see ``_placeholders``), or it is too far from the others. These rules apply to
    the numbers of the file; the person's coordinates are ``(joints - shift) * signs``, y up.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        places = np.array(joints, np.float32)
        certainty = (
            np.ones(len(places), np.float32) if scores is None else np.array(scores, np.float32)
        )
        unset = _placeholders(places)
        strays = _strays(places, ~unset & np.isfinite(places).all(axis=1))
        moved = ((np.asarray(joints, float) - shift) * np.asarray(signs)).astype(np.float32)
    certainty = np.where(np.isfinite(certainty), np.clip(certainty, 0, 1), 0).astype(np.float32)
    certainty[~(np.isfinite(places).all(axis=1) & np.isfinite(moved).all(axis=1))] = 0
    unset &= certainty > 0
    certainty[unset] = 0
    strays &= certainty > 0
    certainty[strays] = 0
    moved[certainty == 0] = 0
    # If all joints have such numbers, the recording means that the person is absent.
    unset_joints = unset if unset.any() and certainty.any() else None
    return Person(
        moved + np.float32(0), certainty, key, int(strays.sum()), unset_joints
    )  # + 0: no -0.0


def _placeholders(places: Numbers) -> npt.NDArray[np.bool_]:
    """Return which joints [V, C] stand at the origin, or at equal negative numbers.

    Pose estimators write (0, 0) or (-1, -1) for a joint that they have not found, often with a
    score above 0. If the other joints surround the origin (coordinates centred on the hips), a
    joint may really be there: then numbers mean "missing" only if several joints have them.
    """
    first = places[:, 0]
    alike: npt.NDArray[np.bool_] = np.isfinite(first) & (first <= 0)
    alike &= (places == first[:, None]).all(axis=1)
    if alike.any():
        others = places[np.isfinite(places).all(axis=1) & ~alike]
        if len(others) and _surround_origin(others):
            values, counts = np.unique(first[alike], return_counts=True)
            alike &= np.isin(first, values[counts > 1])
    return alike


def _surround_origin(places: Numbers) -> bool:
    """Return whether the origin is within the box around joints [V, C]; they may lie in a plane."""
    low, high = places.min(axis=0), places.max(axis=0)
    return bool(np.all(((low < 0) & (high > 0)) | ((low == 0) & (high == 0))))


def _strays(places: Numbers, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of the ``valid`` joints [V, C] are too far from the others."""
    present = places[valid]
    if len(present) < 5:  # too few to judge
        return np.zeros(len(places), np.bool_)
    distances = np.abs(places - np.sort(present, axis=0)[len(present) // 2]).max(axis=1)
    middle = np.sort(distances[valid])[len(present) // 2]
    far: npt.NDArray[np.bool_] = valid & (distances > _FAR * middle) & (middle > 0)
    return far
