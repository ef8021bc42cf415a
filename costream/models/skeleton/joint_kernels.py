"""Steps of ``JointStreams`` with ``BodyNormaliser`` as one loop, float32, compiled by Numba.

A step is about sixty operations on a few dozen numbers, for each of which NumPy takes 2 us. The
equations are those of ``joints.py`` and ``normalise.py``. No array is created, which halves the
time that Numba takes to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from costream.models.skeleton.normalise import SMALLEST, Array, BodyNormaliser
from costream.nn.compiled import F32, compiled, inline

_SMALLEST = np.float32(SMALLEST)
_ZERO, _ONE = np.float32(0), np.float32(1)
_BONE, _JOINT_MOTION, _BONE_MOTION = 1, 2, 3  # number in STREAMS


@inline
def _choose(
    given: Any, min_score: Any, patience: Any, owner: Any, away: Any, flags: Any, slot: Any
) -> bool:
    """Set the slot of each person: -1 if absent, and plus the number of slots for a new one.

    Return whether the first person is a new one.
    """
    slots, joints, width = given.shape
    seen, free, first = flags[0], flags[1], False
    for s in range(slots):
        seen[s] = free[s] = False
        for v in range(joints):
            if given[s, v, width - 1] > min_score:
                seen[s] = free[s] = True
    for place in range(len(slot)):
        slot[place], own = -1, owner[place] - 1
        known = 0 <= own < slots  # there may be fewer slots than before
        if not known or not free[own]:
            away[place] += 1
            taken = known and seen[own]
            if own >= 0 and not taken and away[place] <= patience:
                continue
            own = -1
            for s in range(slots):
                if free[s]:
                    own = s
                    break
            if own < 0:
                continue
            owner[place], slot[place] = own + 1, slots + own
            first = first or place == 0
        else:
            slot[place] = own
        free[own], away[place] = False, 0
    return first


@inline
def _measure(main: Any, min_score: Any, ends: Any, bones: Any, centre: Any, new: Any) -> Any:
    """Set origin, unit and heading of a step; return which could be measured, as bits."""
    axes = main.shape[1] - 1
    known, lengths, count, sides = 0, _ZERO, 0, 0
    for a in range(axes + 3):
        new[a] = _ZERO
    if main[centre, axes] > min_score:
        known = 1
        for a in range(axes):
            new[a] = main[centre, a]
    for e in range(ends.shape[1]):
        one, two = ends[0, e], ends[1, e]
        if main[one, axes] > min_score and main[two, axes] > min_score:
            if e < bones:
                square = _ZERO
                for a in range(axes):
                    along = main[one, a] - main[two, a]
                    square += along * along
                lengths += np.float32(math.sqrt(square))
                count += 1
            else:
                new[axes + 1] += main[one, 0] - main[two, 0]
                new[axes + 2] += main[one, 2] - main[two, 2]
                sides += 1
    new[axes] = lengths / np.float32(max(count, 1))
    return known + 2 * (new[axes] > _SMALLEST) + 4 * (sides > 0)


@inline
def _follow(new: Any, known: int, memory: Any, mean_of: Any, values: Any, counts: Any) -> None:
    """Update the running means of origin, unit and heading."""
    for k in range(3):
        if (known >> k) & 1:
            counts[k] = min(counts[k] + _ONE, memory[k])
    for a in range(len(values)):
        k = mean_of[a]
        if (known >> k) & 1 and memory[k] > 0:
            weight = _ONE / counts[k]
            values[a] = values[a] * (_ONE - weight) + weight * new[a]


@inline
def _place(joint: Any, values: Any, turns: bool, out: Any) -> None:
    """Set ``out`` to a joint in the frame of reference."""
    axes = len(out)
    unit = values[axes] if values[axes] > 0 else _ONE
    for a in range(axes):
        out[a] = (joint[a] - values[a]) / unit
    if turns:
        x, z = values[axes + 1], values[axes + 2]
        length = np.float32(math.sqrt(np.float64(x) * x + np.float64(z) * z))
        if length > _SMALLEST:
            x, z = x / length, z / length
            out[0], out[2] = x * out[0] + z * out[2], x * out[2] - z * out[0]


@inline
def _in_frame(  # noqa: PLR0913 - compiled code takes arrays, not objects
    person: Any,
    here: bool,
    same: bool,
    min_score: Any,
    hold: bool,
    turns: bool,
    values: Any,
    last: Any,
    held: Any,
    flags: Any,
    now: Any,
) -> None:
    """Set a person's joints ``now`` in the frame of reference, held where they are missing.

    ``flags``: whether each joint has a position, and whether it had one in the step before.
    """
    has, kept, axes = flags[0], flags[1], now.shape[1]
    for v in range(len(now)):
        kept[v] = held[v] > 0 and same
        seen = here and person[v, axes] > min_score
        has[v] = here and (not hold or seen or kept[v])
        if seen:
            _place(person[v], values, turns, now[v])
        else:
            for a in range(axes):
                now[v, a] = last[v, a] if hold and has[v] else _ZERO


@inline
def _write_streams(
    now: Any, last: Any, parents: Any, streams: Any, flags: Any, tokens: Any
) -> None:
    """Set the tokens [V, C] of a person: joints, bones and their motion."""
    has, kept, axes = flags[0], flags[1], now.shape[1]
    for v in range(len(now)):
        u, token = parents[v], tokens[v]
        moved, bone = has[v] and kept[v], has[v] and has[u]
        turned = bone and kept[v] and kept[u]
        for k in range(len(streams)):
            for a in range(axes):
                joint, parent = now[v, a], now[u, a]
                if streams[k] == _BONE:
                    joint = joint - parent if bone else _ZERO
                elif streams[k] == _JOINT_MOTION:
                    joint = joint - last[v, a] if moved else _ZERO
                elif streams[k] == _BONE_MOTION:
                    before = last[v, a] - last[u, a]
                    joint = joint - parent - before if turned else _ZERO
                token[k * axes + a] = joint


@inline
def _remember(now: Any, has: Any, last: Any, held: Any) -> None:
    """Store the joints of this step, and which there are, for the next."""
    for v in range(len(now)):
        held[v] = _ONE if has[v] else _ZERO
        for a in range(now.shape[1]):
            last[v, a] = now[v, a]


_F2, _F4, _INTS, _INT2 = F32[:, ::1], F32[:, :, :, ::1], numba.int64[::1], numba.int64[:, ::1]
_STATE = (_INT2, _INT2, _F2, _F2, _F4, F32[:, :, ::1])
_FRAME = (_INT2, _INTS, _INTS, F32[::1], _INTS, _INTS)
_ROOM = (_INTS, F32[::1], _F2, numba.boolean[:, ::1])


@compiled(_F4, *_STATE, F32, *_FRAME, *_ROOM, _F4)
def _joint_streams(  # noqa: PLR0913 - compiled code takes arrays, not objects
    given: Any,
    owners: Any,
    away: Any,
    values: Any,
    counts: Any,
    before: Any,
    had: Any,
    min_score: Any,
    ends: Any,
    parents: Any,
    streams: Any,
    memory: Any,
    mean_of: Any,
    sizes: Any,
    slot: Any,
    new: Any,
    now: Any,
    flags: Any,
    out: Any,
) -> None:
    bones, centre, patience, hold = sizes[0], sizes[1], sizes[2], sizes[3] > 0
    _, persons, _, axes = before.shape
    slots = given.shape[1]
    for b in range(len(given)):
        if _choose(given[b], min_score, patience, owners[b], away[b], flags, slot):
            for a in range(axes + 3):
                values[b, a] = _ZERO
            for k in range(3):
                counts[b, k] = _ZERO
        if slot[0] >= 0:
            main = given[b, slot[0] % slots]
            known = _measure(main, min_score, ends, bones, centre, new)
            _follow(new, known, memory, mean_of, values[b], counts[b])
        ready = counts[b, 0] > 0 or memory[0] == 0
        for p in range(persons):
            here, same = slot[p] >= 0 and ready, slot[p] < slots
            person, last, held = given[b, max(slot[p], 0) % slots], before[b, p], had[b, p]
            turns = memory[2] > 0
            _in_frame(person, here, same, min_score, hold, turns, values[b], last, held, flags, now)
            _write_streams(now, last, parents, streams, flags, out[b, p])
            _remember(now, flags[0], last, held)


def joint_loop(
    body: BodyNormaliser,
    parents: npt.NDArray[np.intp],
    streams: Sequence[int],
    min_score: float,
    patience: int,
    hold: bool,
) -> Callable[[Array, Sequence[Array]], Array]:
    """Return the steps of joint streams as a function.

    It takes the skeletons [B, S, V, A + 1] and the state's arrays, in order, which it updates, and
    returns the tokens [B, P, V, C]. ``streams``: places in STREAMS.
    """
    sizes = np.array([body.bones, body.centre, patience, hold])
    numbers = parents.astype(np.int64), np.array(streams), body.memory, body.mean_of, sizes
    return partial(_step, (min_score, body.ends, *numbers), len(streams))


def _step(fixed: Sequence[Any], count: int, given: Array, state: Sequence[Array]) -> Array:
    batch, persons, joints, axes = state[-2].shape
    room = (
        np.empty(persons, np.int64),
        np.empty(axes + 3, np.float32),
        np.empty((joints, axes), np.float32),
        np.empty((2, max(joints, given.shape[1])), np.bool_),
    )
    out = np.empty((batch, persons, joints, count * axes), np.float32)
    _joint_streams(np.ascontiguousarray(given), *state, *fixed, *room, out)
    return out
