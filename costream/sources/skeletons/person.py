"""A person in a frame; joints that stand at numbers for "missing"."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.float32]
# A joint is no part of a body if it is further from the median of the joints than so many times the
# median distance from there: numbers that stand for "missing", and slips of a tracker.
_FAR = 50


@dataclass(frozen=True)
class Person:
    """One person in one frame; missing joints have score 0 and zero coordinates."""

    joints: Numbers  # float32 [V, C], y up
    scores: Numbers  # float32 [V], 0 to 1
    key: Hashable = None  # the person's identifier, if the format has one
    strays: int = 0  # joints that were too far away to be this person's, and are missing
    # bool [V], joints that stood at numbers for "missing", whatever their scores said; None: none
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

    A joint is missing if a coordinate is not finite, its score is not above 0, it stands at numbers
    that mean "missing" (see ``_placeholders``), or it is too far from the others. What is judged
    are the numbers of the file; the person's are ``(joints - shift) * signs``, y up.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        places = np.array(joints, np.float32)
        sure = np.ones(len(places), np.float32) if scores is None else np.array(scores, np.float32)
        unset = _placeholders(places)
        strays = _strays(places, ~unset & np.isfinite(places).all(axis=1))
        moved = ((np.asarray(joints, float) - shift) * np.asarray(signs)).astype(np.float32)
    sure = np.where(np.isfinite(sure), np.clip(sure, 0, 1), 0).astype(np.float32)
    sure[~(np.isfinite(places).all(axis=1) & np.isfinite(moved).all(axis=1))] = 0
    unset &= sure > 0
    sure[unset] = 0
    strays &= sure > 0
    sure[strays] = 0
    moved[sure == 0] = 0
    # All joints at such numbers are how recordings write that a person is not there.
    told = unset if unset.any() and sure.any() else None
    return Person(moved + np.float32(0), sure, key, int(strays.sum()), told)  # + 0: no -0.0


def _placeholders(places: Numbers) -> npt.NDArray[np.bool_]:
    """Return which joints [V, C] stand at the origin, or at equal negative numbers.

    In pictures, and in space as a camera sees it, nobody is there: pose estimators write (0, 0) or
    (-1, -1) for a joint that they have not found, often with a score above 0. Around the origin,
    as in coordinates that are centred on the hips, a joint may be: there, numbers mean "missing" if
    several joints have them.
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


def _strays(places: Numbers, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of the ``known`` joints [V, C] are too far from the others."""
    own = places[known]
    if len(own) < 5:  # of two eyes and a hand
        return np.zeros(len(places), np.bool_)
    distances = np.abs(places - np.sort(own, axis=0)[len(own) // 2]).max(axis=1)
    middle = np.sort(distances[known])[len(own) // 2]
    far: npt.NDArray[np.bool_] = known & (distances > _FAR * middle) & (middle > 0)
    return far
