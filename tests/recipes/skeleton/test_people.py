"""Persons in films, figures that fall and exercise, the estimator's errors, and the choices."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from costream.core.errors import UsageError
from costream.core.layouts import BODY_15
from costream.models.skeleton.joints import JointStreams
from costream.training.skeleton.motions import Motion, single
from costream.weights_io.file import read_weights
from kit.data_packs import packs as needed
from kit.paths import RESEARCH
from weights.recipes.skeleton.exercises import exercises
from weights.recipes.skeleton.films import (
    FOLDS,
    FilmPerson,
    folds_of,
    place,
    read_couples,
    read_films,
)
from weights.recipes.skeleton.learning import set_loss
from weights.recipes.skeleton.people import PeopleRecipeSize, make
from weights.recipes.skeleton.people_choices import LEAST, NEVER, choose
from weights.recipes.skeleton.seen import EstimatorErrors, FilmStreams
from weights.recipes.skeleton.sets import MIRRORED, SETS
from weights.recipes.skeleton.streams import Changes, StreamBatches
from weights.recipes.skeleton.tracks import Track, is_used

HIPS, HEAD = (BODY_15.joints.index(name) for name in ("hips", "head"))
LABELS = ["background", "squat", "wave left hand", "wave right hand"]


@pytest.fixture(scope="module")
def made() -> dict[str, list[Motion]]:
    out: dict[str, list[Motion]] = {}
    for motion in exercises(0):
        out.setdefault(motion.label, []).append(motion)
    return out


def write_tracks(packs: Path, pack: str, folder: Path) -> None:
    """Write a file of tracks for each film of a pack: two persons of noise."""
    rng = np.random.default_rng(0)
    frame, number = np.repeat(np.arange(24), 2), np.tile([1, 2], 24)
    with tarfile.open(packs / f"{pack}.tar") as archive:
        names = [name for name in archive.getnames() if is_used(name)]
    for name in names:
        path = folder / pack / f"{name[:-4]}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        places = rng.uniform(0.4, 0.6, (48, 33, 2)).astype(np.float32)
        np.savez(
            path,
            time_s=np.arange(24) / 12, size=[640, 480], frame=frame, number=number, places=places,
            scores=np.ones((48, 33)), space=np.zeros((48, 33, 3)),
        )  # fmt: skip


@pytest.mark.long
def test_from_packs_to_weights(tmp_path: Path) -> None:
    names = ("action_clips", "actions_video")
    packs = needed(*(f"{name}.tar" for name in names), *(f"skel_{name}.npz" for name in SETS))
    for name in names:
        write_tracks(packs, name, tmp_path / "tracks")
    size = PeopleRecipeSize(base=2, films=1, last=1, every=12, trees=4)
    start = RESEARCH / "costgcn-2d.safetensors"
    path = make(packs, tmp_path / "tracks", size, 0, tmp_path, start)
    card = read_weights(path).card
    assert {"background", "squat", "fall", "fight", "wave left hand"} <= set(card.labels)
    assert set(card.timeline.thresholds) == set(card.labels) - {"background"}
    exercises, *sets = card.metrics.values()
    assert exercises["costgcn-2d"]["sequences"] > 80
    assert all("costgcn-2d" in rows for rows in sets)
    assert path.with_suffix(".md").is_file()


def person(steps: int = 40, label: int = 1, kind: str = "squat") -> FilmPerson:
    rng = np.random.default_rng(steps)
    joints = np.ones((steps, 1, 15, 3), np.float32)
    joints[..., :2] = rng.normal(0, 0.1, (1, 1, 15, 2)) + rng.normal(0, 0.01, (steps, 1, 15, 2))
    may = np.zeros((steps, len(LABELS)), bool)
    may[:, label] = True
    sure = LABELS[label] if label else None
    return FilmPerson(f"{kind} {steps}", kind, "source", 0, joints, may, sure, 0.0)


def test_the_loss_of_sets_is_that_of_a_label_or_nothing():
    logits = torch.randn(2, 5, 4, dtype=torch.float64)
    labels = torch.randint(4, (2, 5))
    one = torch.nn.functional.one_hot(labels, 4).bool()
    weights = torch.rand(2, 5, dtype=torch.float64)
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none"
    )
    expected = (each * weights.flatten()).sum() / weights.sum()
    torch.testing.assert_close(set_loss(logits, one, weights, 0.0), expected)
    everything = torch.ones(2, 5, 4, dtype=torch.bool)
    assert abs(float(set_loss(logits, everything, weights, 0.0))) < 1e-12
    nothing = torch.zeros(2, 5, 4, dtype=torch.bool)
    assert float(set_loss(logits, nothing, weights, 0.1)) == 0


@pytest.mark.long
def test_the_figure_falls_lies_and_squats(made):
    def height(motion: Motion) -> np.ndarray:
        return motion.joints[:, 0, HEAD, 1] - motion.joints[0, 0, HIPS, 1]

    for fall in made["fall"]:
        assert height(fall)[-1] < height(fall)[0] - 1.0  # mean bones: 0.28 m
    for lie in made["lie"]:
        x = lie.joints[:, 0]
        assert np.abs(x[:, HEAD, 1] - x[:, HIPS, 1]).max() < 1.2
    for squat in made["squat"]:
        assert np.ptp(squat.joints[:, 0, HIPS, 1]) > 0.4
    assert {"plank", "push up", "jumping jack", "deadlift", "lunge", "sit", "crunch"} <= set(made)
    assert all(np.isfinite(m.joints).all() for some in made.values() for m in some)


def test_a_track_is_what_a_stream_of_the_rate_of_the_model_sees():
    times = np.arange(24) / 12
    steps = np.array([6, 7, 8, 12, 13, 14])
    places = np.linspace(0, 1, 6, dtype=np.float32)[:, None, None] * np.ones((6, 33, 2), np.float32)
    track = Track(
        1, steps, times, places, np.ones((6, 33), np.float32), np.zeros((6, 33, 3), np.float32), 2.0
    )
    start_s, joints = place(track, JointStreams("body-15", 2))
    assert start_s == pytest.approx(0.5)
    assert joints.shape == (11, 1, 15, 3)  # 0.5 s to 1.17 s
    assert joints[:3, 0, 0, -1].tolist() == [1, 1, 1]
    assert not joints[5:7, 0, :, -1].any()  # nobody in the frames 9 to 11
    assert joints[-1, 0, 0, :2].tolist() == pytest.approx([2, -1])  # in heights of the picture


def test_folds_part_the_sources_of_rare_kinds_first():
    films = [(f"gym {k}", "squat") for k in range(8)] + [(f"gym {k}", "plank") for k in range(3)]
    films += [("street", "walk")] * 20
    folds = folds_of(films)
    assert len({folds[f"gym {k}"] for k in range(3)}) == 3
    assert Counter(folds[f"gym {k}"] for k in range(8)).most_common(1)[0][1] <= 2
    assert set(folds.values()) == set(range(FOLDS))
    assert folds_of(films[::-1]) == folds


def test_only_some_of_the_fight_films_are_used():
    assert is_used("actions_video/clips/fight_cctv/fi003.mp4")
    assert not is_used("actions_video/clips/fight_cctv/nofi004.mp4")
    assert is_used("clips/gmdcsa24/s1_fall_13.mp4")
    assert not is_used("labels.csv")


def write_films(folder: Path, pack: str, header: str, *rows: str) -> None:
    """Write a pack that has nothing but its tables."""
    with tarfile.open(folder / f"{pack}.tar", "w") as archive:
        for name, lines in (("labels.csv", [header, *rows]), ("segments.csv", ["file,label"])):
            data = "\n".join(lines).encode()
            member = tarfile.TarInfo(f"{pack}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


CLIPS = "file,label,source,origin_path"


def write_clip(folder: Path, clip: str, places: np.ndarray) -> None:
    """Write the tracks of one person, 12 pictures a second, and a pack of homes without films."""
    steps = len(places)
    path = folder / "action_clips" / "action_clips" / "clips" / f"{clip}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        time_s=np.arange(steps) / 12, size=[640, 480], frame=np.arange(steps),
        number=np.ones(steps), places=places, scores=np.ones((steps, 33)),
        space=np.zeros((steps, 33, 3)),
    )  # fmt: skip
    write_films(folder, "actions_video", "file,label,subject_or_source,split")


def test_a_film_whose_label_is_not_what_it_shows_has_the_label_of_its_name(tmp_path):
    rows: list[str] = []
    places = np.random.default_rng(0).uniform(0.4, 0.6, (24, 33, 2))
    for clip, film in {"a": "lunges.mp4", "b": "sidelunges.mp4"}.items():
        write_clip(tmp_path, clip, places)
        rows.append(f"clips/{clip}.mp4,lunge,gym {clip},{film}")
    write_films(tmp_path, "action_clips", CLIPS, *rows)
    labels = ["background", "lunge", "side lunge"]
    one, other = read_films(tmp_path, tmp_path, labels)
    assert (one.sure, other.sure) == ("lunge", "side lunge")
    assert one.may.all(0).tolist() == [False, True, False]
    assert other.may.all(0).tolist() == [False, False, True]


@pytest.mark.parametrize(("kind", "stands"), [("squat", True), ("plank", False)])
def test_who_stands_upright_in_a_clip_of_squats_does_not_squat(tmp_path, kind, stands):
    places = np.full((72, 33, 2), 0.5)
    places[:, 11:15, 1] = 0.3  # shoulders and elbows, y down
    places[30:42, 11:25, 1] += 0.1  # from 2.5 s to 3.5 s: half a trunk, with the hips
    write_clip(tmp_path, "a", places)
    write_films(tmp_path, "action_clips", CLIPS, f"clips/a.mp4,{kind},gym,a.mp4")
    (film,) = read_films(tmp_path, tmp_path, ["background", kind])
    may = film.may.tolist()
    assert may[45] == [False, True]  # steps of 1/15 s
    for step, here in ((10, [True, False]), (80, [True, False]), (30, [True, True])):
        assert may[step] == (here if stands else [False, True])


def test_missing_films_are_told(tmp_path):
    with pytest.raises(UsageError, match="films are missing"):
        read_films(tmp_path, tmp_path, LABELS)
    with pytest.raises(UsageError, match="films are missing"):
        read_couples(tmp_path, tmp_path)


def test_errors_are_those_of_the_tracks():
    lost = person()
    lost.joints[:, 0, 10:, 2] = 0
    errors = EstimatorErrors([lost])
    assert errors.rates.missing["legs"] == 1
    x, seen = torch.randn(64, 20, 15, 2), torch.ones(64, 20, 15, dtype=torch.bool)
    y, left = errors(x, seen, torch.Generator().manual_seed(0))
    with_errors = ~left[:, 0, 10]
    assert 0.4 < with_errors.float().mean() < 0.8
    assert not left[with_errors][:, :, 10:].any()
    assert torch.equal(x[~with_errors], y[~with_errors])


def test_films_are_drawn_with_the_labels_that_may_be_true():
    persons = [person(label=2), person(200, label=0, kind="no_fight")]
    streams = FilmStreams(persons, LABELS, MIRRORED, EstimatorErrors(persons))
    batch = streams.draw(32, 60, torch.Generator().manual_seed(1))
    known = batch.labels.any(-1)
    assert batch.labels.shape == (32, 60, 4)
    waving = batch.labels[..., 2] | batch.labels[..., 3]  # in a mirror the other hand
    assert batch.labels[..., 2].any()
    assert batch.labels[..., 3].any()
    assert torch.equal(known, waving | batch.labels[..., 0])
    assert not batch.weights[~known].any()


def test_who_has_sat_down_sits():
    x = np.zeros((30, 15, 3))
    x[..., 1] = np.linspace(0, 3, 15)
    motion = Motion("set 0", "sit down", "", single(x + 1e-3))
    labels = ["background", "sit", "sit down"]
    streams = StreamBatches([motion], labels, {}, Changes(), resting={"sit down": "sit"})
    batch = streams.draw(64, 96, torch.Generator().manual_seed(0))
    assert batch.labels.unique().tolist() == [0, 1, 2]
    after = (batch.labels[:, 1:] == 1) & (batch.labels[:, :-1] == 2)
    assert after.any()
    first = batch.labels[:, 0]
    assert not (first == 1).any()  # nobody sits before they have sat down


@pytest.mark.parametrize("confused", [False, True])
def test_a_label_that_is_wrong_as_often_as_right_is_never_shown(confused: bool):
    films = [person(60 + k, label=k % 2) for k in range(12)]
    rows = []
    for film in films:
        logits = np.zeros((len(film.may) // 2, 4))
        logits[:, np.flatnonzero(film.may[0])[0]] = 6
        rows.append(logits)
    if confused:
        for k in range(0, 12, 2):  # those who do nothing
            rows[k][:, 1] = 20
    choices = choose(films, rows, [], [], LABELS, 7.5)
    thresholds = choices.timeline.thresholds
    assert (thresholds["squat"] == NEVER) == confused
    assert thresholds["wave left hand"] == thresholds["wave right hand"] == LEAST  # nobody waves
    assert sum(row["share"] for row in choices.reliability) == pytest.approx(1)
