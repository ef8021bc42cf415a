"""Skeleton frontend: joint, bone and motion streams for graph networks, one step at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from costream.core.errors import SourceError
from costream.core.layouts import Layout, find_layout, joint_mapping
from costream.core.records import SkeletonFrame
from costream.models.frontend import frontend
from costream.models.skeleton.normalise import (
    Array,
    BodyNormaliser,
    FixedScaling,
    Flags,
    Normaliser,
    NTUNormaliser,
    ReferenceFrameState,
)
from costream.nn import fast
from costream.nn.state import State, zeros

STREAMS = ("joint", "bone", "joint_motion", "bone_motion", "bone_direction")
NORMALISATIONS = ("none", "body", "ntu", "kinetics", "pyskl")
IMAGE_SCALES = {"kinetics": (1.0, 1.0), "pyskl": (2.0, -2.0)}
_SHORTEST = 1e-3  # length of a bone with a direction
SLOTS = 8  # persons of a source; further ones are ignored


@dataclass
class JointsState(State):
    """Person assignment, frame of reference and previous step of each stream."""

    persons: PersonsState
    frame: ReferenceFrameState
    before: Tensor  # float32 [B, P, V, D], the joints of the previous step
    had: Tensor  # float32 [B, P, V], 1 where the previous step has a joint

    def __post_init__(self) -> None:
        self.arrays: list[Array] = []  # views of the tensors, for compiled steps


@frontend("joints", order=7)
class JointStreams(nn.Module):
    """Joints, bones and their motion, in one layout and one frame of reference.

    A token is float32 [P, V, C] with C = ``channels``: the streams concatenated, each of ``axes``
    coordinates (and a score). Absent persons are all zeros. There are no weights.

    Args:
        layout: joint layout of the network, a name or the path of a TOML file; skeletons of
            other layouts are converted.
        axes: coordinates per joint, 2 or 3. ``persons``: P.
        streams: any of joint; bone, a joint minus its parent; joint_motion and bone_motion, this
            step minus the previous one (zero at the first, and where nothing was detected before);
            bone_direction, a bone divided by its length, which the size and the distance of the
            person do not change.
        normalise: "none"; "body" (see ``BodyNormaliser``); "ntu" (3 axes, layout ntu-25) and
            "kinetics" (2 axes), as 2s-AGCN and continual-skeletons prepare these datasets;
            "pyskl", as pyskl does for 2 axes and, with ntu-25, for 3.
        origin, unit, heading: memory of "body", in steps.
        missing: value of a joint that a present person lacks: "hold", its last position in the
            frame of reference (before the first one it is zero, and so is its bone), or "zero".
        score: None, or the score as one more channel of each stream: in bones and motion its
            "difference" (continual-skeletons) or "mean" (pyskl).
        min_score: joints with at most this score are missing.
        patience: steps after which another person may take the place of an absent one.
        parents: parent of each joint, where its bone starts; default: as published for the layout.
    """

    takes = "skeleton"
    box = None

    def __init__(  # noqa: PLR0913 - the settings of a card
        self,
        layout: str,
        axes: int = 3,
        persons: int = 1,
        streams: Sequence[str] = ("joint",),
        normalise: str = "body",
        origin: int | None = 1,
        unit: int | None = None,
        heading: int | None = None,
        missing: str = "hold",
        score: str | None = None,
        min_score: float = 0.0,
        patience: int = 8,
        parents: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        _check("streams", streams, STREAMS)
        _check("normalise", [normalise], NORMALISATIONS)
        _check("missing", [missing], ("hold", "zero"))
        _check("score", [score], (None, "difference", "mean"))
        if axes not in (2, 3):
            raise ValueError(f"axes must be 2 or 3, not {axes}")
        if not isinstance(persons, int) or persons < 1:
            raise ValueError("persons must be a whole number of at least 1")
        self.layout = find_layout(layout)
        self.axes, self.persons, self.streams = axes, persons, tuple(streams)
        self.normalise, self.missing, self.score = normalise, missing, score
        self.min_score, self.patience = min_score, patience
        self.joints = len(self.layout.joints)
        self.token_width = self.channels = len(self.streams) * (axes + (score is not None))
        self._normaliser = self._make_normaliser(origin, unit, heading)
        if not isinstance(patience, int) or patience < 0:
            raise ValueError("patience must be a whole number of steps")
        starts = bone_parents(self.layout) if parents is None else parents
        if len(starts) != self.joints or not all(0 <= p < self.joints for p in starts):
            raise ValueError(f"parents must be {self.joints} numbers of joints")
        self._parents = np.array(starts)
        self._conversions: dict[Layout, npt.NDArray[np.intp] | None] = {}

    @property
    def places(self) -> str | None:
        """Unit of joints in a picture: "unit" (see ``FixedScaling``), "height"; None: in space."""
        if self.axes == 3:
            return None
        return "unit" if self.normalise in IMAGE_SCALES else "height"

    def check(self, layout: Layout, axes: int, model: str = "the model") -> None:
        """Raise SourceError if skeletons of this layout with ``axes`` axes are not supported."""
        if axes < self.axes:
            raise SourceError(
                f"the skeletons have {axes} axes, but {model} takes {self.axes}",
                hint="it needs 3D positions: use a video, a depth camera's or MediaPipe's joints,"
                " or a model for joints in pictures: -m costgcn-2d",
            )
        if axes > self.axes and self.normalise != "body":
            raise SourceError(
                f"the skeletons are 3D, but {model} takes 2D skeletons in image coordinates"
            )
        self._conversion(layout)

    def prepare(self, item: SkeletonFrame) -> npt.NDArray[np.float32]:
        """Return the joints in the network's layout and their scores, float32 [SLOTS, V, axes + 1].

        A joint that is the mean of several is missing if one of them is. For a network with two
        axes, 3D joints are projected from the front. Raises ValueError for arrays that do not fit
        the skeleton's layout, lack an axis or have numbers that are not finite.
        """
        joints, scores = item.joints[:SLOTS], item.scores[:SLOTS]
        if joints.ndim != 3 or joints.shape[2] < self.axes:
            raise ValueError(f"skeletons {list(joints.shape)} do not have {self.axes} axes")
        if not joints.shape[1] == scores.shape[1] == len(item.layout.joints):
            raise ValueError(f"skeletons {list(joints.shape)} do not fit {item.layout.name}")
        if not math.isfinite(np.add.reduce(joints, None) + np.add.reduce(scores, None)):
            raise ValueError("skeletons with numbers that are not finite")
        parts = self._conversion(item.layout)
        if parts is not None:
            joints, scores = joints[:, parts].mean(2), scores[:, parts].min(2)
        if joints.shape[2] > self.axes:  # in 3D, x points to the camera's left
            joints = joints * np.array((-1, 1, 1), np.float32)
        out = np.zeros((SLOTS, self.joints, self.axes + 1), np.float32)
        out[: len(joints), :, :-1] = joints[..., : self.axes]
        out[: len(joints), :, -1] = scores
        return out

    def forward(self, clip: Tensor) -> Tensor:
        """Return the tokens [B, T, P, V, C] of clips [B, T, S, V, axes + 1], step by step."""
        state = self.init_state(len(clip))
        return torch.stack([self.forward_step(x, state) for x in clip.unbind(1)], 1)

    def init_state(self, batch_size: int = 1) -> JointsState:
        """Return the initial state of a batch of streams."""
        like = torch.zeros(())
        shape = (batch_size, self.persons, self.joints)
        width = self.channels // len(self.streams)
        return JointsState(
            PersonsState(zeros(batch_size, self.persons), zeros(batch_size, self.persons)),
            self._normaliser.init_state(batch_size),
            zeros(*shape, width, like=like),
            zeros(*shape, like=like),
        )

    def forward_step(self, x: Tensor, state: JointsState) -> Tensor:
        """Return the tokens [B, P, V, C] of the next step of every stream, [B, S, V, axes + 1].

        The number of persons S is arbitrary. Raises ValueError for another shape, and for a state
        of another number of streams.
        """
        array = x.float().numpy()
        expected = len(state.before), self.joints, self.axes + 1
        if array.ndim != 4 or not array.shape[1] or (len(array), *array.shape[2:]) != expected:
            raise ValueError(f"skeletons {list(array.shape)} do not fit the state")
        if fast.enabled() and self._loop is not None:
            if not state.arrays:
                persons, frame = state.persons, state.frame
                tensors = (persons.owner, persons.away, frame.values, frame.counts)
                state.arrays = [t.numpy() for t in (*tensors, state.before, state.had)]
            return torch.from_numpy(self._loop(array, state.arrays))
        with np.errstate(all="ignore"):  # values of missing joints
            return torch.from_numpy(self._step(array, state))

    @cached_property
    def _loop(self) -> Callable[[Array, Sequence[Array]], Array] | None:
        """The compiled form of ``_step``; None for settings without one."""
        if self.score is not None or "bone_direction" in self.streams:
            return None
        if not isinstance(self._normaliser, BodyNormaliser):
            return None
        from costream.models.skeleton.joint_kernels import joint_loop

        numbers = [STREAMS.index(name) for name in self.streams]
        options = self.min_score, self.patience, self.missing == "hold"
        return joint_loop(self._normaliser, self._parents, numbers, *options)

    def _step(self, array: Array, state: JointsState) -> Array:
        visible = array[..., -1] > self.min_score
        present: Flags = np.any(visible, 2)
        chosen = select_persons(present, state.persons, self.patience)
        place = np.arange(len(array))[:, None], chosen.slot
        seen = visible[place] & chosen.here[..., None]
        joints = array[place] * seen[..., None]
        changed = chosen.changed
        placed, ready = self._normaliser(joints[..., :-1], seen, changed[:, 0], state.frame)
        if self.score is not None:
            placed = np.concatenate((placed, joints[..., -1:]), -1)
        here = (chosen.here & ready[:, None])[..., None]
        return self._tokens(placed, seen & here, here, ~changed[..., None], state)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step."""
        return self.persons * self.joints * self._normaliser.macs

    def _tokens(
        self, placed: Array, seen: Flags, here: Flags, same: Flags, state: JointsState
    ) -> Array:
        """Return the streams of the visible joints; store the joints for the next step.

        ``here``, ``same``: bool [B, P, 1], whether the person is present, and the same as before.
        """
        before, held = state.before.numpy(), state.had.numpy()
        had = (held > 0) & same
        if self.missing == "hold":
            has = (seen | had) & here
            joint = np.where(seen[..., None], placed, before) * has[..., None]
        else:
            has = np.broadcast_to(here, seen.shape)
            joint = placed * here[..., None]
        parts = {"joint": joint}
        if "joint_motion" in self.streams:
            parts["joint_motion"] = self._difference(joint, before, has & had)
        if any(name.startswith("bone") for name in self.streams):
            parts["bone"], has_bone = self._bones(joint, has)
            parts["bone_direction"] = parts["bone"].copy()
            length = np.linalg.norm(parts["bone"][..., : self.axes], axis=-1, keepdims=True)
            parts["bone_direction"][..., : self.axes] /= np.maximum(length, _SHORTEST)
        if "bone_motion" in self.streams:
            earlier, had_bone = self._bones(before, had)
            parts["bone_motion"] = self._difference(parts["bone"], earlier, has_bone & had_bone)
        tokens = np.concatenate([parts[name] for name in self.streams], -1)
        before[...], held[...] = joint, has
        return tokens

    def _bones(self, joint: Array, has: Flags) -> tuple[Array, Flags]:
        both = has & has[..., self._parents]
        return self._difference(joint, joint[:, :, self._parents], both), both

    def _difference(self, joint: Array, other: Array, valid: Flags) -> Array:
        difference = joint - other
        if self.score == "mean":
            difference[..., -1] = (joint[..., -1] + other[..., -1]) / 2
        return difference * valid[..., None]

    def _make_normaliser(
        self, origin: int | None, unit: int | None, heading: int | None
    ) -> Normaliser:
        axes, kind = self.axes, self.normalise
        if kind == "none":
            return FixedScaling()
        if kind == "body":
            return BodyNormaliser(self.layout, axes, origin, unit, heading)
        if axes == 2 and kind in IMAGE_SCALES:
            return FixedScaling((0.5, -0.5), IMAGE_SCALES[kind])
        if axes == 3 and kind in ("ntu", "pyskl") and self.layout.name == "ntu-25":
            return NTUNormaliser(fixed=kind == "pyskl")
        raise ValueError(f"normalise {kind!r} does not support {self.layout.name} with {axes} axes")

    def _conversion(self, layout: Layout) -> npt.NDArray[np.intp] | None:
        """Return the joints [V, K] of ``layout`` whose means are the joints; None: same layout."""
        if layout not in self._conversions:
            found = None
            if layout.joints != self.layout.joints:
                parts = joint_mapping(layout, self.layout)
                size = math.lcm(*map(len, parts))
                found = np.array([p * (size // len(p)) for p in parts])
            self._conversions[layout] = found
        return self._conversions[layout]


def _check(name: str, values: Sequence[object], allowed: Sequence[object]) -> None:
    """Raise ValueError for no values, or values that are not allowed."""
    wrong = [value for value in values if value not in allowed]
    if wrong or not values:
        choices = " or ".join(map(str, allowed))
        raise ValueError(f"{name} must be {choices}, not {', '.join(map(str, wrong)) or 'empty'}")


# Layouts where published code does not take the bones from the graph. A joint that is its own
# parent has no bone.
_PUBLISHED = {
    "openpose-18": (0, 0, 1, 2, 3, 1, 5, 6, 2, 8, 9, 5, 11, 12, 0, 0, 14, 15),  # 2s-AGCN
    "coco-17": (0, 0, 0, 1, 2, 0, 0, 5, 6, 7, 8, 0, 0, 11, 12, 13, 14),  # pyskl
}


def bone_parents(layout: Layout) -> tuple[int, ...]:
    """Return the parent of each joint, where its bone starts; the centre is its own parent."""
    if layout.name in _PUBLISHED:
        return _PUBLISHED[layout.name]
    parents = dict(layout.bones)
    return tuple(parents.get(joint, joint) for joint in range(len(layout.joints)))


@dataclass
class PersonsState(State):
    """The person in each of the P places of a network."""

    owner: Tensor  # int64 [B, P], the person's slot in the source + 1; 0: none yet
    away: Tensor  # int64 [B, P], steps since the owner was last visible


@dataclass(frozen=True)
class SelectedPersons:
    """Persons selected at one step."""

    slot: npt.NDArray[np.intp]  # [B, P], slot of the source
    here: Flags  # [B, P], whether the person is visible
    changed: Flags  # [B, P], whether it is another person than at the previous step


def select_persons(present: Flags, state: PersonsState, patience: int) -> SelectedPersons:
    """Return the persons selected for a network; ``present``: bool [B, S], the source's slots.

    A place belongs to one person until that person has been absent for more than ``patience``
    steps; then the first other person who is visible and has no earlier place takes it.
    """
    owners, away = state.owner.numpy(), state.away.numpy()
    slot, here = np.maximum(owners - 1, 0), np.zeros(owners.shape, np.bool_)
    changed = np.zeros_like(here)
    for row, visible in enumerate(present):
        free = visible.nonzero()[0].tolist()  # slots that earlier places have not taken
        for place, owner in enumerate((owners[row] - 1).tolist()):
            if owner not in free:
                away[row, place] += 1
                taken = 0 <= owner < len(visible) and visible[owner]
                lost = owner < 0 or taken or away[row, place] > patience
                if not lost or not free:
                    continue
                owner = free[0]
                owners[row, place], changed[row, place] = owner + 1, True
            free.remove(owner)
            away[row, place], slot[row, place], here[row, place] = 0, owner, True
    return SelectedPersons(slot, here, changed)
