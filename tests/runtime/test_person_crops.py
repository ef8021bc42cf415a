"""An action of each person whom a detector finds: their crops are rows of one batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import costream
from costream.core.errors import ModelError, UsageError
from costream.core.records import Alert, Box, Objects, Prediction, Segment, VideoFrame
from costream.models.base import GatedModel, Model, StepResult
from costream.models.catalogue import load_model
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.detector import ObjectModel
from costream.models.eventful.feature_maps import View
from costream.models.images import CentreCrop, Pixels
from costream.models.persons import PersonsModel, with_persons
from costream.models.streaming import StreamingModel
from costream.nn.eventful.counts import Operations
from costream.runtime.crops import MARGIN, SMOOTH_S, CropFinder
from costream.runtime.persons import MOST, PersonRows
from costream.ui.run.state import RunState
from costream.ui.run.view import LiveLayout
from costream.ui.screen import Viewport
from costream.weights_io.card import Card
from kit.action_nets import small_model
from kit.media import make_video
from kit.object_nets import BOX, BrightFinder, object_card, random_model
from kit.video_nets import small_net

RATE_HZ = 8
SIZE = (320, 240)


def scene(i: int, *figures: tuple[float, float, float]) -> tuple[VideoFrame, StepResult]:
    """A frame, and what a detector finds in it: figures at x, y (middle) of a height."""
    rgb = np.random.default_rng(i).integers(0, 90, (SIZE[1], SIZE[0], 3), np.uint8)
    boxes = []
    for k, (x, y, height) in enumerate(figures):
        corners = x - height / 6, y - height / 2, x + height / 6, y + height / 2
        left, top, right, bottom = (max(0, round(c)) for c in corners)
        rgb[top:bottom, left:right, k % 3] += 100 + i % 60
        boxes.append(Box(*corners, 0.9 - k / 100, "person"))
    boxes.append(Box(0, 0, 9, 9, 0.2, "person"))  # below the threshold
    frame = VideoFrame(i, i / RATE_HZ, i, lambda: rgb, size=SIZE)
    return frame, StepResult(None, None, (False,), 5, 7, 0.0, 0.0, objects=(tuple(boxes),))


def walk(steps: int) -> list[tuple[VideoFrame, StepResult]]:
    """One person all the time, hidden for half a second; another from step 10 to 20."""
    out = []
    for i in range(steps):
        there = [] if 14 <= i < 18 else [(60.0 + 4 * i, 120.0, 120.0)]
        there += [(260.0 - 3 * i, 110.0, 90.0)] if 10 <= i < 20 else []
        out.append(scene(i, *there))
    return out


def small_cox3d() -> StreamingModel:
    net = small_net("x3d", start="replicate")
    card = Card(
        "tiny3d",
        "action recognition",
        "cox3d",
        {},
        labels=("none", "wave", "kick"),
        background="none",
        frontend="crop",
        rate_hz=RATE_HZ,
    )
    return StreamingModel(card, net.float(), CentreCrop(19, 19))


@pytest.mark.parametrize("make", [lambda: load_model("cooadtr"), small_cox3d])
def test_a_row_is_the_network_alone_on_the_crops_of_its_person(make: Any) -> None:
    """Also when others come and go, in networks with a clock for the whole batch too."""
    model: StreamingModel = make()
    assert model.info.box is not None
    finder = CropFinder(model.info.box, "nanodet", lambda label: 0.5)
    rows, alone = PersonRows(model, finder), {}  # type: ignore[var-annotated]
    seen: dict[int, list[int]] = {}
    for i, (frame, whole) in enumerate(walk(36)):
        got = rows.step(frame, whole)
        assert got.persons is not None
        for row, number in enumerate(got.persons):
            seen.setdefault(number, []).append(i)
            state = alone.setdefault(number, model.init_state(1))
            crop = finder.item(number)
            assert crop.rgb.shape[:2] <= model.info.box[::-1]
            (expected,) = model.steps([crop], state)
            if expected.probabilities is not None:
                assert got.people is not None
                assert got.people.probabilities is not None
                own = got.people.probabilities[row]
                np.testing.assert_allclose(own, expected.probabilities[0], atol=2e-6)
                assert got.people.warmup[row] == expected.warmup[0]
        assert got.objects is not None
        there = [box.id for box in got.objects[0]]
        assert set(filter(None, there)) <= set(got.persons)
        assert there[-1] is None
        assert got.macs == 5 + len(got.persons) * model.macs
    # Hidden for half a second she stays; he leaves once he cannot come back.
    assert seen == {1: list(range(36)), 2: list(range(10, 32))}


def test_nobody_has_no_row_and_there_are_at_most_so_many() -> None:
    model = load_model("cooadtr")
    rows = PersonRows(model, CropFinder((128, 96), "nanodet", lambda label: 0.5))
    frame, whole = scene(0)
    nothing = rows.step(frame, whole)
    assert (nothing.persons, nothing.people, nothing.nobody) == ((), None, True)
    many = [(20.0 + 25 * k, 120.0, 20.0 + 5 * k) for k in range(MOST + 3)]
    for i in range(1, 3):
        got = rows.step(*scene(i, *many))
    assert got.persons is not None
    assert got.people is not None
    assert len(got.persons) == len(got.people.warmup) == MOST
    assert got.objects is not None
    ids = [box.id for box in got.objects[0][:-1]]
    assert sorted(filter(None, ids)) == list(range(1, MOST + 4))
    assert set(got.persons) == set(ids[3:])  # the largest ones
    rows.reset()
    assert rows.step(*scene(3, many[0])).persons == (MOST + 4,)


def test_crops_are_inside_of_the_picture_and_follow_smoothly() -> None:
    finder = CropFinder((40, 30), "nanodet", lambda label: 0.5)
    at = finder._crops
    for i in range(30):
        x = 60.0 if i < 10 else 70.0
        finder.find(*scene(i, (x, 120.0, 80.0)))
        if i < 10:
            assert at[1].x == 60.0
            assert at[1].height == pytest.approx(80.0 * MARGIN)
        else:
            since_s = (i - 9) / RATE_HZ
            assert at[1].x == pytest.approx(70 - 10 * np.exp(-since_s / SMOOTH_S))
    rgb = finder.item(1).rgb
    assert rgb.shape == (30, 40, 3)
    assert rgb[15, 20, 0] > 100 > rgb[15, 0, 0]  # the figure is in the middle
    for i, (x, y, height) in enumerate([(0, 0, 90), (319, 239, 90), (160, 120, 600)]):
        other = CropFinder((40, 30), "nanodet", lambda label: 0.5)
        other.find(*scene(i, (float(x), float(y), float(height))))
        assert other.item(1).rgb.shape == (30, 40, 3)
    tall = CropFinder(
        (40, 30), "nanodet", lambda label: 0.5
    )  # a picture that is narrower than the crop
    rgb = np.zeros((300, 60, 3), np.uint8)
    frame = VideoFrame(0, 0.0, 0, lambda: rgb, size=(60, 300), earlier=(scene(1)[0],))
    found = (Box(10, 0, 50, 300, 0.9, "person"),)
    tall.find(frame, StepResult(None, None, (False,), 0, 0, 0, 0, objects=(found,)))
    crop = tall.item(1)
    assert crop.rgb.shape == (30, 6, 3)
    assert len(crop.earlier) == 1


class Halves(BrightFinder):
    """Finds a person in each half of the picture: all that is bright there."""

    def detect(
        self, view: View, size: tuple[int, int], operations: Operations | None = None
    ) -> list[Detections]:
        found: list[Tensor] = []
        for half in range(2):
            y, x = (self.seen[0].mean(0) > 1).nonzero(as_tuple=True)
            inside = x // (BOX[0] // 2) == half
            y, x = y[inside], x[inside]
            if len(x):
                found.append(torch.stack([x.min(), y.min(), x.max() + 1, y.max() + 1]).float())
        boxes = torch.stack(found) if found else torch.zeros(0, 4)
        return [Detections(boxes, torch.full((len(found),), 0.9), torch.zeros(len(found)).long())]


def finder_model(person: Model | None = None) -> PersonsModel:
    detector = ObjectModel(object_card(), Halves(), Pixels(BOX))
    return with_persons(detector, person or load_model("cooadtr"))


def pictures(count: int) -> np.ndarray:
    """One figure in the left half; another in the right one from the second second on."""
    out = np.zeros((count, 160, 224, 3), np.uint8)
    for i in range(count):
        left = 30 + abs(10 - i % 20)
        out[i, 40:130, left : left + 30] = 250
        if i >= RATE_HZ:
            out[i, 60:120, 160:180] = 250
    return out


def test_runs_over_files_name_the_persons(tmp_path: Path) -> None:
    model = finder_model()
    assert isinstance(model, GatedModel)
    clip = write_video(tmp_path / "two.mp4")
    given: dict[str, Any] = {"output": tmp_path, "format": ["jsonl", "json", "csv", "srt"]}
    zone = "left=0,0 0.5,0 0.5,1 0,1"
    results = costream.detect(
        clip, costream.LoadedModel(model), zone=zone, threshold=0.02, **given
    ).collect()
    assert results.header.persons == MOST
    assert results.header.labels == (*model.stream.info.card.labels, *model.person.info.card.labels)
    told = [(r.person, r.model, r.i) for r in results.predictions]
    assert {(p, m) for p, m, _ in told} == {(1, "cooadtr"), (2, "cooadtr")}
    assert [i for p, _, i in told if p == 1] == list(range(24))
    assert [i for p, _, i in told if p == 2] == list(range(RATE_HZ, 24))
    boxes = [box for step in results.objects for box in step.boxes]
    assert {(box.id, box.zones) for box in boxes} == {(1, ("left",)), (2, ())}
    assert {s.person for s in results.segments if s.model == "tiny-objects"} == {None}
    document = json.loads((tmp_path / "two.mp4.json").read_text())
    assert {step["person"] for step in document["predictions"]} == {1, 2}
    again = costream.Results.read(tmp_path / "two.mp4.jsonl")
    assert [r.person for r in again.predictions] == [p for p, _, _ in told]
    assert "person 2" in again.to_html()
    state = RunState(results.header, 0.0)
    for record in results.records:
        state.add(record)
    lines = [line.plain for line in LiveLayout(state, "two").lines(Viewport(80, 24), 9.0)]
    # The boxes of persons with actions have no rows; scores, now, strip.
    for marks, count in ((("#1", "#2"), 0), (("1 ", "2 "), 3)):
        found = [sum(line.startswith(f"person {mark}") for line in lines) for mark in marks]
        assert found == [count, count]


def test_streams_of_python_follow_persons_and_say_what_is_not_saved(tmp_path: Path) -> None:
    with costream.LoadedModel(finder_model()).stream(rate_hz=RATE_HZ) as stream:
        records = [r for frame in pictures(12) for r in stream.step(frame)]
        with pytest.raises(UsageError, match="cannot be saved"):
            stream.save(tmp_path / "state")
    assert {r.person for r in records if isinstance(r, Prediction)} == {1, 2}
    assert sum(isinstance(r, Objects) for r in records) == 12


def write_video(path: Path) -> Path:
    frames, about = pictures(24), {"rate": RATE_HZ, "codec": "mpeg4"}
    return make_video(path, 24, size=(224, 160), pattern=lambda k, _: frames[k], **about)


@pytest.mark.long
def test_rules_and_numbers_in_watch(tmp_path: Path) -> None:
    """The same predictions as in a file; alerts name the person; numbers go on at a restart."""
    clip, model = (
        write_video(tmp_path / "two.mp4"),
        costream.LoadedModel(finder_model()),
    )
    expected = costream.detect(clip, model).collect()
    # A low threshold, since rules wait for presence: what is drawn is somebody for no model.
    options: dict[str, Any] = {"realtime": True, "on_late": "block", "threshold": 0.01}
    rules = ["*>=0.01 for 0.5s every 0", "person in left for 1s"]
    options |= {"on": rules, "zone": "left=0,0 0.5,0 0.5,1 0,1", "state_dir": tmp_path / "state"}
    numbers = []
    for _ in range(2):
        records, there = [], set()
        feeds = costream.watch([clip], model, **options)
        for _, record in feeds:
            records.append(record)
            if feeds.status is not None:
                there |= {p.number for p in feeds.status.feeds[0].persons or ()}
        told = [r for r in records if isinstance(r, Prediction)]
        alerts = [r for r in records if isinstance(r, Alert)]
        numbers.append(sorted({r.person for r in told if r.person}))
        assert {a.person for a in alerts if a.label not in ("person", "car")} == {*numbers[-1]}
        assert {(a.place, a.id, a.person) for a in alerts if a.place} == {
            ("left", numbers[-1][0], None)
        }
        assert there <= {*numbers[-1]}
        scores = [(r.i - told[0].i, r.top) for r in told]
        assert scores == [(r.i, r.top) for r in expected.predictions]
    assert numbers == [[1, 2], [3, 4]]
    assert any(isinstance(r, Segment) for r in records)


def test_masks_hide_persons_from_both() -> None:
    mask = "right=0.5,0 1,0 1,1 0.5,1"
    with costream.LoadedModel(finder_model()).stream(rate_hz=RATE_HZ, mask=mask) as stream:
        records = [r for frame in pictures(20)[10:] for r in stream.step(frame)]
    assert {r.person for r in records if isinstance(r, Prediction)} == {1}


@pytest.mark.parametrize(
    ("detector", "person", "words"),
    [
        (
            random_model,
            lambda: load_model("costgcn"),
            "looks at every picture, which takes too long",
        ),
        (random_model, lambda: load_model("costgcn-pairs"), "finds the persons by itself"),
        (random_model, small_model, "token-gated and cannot take several persons"),
        (random_model, lambda: load_model("cosounds"), "cosounds does not take pictures"),
    ],
)
def test_what_cannot_see_persons(detector: Any, person: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        with_persons(detector(), person())


def test_a_detector_that_knows_no_persons() -> None:
    card = object_card()
    cars = ObjectModel(
        Card(
            "cars",
            card.task,
            "vitdet",
            card.arguments,
            labels=("lorry", "car"),
            rate_hz=8.0,
            frontend="pixels",
            frontend_arguments=card.frontend_arguments,
        ),
        BrightFinder(),
        Pixels(BOX),
    )
    with pytest.raises(ModelError, match="cars has no label 'person'"):
        with_persons(cars, load_model("cooadtr"))


def test_the_names_make_the_model() -> None:
    model = load_model("cooadtr,eventful-vitdet,cosounds")
    assert isinstance(model, PersonsModel)
    heads = [(head.card.name, head.by_person) for head in model.info.heads]
    assert heads == [("eventful-vitdet", False), ("cosounds", False), ("cooadtr", True)]
    assert model.info.card.rate_hz == load_model("cooadtr").info.card.rate_hz
    assert model.info.beside is not None
    hearing = load_model("costgcn,cosounds")
    assert isinstance(hearing, PersonsModel)
    assert [head.by_person for head in hearing.info.heads] == [True, False]
    assert not hearing.crops
    with pytest.raises(ModelError, match="cannot be combined"):
        load_model("eventful-vitdet,cooadtr,oadtr")
