"""Persons in films as the pose estimator gives them, with what is known of what they do.

``tracks`` finds their joints. What a film shows is known for clips, seldom for steps, and never for
each person: a step has a set of labels that may be true. Films of one place, or of one repository,
are one source, and never on both sides of a split.
"""

from __future__ import annotations

import csv
import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.core.layouts import MEDIAPIPE_33
from costream.core.records import SkeletonFrame
from costream.labels.recording import BACKGROUND
from costream.models.skeleton.joints import JointStreams
from costream.training.skeleton.motions import Motion
from weights.recipes.common import read_member
from weights.recipes.skeleton.sets import RATE_HZ
from weights.recipes.skeleton.tracks import Track, is_used, read_tracks

FOLDS = 5  # parts of the sources, of which one at a time is left out
HOMES = ("1", "3")  # numbers of GMDCSA24's persons of whom is learnt
SHORTEST_S = 0.8  # of a track; shorter ones are seldom a person
# Labels of the clips of action_clips: what the person who is seen longest does.
EXERCISES = {
    "bicep_curl": "arm curl",
    "bicycle_crunch": "crunch",
    "boxing": "punch",
    "crunch": "crunch",
    "deadlift": "deadlift",
    "glute_bridge": "glute bridge",
    "golf": "golf swing",
    "high_knees": "run",
    "jumping_jack": "jumping jack",
    "lunge": "lunge",
    "plank": "plank",
    "push_up": "push up",
    "running": "run",
    "russian_twist": "crunch",
    "side_lunge": "side lunge",
    "side_plank": "plank",
    "squat": "squat",
    "walking": "walk",
}
# What films show whose clips are called otherwise: by the films' names, and what they say.
_RENAMED = {
    "bottomlift.mp4": "leg_lift",
    "sidelunges.mp4": "side_lunge",
    "standingcrunch.mp4": "standing_crunch",
}
# Exercises in which the body goes down and up again. Who stands upright meanwhile does not do them:
# a third of the time of clips that are called so.
DOWN_AND_UP = ("deadlift", "lunge", "side lunge", "squat")
_UPRIGHT = 0.2  # lengths of the trunk by which the neck is at most below its highest place
_AROUND_S, _BETWEEN_S = 0.3, 0.7  # around such a motion; in which it may be or not
STANDING = (BACKGROUND, "walk")  # what people do who meet, stand and pass by
QUIET = (*STANDING, "sit", "sit down", "stand up", "walk turn left", "walk turn right", "carry")
# Clips of other things: what may be shown of them.
_OTHERS: dict[str, tuple[str, ...]] = {
    "no_interaction": STANDING,
    "handshake": STANDING,
    "hug": STANDING,
    "kick": (*STANDING, "kick", "side kick"),
    "punch": (*STANDING, "punch"),
    "push": (*STANDING, "push", "punch"),
    "fight": ("fight",),
    "no_fight": QUIET,
    "bench_press": (BACKGROUND, "lie"),
    "row": (BACKGROUND, "deadlift", "bend"),
    "kickback": (BACKGROUND,),
    "shoplifting": (*QUIET, "pick up", "pick up and throw", "bend"),
    "smoking": (*QUIET, "drink", "phone"),
    "neck_flexion": (BACKGROUND, "neck relax", "sit"),
    "neck_rotation": (BACKGROUND, "neck relax", "sit"),
    "presenting_news": (BACKGROUND, "sit"),
    "playing_guitar": (BACKGROUND, "sit"),
    "singing": (BACKGROUND, "sit"),
    "shuffling_cards": (BACKGROUND, "sit"),
    "applying_makeup": (BACKGROUND, "sit"),
    "washing_hands": (BACKGROUND,),
    "welding": (BACKGROUND, "sit"),
    "camel_riding": (BACKGROUND, "sit"),
    "segway_riding": (BACKGROUND,),
    "motorbike_riding": (BACKGROUND, "sit"),
    "cricket": (BACKGROUND, "run"),
    "archery": (BACKGROUND,),
    "dance": (BACKGROUND,),
    "calf_raise": (BACKGROUND, "stand on toe"),
    "leg_extension": (BACKGROUND, "sit"),
    "leg_press": (BACKGROUND, "sit", "lie"),
    "leg_lift": (BACKGROUND, "lie"),
    "standing_crunch": (BACKGROUND, "leg raise", "hurdle step"),
    "lat_pulldown": (BACKGROUND, "sit"),
    "chest_fly": (BACKGROUND, "sit", "lie"),
    "tricep_extension": (BACKGROUND, "arm curl"),
    "shoulder_press": (BACKGROUND, "sit", "raise both hands"),
    "arm_raise": (BACKGROUND, "raise arm sideways", "raise left hand", "raise right hand"),
    "elbow_flexion": (BACKGROUND, "arm curl"),
    "finger_flexion": (BACKGROUND, "sit"),
    "wrist_flexion": (BACKGROUND, "sit"),
}
_HOME = {"walk": "walk", "fall": "fall", "lie": "lie", "sit": "sit", "stand": BACKGROUND}
_HOME_RAW = {"Drinking": "drink", "Eating": "drink", "Reading": BACKGROUND}
_AFTER_S = 1.0  # after a fall that a fall may still be shown


@dataclass(frozen=True)
class FilmPerson:
    """A person in a film at ``RATE_HZ``.

    ``joints``: [T, 1, V, 3], places and scores as ``JointStreams.prepare`` returns them.
    ``may``: bool [T, K], the labels that may be true. ``sure``: the label of the clip if this is
    the person whom it is about, else None. ``fold``: the part of the sources, see ``folds_of``; -1:
    a test, which nothing is learnt from. ``start_s``: of the first step, in the film.
    """

    film: str
    kind: str  # the label of the clip as its source calls it
    source: str
    fold: int
    joints: npt.NDArray[np.float32]
    may: npt.NDArray[np.bool_]
    sure: str | None
    start_s: float


# Labels that may be true at a time, seconds in the film; whether the person is the main one.
Rule = Callable[[float, bool], Iterable[str]]


@dataclass(frozen=True)
class _Film:
    path: Path
    kind: str
    source: str
    rule: Rule
    sure: str | None = None
    test: bool = False


def read_films(packs: Path, tracks: Path, labels: Sequence[str]) -> list[FilmPerson]:
    """Return the persons of all films. UsageError if packs or tracks are missing.

    ``tracks``: the folder that ``weights.recipes.skeleton.tracks`` writes.
    """
    frontend = JointStreams("body-15", 2, min_score=0.3)
    columns = {label: k for k, label in enumerate(labels)}
    films = [*_clips(packs, tracks), *_actions(packs, tracks)]
    folds = folds_of([(film.source, film.sure or film.kind) for film in films if not film.test])
    out = []
    for film in films:
        out += _persons(film, frontend, columns, -1 if film.test else folds[film.source])
    return out


def folds_of(films: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the fold of each source of films, which are given as source and kind.

    Sources that show the same kinds of films, of rare ones above all, are in different folds if
    there are enough folds.
    """
    kinds: dict[str, set[str]] = {}
    for source, kind in films:
        kinds.setdefault(source, set()).add(kind)
    sizes = Counter(source for source, _ in films)
    rare = Counter(kind for some in kinds.values() for kind in some)
    out: dict[str, int] = {}
    for source in sorted(kinds, key=lambda name: (-len(kinds[name]), -sizes[name], name)):
        alike, full = [0.0] * FOLDS, [0] * FOLDS
        for other, fold in out.items():
            alike[fold] += sum(1 / rare[kind] for kind in kinds[other] & kinds[source])
            full[fold] += sizes[other]
        out[source] = min(range(FOLDS), key=lambda k: (round(alike[k], 3), full[k]))
    return out


def read_background(tracks: Path) -> list[FilmPerson]:
    """Return the persons of the films of samples and images_det, in which nobody acts."""
    frontend = JointStreams("body-15", 2, min_score=0.3)
    out = []
    for pack in ("samples", "images_det"):
        for path in sorted((tracks / pack).rglob("*.npz")):
            if path.stem != "exercise_three":
                film = _Film(path, path.stem, path.stem, lambda *_: STANDING)
                out += _persons(film, frontend, {BACKGROUND: 0, "walk": 1}, -1)
    return out


def place(track: Track, frontend: JointStreams) -> tuple[float, npt.NDArray[np.float32]]:
    """Return the start, seconds, and the joints [T, 1, V, 3] of a track at ``RATE_HZ``.

    As a stream at this rate shows them: the newest frame of each step, and nobody where the person
    is not in it.
    """
    first = float(track.times_s[track.steps[0]])
    last = float(track.times_s[track.steps[-1]])
    grid = first + np.arange(int((last - first) * RATE_HZ) + 1) / RATE_HZ
    frames = np.searchsorted(track.times_s, grid + 1e-3, side="right") - 1
    rows = np.searchsorted(track.steps, frames).clip(max=len(track.steps) - 1)
    here = track.steps[rows] == frames
    wide = np.array((track.aspect, -1), np.float32)
    joints = np.zeros((len(grid), 1, len(MEDIAPIPE_33.joints), 2), np.float32)
    scores = np.zeros(joints.shape[:3], np.float32)
    joints[here, 0], scores[here, 0] = track.places[rows[here]] * wide, track.scores[rows[here]]
    return first, np.stack(
        [
            frontend.prepare(SkeletonFrame(k, t, x, s, MEDIAPIPE_33))[:1]
            for k, (t, x, s) in enumerate(zip(grid.tolist(), joints, scores, strict=True))
        ]
    )


def _persons(
    film: _Film, frontend: JointStreams, columns: Mapping[str, int], fold: int
) -> list[FilmPerson]:
    out = []
    tracks = _tracks(film.path)
    seen = [_size(track) for track in tracks]
    for k, track in enumerate(tracks):
        start_s, joints = place(track, frontend)
        if len(joints) < SHORTEST_S * RATE_HZ:
            continue
        main = seen[k] == max(seen)
        may = np.zeros((len(joints), len(columns)), np.bool_)
        for step in range(len(joints)):
            named = film.rule(start_s + step / RATE_HZ, main)
            may[step, [columns[label] for label in named if label in columns]] = True
        sure = film.sure if main else None
        if sure in DOWN_AND_UP:
            may[_upright(joints[:, 0], _AROUND_S), columns[BACKGROUND]] = True
            may[_upright(joints[:, 0], _BETWEEN_S), columns[sure]] = False
        out.append(
            FilmPerson(film.path.stem, film.kind, film.source, fold, joints, may, sure, start_s)
        )
    return out


def _upright(joints: npt.NDArray[np.float32], around_s: float) -> npt.NDArray[np.bool_]:
    """Return the steps, bool [T], with nothing but upright ones around them; joints [T, V, 3]."""
    hips, neck = joints[:, 0], joints[:, 1]
    seen = (hips[:, -1] > 0) & (neck[:, -1] > 0)
    if not seen.any():
        return seen
    trunk = np.percentile(np.linalg.norm((neck - hips)[seen, :2], axis=1), 75)
    drop = np.percentile(neck[seen, 1], 95) - neck[:, 1]
    low = np.where(seen, drop > _UPRIGHT * trunk, True)
    around = round(around_s * RATE_HZ)
    some = np.convolve(low, np.ones(2 * around + 1))[around : around + len(low)]
    upright: npt.NDArray[np.bool_] = some < 0.5
    return upright


def _table(packs: Path, pack: str, name: str) -> list[dict[str, str]]:
    path = packs / f"{pack}.tar"
    if not path.is_file():
        raise UsageError("the films are missing", where=path)
    with tarfile.open(path) as archive:
        text = read_member(archive, f"{pack}/{name}").decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def _clips(packs: Path, tracks: Path) -> Iterable[_Film]:
    for row in _table(packs, "action_clips", "labels.csv"):
        kind, source = _RENAMED.get(row["origin_path"], row["label"]), row["source"]
        path = tracks / "action_clips" / "action_clips" / f"{row['file'][:-4]}.npz"
        if "segmented_set" in row["origin_path"]:
            number = 1 if "segmented_set1" in row["origin_path"] else 2
            source = f"UT-Interaction set {number}"
        yield _Film(path, kind, source, _clip_rule(kind), EXERCISES.get(kind))


def _clip_rule(kind: str) -> Rule:
    label = EXERCISES.get(kind)
    if label is None:
        others = _OTHERS.get(kind, ())
        return lambda time_s, main: others
    return lambda time_s, main: (label,) if main else (label, *QUIET)


def _actions(packs: Path, tracks: Path) -> Iterable[_Film]:
    timed: dict[str, list[dict[str, str]]] = {}
    for row in _table(packs, "actions_video", "segments.csv"):
        timed.setdefault(row["file"], []).append(row)
    for row in _table(packs, "actions_video", "labels.csv"):
        file, person = row["file"], row["subject_or_source"]
        path = tracks / "actions_video" / "actions_video" / f"{file[:-4]}.npz"
        kind = row["label"]
        if not is_used(file):
            continue
        if "gmdcsa24" in file:
            rule, source = _home_rule(timed.get(file, ())), f"GMDCSA24 {person}"
            yield _Film(path, kind, source, rule, test=person[-1] not in HOMES)
            continue
        test = row["split"] == "val"
        yield _Film(path, kind, f"CCTV {person}", _clip_rule(kind), test=test)


def _home_rule(segments: Sequence[Mapping[str, str]]) -> Rule:
    """Return the labels of the segments at a time; what nobody has labelled may be quiet things."""
    falls = [float(s["start_s"]) for s in segments if s["label"] == "fall"]

    def rule(time_s: float, main: bool) -> Iterable[str]:
        out: set[str] = set()
        for segment in segments:
            if float(segment["start_s"]) <= time_s < float(segment["end_s"]):
                label = _HOME.get(segment["label"]) or _HOME_RAW.get(segment["label_raw"])
                out |= {label} if label else {*QUIET, "squat"}
        ends = [float(s["end_s"]) for s in segments if s["label"] == "fall"]
        if any(0 <= time_s - end < _AFTER_S for end in ends):
            out |= {"fall", "lie"}
        if out:
            return out
        return () if falls else (*QUIET, "pick up", "bend", "drink", "phone")

    return rule


def read_couples(packs: Path, tracks: Path) -> list[Motion]:
    """Return the two people of each clip of UT-Interaction, [T, 2, V, 3], in pictures.

    Those whom the detector finds largest and longest. The label is that of the clip as its source
    calls it, the group the set, which is a place. UsageError if packs or tracks are missing.
    """
    frontend = JointStreams("body-15", 2, min_score=0.3)
    out = []
    for film in _clips(packs, tracks):
        if film.source.startswith("UT-Interaction"):
            found = sorted(_tracks(film.path), key=_size, reverse=True)[:2]
            placed = [place(track, frontend) for track in found]
            if placed:
                out.append(Motion(film.path.stem, film.kind, film.source, _together(placed)))
    return out


def _together(placed: Sequence[tuple[float, npt.NDArray[np.float32]]]) -> npt.NDArray[np.float32]:
    """Return the joints [T, 2, V, 3] of one or two tracks, given from their starts on."""
    first = min(start_s for start_s, _ in placed)
    begins = [round((start_s - first) * RATE_HZ) for start_s, _ in placed]
    steps = max(begin + len(x) for begin, (_, x) in zip(begins, placed, strict=True))
    joints = np.zeros((steps, 2, *placed[0][1].shape[2:]), np.float32)
    for slot, (begin, (_, x)) in enumerate(zip(begins, placed, strict=True)):
        joints[begin : begin + len(x), slot] = x[:, 0]
    return joints


def _tracks(path: Path) -> list[Track]:
    if not path.is_file():
        raise UsageError(
            "the joints of a film are missing",
            where=path,
            hint="run python -m weights.recipes.skeleton.tracks",
        )
    return [track for track in read_tracks(path) if len(track.steps) > 1]


def _size(track: Track) -> float:
    """Return the sum of the heights of a person over the frames of a track."""
    return float(np.ptp(track.places[..., 1], 1).sum())
