"""``costream train auto``: which frontend and head are chosen, and what their scores are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from costream import listen
from costream.core.layouts import BODY_15
from costream.core.records import SkeletonFrame, SourceInfo
from costream.labels.examples import Example
from costream.models.build import build
from costream.models.catalogue import load_model, read_whole
from costream.models.frontend import load_frontend
from costream.models.oad.linear import LinearClassifier
from costream.models.skeleton.joints import JointStreams
from costream.training.auto.frontends import (
    FrontendChoice,
    frontends_for,
    joined_frontend,
    twins_of,
)
from costream.training.auto.known_labels import answers_of, known_events, model_that_knows
from costream.training.auto.selection import (
    Choice,
    ClipFeatures,
    Scaling,
    best,
    fitted_scaling,
    joined,
    near_copies,
    nested,
    options,
    surely_better,
)
from costream.training.tokens.linear_head import MEAN, SPREAD, Clip, HeadKind, mean_answer
from costream.weights_io import store
from costream.weights_io.file import read_card, write_weights
from kit import data_audio, data_skeleton
from kit.data_training import train_settings
from kit.media import make_video
from kit.paths import SAMPLES
from kit.program import costream
from kit.runs import run
from kit.skeleton_files import long

ROOM = SAMPLES / "room.mp4"
STEPS, WIDTH = 4, 6


def features(
    name: str, strength: float, seed: int, *, count: int = 24, groups: int = 6
) -> ClipFeatures:
    """Return features of clips of two classes that differ by ``strength`` standard deviations."""
    rng = np.random.default_rng(seed)
    clips = []
    for k in range(count):
        label = 1 + k % 2
        rows = rng.normal(0, 1, (1, WIDTH)) + rng.normal(0, 0.1, (STEPS, WIDTH))
        rows[:, 0] += strength * label
        tokens = torch.from_numpy(rows.astype(np.float32))
        clips.append(Clip(tokens, np.arange(STEPS), label, f"group {k // 2 % groups}"))
    return ClipFeatures(name, clips, (WIDTH,))


@pytest.mark.slow
def test_the_frontend_that_tells_the_classes_apart_is_chosen() -> None:
    weak, strong = features("weak", 0, 1), features("strong", 6, 2)
    both = joined("weak+strong", [weak, strong])
    every = [weak, strong, both]
    assert best(options(every, 3, 0)).features.name == "strong"
    found = nested(every, 3, 0)
    labels = np.array([clip.label for clip in strong.clips])
    assert (found.answers.argmax(1) == labels).mean() > 0.9
    assert (found.each["weak"].argmax(1) == labels).mean() < 0.8


def test_several_frontends_are_chosen_only_if_surely_better_and_if_a_file_can_hold_them() -> None:
    first, second = features("first", 1.5, 1), features("second", 1.5, 2)
    both = joined("first+second", [first, second])
    choices = options([first, second, both], 3, 0)
    alone = best(choices[:2])
    assert surely_better(choices[2], alone, 1.0) == (best(choices) is choices[2])
    same = replace(both, clips=joined("", [first, first]).clips)
    assert best(options([first, same], 3, 0)).features.name == "first"
    stays = best(options([first, second, replace(both, runs=False)], 3, 0))
    assert len(stays.features.parts) == 1
    heavy = replace(first, name="heavy", rank=1)
    assert best(options([heavy, first], 3, 0)).features.name == "first"


def test_the_head_that_suits_the_features_stays_unless_another_one_is_surely_better() -> None:
    assert options([features("noise", 0, 1)], 3, 0)[0].kind == HeadKind(MEAN, None)
    noise, suits = features("noise", 0, 0), HeadKind(SPREAD, 0.0)
    assert options([noise], 3, 0)[0].kind not in (HeadKind(MEAN, None), suits)
    assert options([replace(noise, first=suits)], 3, 0)[0].kind == suits


@pytest.mark.long
def test_noise_is_not_said_to_be_better_than_chance() -> None:
    """The best of several frontends is right by chance; that of nested folds is not."""
    labels = np.array([clip.label for clip in features("", 0, 0).clips])
    right = []
    for seed in range(3):
        every = [features(str(k), 0, 10 * seed + k) for k in range(2)]
        right.append((nested(every, 3, seed).answers.argmax(1) == labels).mean())
    assert np.mean(right) < 0.66


def test_features_at_another_rate_are_joined_by_their_place_in_the_clip() -> None:
    slow, fast = features("slow", 0, 0, count=4), features("fast", 0, 1, count=4)
    halved = [replace(c, tokens=c.tokens[::2], steps=np.arange(STEPS // 2)) for c in slow.clips]
    both = joined("fast+slow", [fast, replace(slow, clips=halved)])
    assert both.parts == (WIDTH, WIDTH)
    for clip, one, two in zip(both.clips, fast.clips, halved, strict=True):
        torch.testing.assert_close(clip.tokens[:, :WIDTH], one.tokens)
        torch.testing.assert_close(clip.tokens[:, WIDTH:], two.tokens.repeat_interleave(2, 0))


def test_scores_are_scaled_to_what_they_are_worth() -> None:
    """Answers four times too sure, and with a bias, become the probabilities of the labels."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1, (400, 3)) + np.array([-30.0, 0, 0])
    true = torch.from_numpy(logits).softmax(1).numpy()
    labels = np.array([rng.choice(3, p=row) for row in true])
    said = torch.from_numpy(4 * logits + np.array([0, 1.5, 0])).softmax(1).float().numpy()
    groups = [str(k // 4) for k in range(400)]
    found = fitted_scaling(list(said[:, None]), labels, groups, 0)
    assert found is not None
    assert np.abs(found[1] - true).mean() < 0.03 < np.abs(said - true).mean()
    assert fitted_scaling(list(true[:, None].astype(np.float32)), labels, groups, 0) is None


def test_nothing_is_scaled_if_a_class_was_held_out_completely() -> None:
    labels = np.tile([1, 2], 20)
    rows = [np.array([[1e-9, 0.6, 0.4]], np.float32) for _ in labels]
    rows[0] = np.array([[1e-9, 1e-9, 1.0]], np.float32)
    assert fitted_scaling(rows, labels, [str(k) for k in range(40)], 0) is None


def test_a_head_is_scaled_as_its_scores_are() -> None:
    choice = options([features("any", 2, 0)], 3, 0)[0]
    head, clip = choice.head(3, 0), choice.features.clips[0]
    before = _rows(head, clip)
    scaling = Scaling(0.4, torch.tensor([-20.0, 0.5, -0.5]))
    scaling.put_into(head)
    np.testing.assert_allclose(_rows(head, clip), scaling.apply(before), atol=2e-3)


@torch.no_grad()
def _rows(head: LinearClassifier, clip: Clip) -> npt.NDArray[np.float32]:
    logits = head.forward_steps(clip.tokens[None], head.init_state()).logits[0]
    rows: npt.NDArray[np.float32] = logits.softmax(-1).numpy()
    return rows


def test_near_copies_in_other_groups_are_found() -> None:
    found = features("any", 1, 0)
    copy = replace(found.clips[3], tokens=found.clips[3].tokens + 1e-3, group="another")
    with_copy = replace(found, clips=[*found.clips, copy])
    assert near_copies(with_copy) == [(3, len(found.clips))]
    assert not near_copies(found)
    same_group = replace(copy, group=found.clips[3].group)
    assert not near_copies(replace(found, clips=[*found.clips, same_group]))


def test_heads_also_learn_from_background_that_is_not_asked() -> None:
    found = features("any", 6, 0)
    quiet = [
        Clip(torch.full((STEPS, WIDTH), 40.0 + k), np.arange(STEPS), 0, f"q{k}") for k in range(6)
    ]
    extra = replace(found, extra=quiet)
    choice: Choice = options([extra], 3, 0)[0]
    assert choice.answers.shape == (len(found.clips), 3)
    head = choice.head(3, 0)
    rows = extra.fitter(3, 0).rows(quiet[0], choice.kind)
    assert mean_answer(head, rows).argmax() == 0


@pytest.mark.parametrize("shape", [(2, 3), (1, 4, 5)])
def test_a_linear_classifier_takes_rows_of_several_axes(shape: tuple[int, ...]) -> None:
    width = int(np.prod(shape))
    head, x = LinearClassifier(width, 3, 4), torch.randn(2, 6, *shape)
    flat = head.forward_steps(x.flatten(2), head.init_state(2)).logits
    state = head.init_state(2)
    steps = [head.forward_step(row, state).logits for row in x.unbind(1)]
    torch.testing.assert_close(torch.stack(steps, 1), flat)


def test_twins_of_joints_are_what_a_mirror_shows_and_the_other_person_first() -> None:
    rng = np.random.default_rng(0)
    joints = rng.normal(0, 1, (5, 2, 15, 3)).astype(np.float32)
    joints[..., -1] = 1
    front = JointStreams("body-15", 2, 2, streams=("joint", "joint_motion"), origin=30, heading=0)
    mirrored, swapped, both = twins_of(joints, front)
    own, shown = (front(torch.from_numpy(x)[None])[0].numpy() for x in (joints, mirrored))
    sides = list(front.layout.mirrored)
    np.testing.assert_allclose(shown[..., ::2], -own[:, :, sides, ::2], atol=1e-5)
    np.testing.assert_allclose(shown[..., 1::2], own[:, :, sides, 1::2], atol=1e-5)
    np.testing.assert_array_equal(swapped, joints[:, ::-1])
    np.testing.assert_array_equal(both, mirrored[:, ::-1])
    assert len(twins_of(joints[:, :1], JointStreams("body-15", 2))) == 1


@pytest.mark.slow
def test_acts_of_two_people_are_learnt_from_their_joints(tmp_path: Path) -> None:
    """Where one person is seen, the other's joints are absent; the file runs step by step.

    A clip in which nobody is seen is named.
    """
    empty = make_video(tmp_path / "empty.mp4")
    table = ["file,start,end,label,part", f"{empty},0,1,walk,2"]
    for part, (walk, sit) in enumerate(((4, 14), (6, 16))):
        table += [f"{ROOM},{walk},{walk + 1},walk,{part}", f"{ROOM},{sit},{sit + 1},sit,{part}"]
    (tmp_path / "clips.csv").write_text("\n".join(table) + "\n", encoding="utf-8")
    path = tmp_path / "own.safetensors"
    given = ("--data", tmp_path / "clips.csv", "--group", "part", "--frontend", "pair", "-o", path)
    done = run("train", "auto", *given, "--cache", tmp_path / "cache")
    assert f"nobody is seen in {tmp_path / 'clips.csv'}, line 2: do they" in done.stderr
    assert done.stdout.splitlines()[2].split()[0] == "pair"
    card = read_card(path)
    assert (card.architecture, card.frontend) == ("linear", "joints")
    assert card.frontend_arguments["persons"] == 2
    done = run("detect", ROOM, "-m", path, "--start", 4, "--duration", 1, "-f", "json")
    assert {s["label"] for s in json.loads(done.stdout)["segments"]} <= set(card.labels[1:])


def test_features_of_several_have_the_twins_that_all_have() -> None:
    rng = np.random.default_rng(0)

    def made(width: int, twins: int) -> ClipFeatures:
        rows = torch.from_numpy(rng.normal(0, 1, (1 + twins, STEPS, width)).astype(np.float32))
        clip = Clip(rows[0], np.arange(STEPS), 1, "film", tuple(rows[1:]))
        return ClipFeatures("", [clip], (width,))

    first, second, without = made(3, 2), made(5, 2), made(4, 0)
    both = joined("both", [first, second], scales=[1.0, 0.3]).clips[0]
    torch.testing.assert_close(both.tokens[:, :3], first.clips[0].tokens)
    torch.testing.assert_close(both.tokens[:, 3:], 0.3 * second.clips[0].tokens)
    for k, twin in enumerate(both.twins):
        torch.testing.assert_close(twin[:, :3], first.clips[0].twins[k])
        torch.testing.assert_close(twin[:, 3:], 0.3 * second.clips[0].twins[k])
    assert len(both.twins) == 2
    assert not joined("none", [first, without]).clips[0].twins


@pytest.fixture(scope="module")
def pairs() -> FrontendChoice:
    found = joined_frontend(("costgcn-pairs", "pair"))
    assert found is not None
    return found


def people(steps: int) -> torch.Tensor:
    """Return joints [1, T, 2, 15, 3] of two people who move a little."""
    rng = np.random.default_rng(0)
    joints = rng.normal(0, 1, (1, 1, 2, 15, 3)) + rng.normal(0, 0.1, (1, steps, 2, 15, 3))
    joints[..., -1] = 1
    return torch.from_numpy(joints.astype(np.float32))


def test_a_network_and_its_joints_are_one_frontend_for_research(pairs: FrontendChoice) -> None:
    """Its tokens are those of its parts, so what was chosen for these is what the file holds."""
    assert (pairs.name, pairs.parts) == ("costgcn-pairs+pair", (176, 120))
    assert pairs.base.card.licence_class == "research"
    assert "UT-Interaction" in pairs.base.card.licence
    both: Any = load_frontend("skeleton-features", **pairs.base.card.frontend_arguments).eval()
    both.load_state_dict(
        {k.removeprefix("frontend."): v for k, v in pairs.base.tensors.items()}, strict=True
    )
    tokens = both(people(40))
    joints = JointStreams(
        "body-15", 2, 2, ("joint", "joint_motion"), origin=30, heading=0, min_score=0.3
    )
    torch.testing.assert_close(tokens[..., 176:], 0.3 * joints(people(40)).flatten(2))
    stored = read_whole("costgcn-pairs")
    network, front = (module.eval() for module in build(stored.card, stored.tensors) if module)
    with torch.no_grad():
        features = network.features(front(people(40))).mean((1, 3))  # type: ignore[operator]
    torch.testing.assert_close(tokens[:, ::2, :176], features, rtol=1e-3, atol=1e-3)


def test_what_is_not_tried_is_said_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    film = SourceInfo("film", "film", "video", None, None)

    def tried(**options: Any) -> list[str]:
        caplog.clear()
        return [f.name for f in frontends_for(film, train_settings(tmp_path, **options))]

    free = ["encoder", "motion", "changes", "pose", "pair"]
    assert tried() == tried(licence="free") == free
    assert "research only: tdn, costgcn-2d, costgcn-pairs (--licence any does)" in caplog.text
    assert tried(frontend="motion") == free
    assert not caplog.messages
    assert tried(licence="any") == [*free, "tdn", "costgcn-2d", "costgcn-pairs"]
    assert not caplog.messages
    monkeypatch.setattr(store, "research_folder", lambda: None)
    assert tried(licence="any", frontend="costgcn-pairs+pair") == free
    start = "not tried: costgcn-pairs is in the package of research weights: pip install"
    assert caplog.messages[0].startswith(start)


def test_a_file_with_a_skeleton_network_gives_the_same_step_by_step(
    pairs: FrontendChoice, tmp_path: Path
) -> None:
    """Also from a state that was copied in the middle, beside another stream."""
    torch.manual_seed(0)
    head = LinearClassifier(296, 2, window=6, spread=True).requires_grad_(False)
    tensors = {f"network.{k}": v for k, v in head.state_dict().items()}
    arguments = {"input_width": 296, "num_classes": 2, "window": 6, "spread": True}
    card = replace(pairs.base.card, arguments=arguments, background=None)
    write_weights(tmp_path / "own.safetensors", card, {**pairs.base.tensors, **tensors})
    model: Any = load_model(str(tmp_path / "own.safetensors"))
    clip = people(24)
    tokens = model.frontend(clip)
    whole = head.forward_steps(tokens, head.init_state()).logits[0].softmax(-1).numpy()
    items = [
        SkeletonFrame(i, i / 15, x[..., :2].numpy(), x[..., 2].numpy(), model.frontend.layout)
        for i, x in enumerate(clip[0])
    ]
    state = model.init_state()
    steps = [model.step([item], state).probabilities[0] for item in items[:11]]
    two = model.init_state(2)
    two.put([1], state)
    steps += [model.step([items[0], item], two).probabilities[1] for item in items[11:]]
    np.testing.assert_allclose(np.stack(steps), whole, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_acts_are_learnt_on_the_features_of_a_skeleton_network(tmp_path: Path) -> None:
    """The file is for research only, and runs on films."""
    table = ["file,start,end,label,part"]
    for part, (walk, sit) in enumerate(((4, 14), (6, 16))):
        table += [f"{ROOM},{walk},{walk + 1},walk,{part}", f"{ROOM},{sit},{sit + 1},sit,{part}"]
    (tmp_path / "clips.csv").write_text("\n".join(table) + "\n", encoding="utf-8")
    path = tmp_path / "own.safetensors"
    given = ("train", "auto", "--data", tmp_path / "clips.csv", "--group", "part", "-o", path)
    wanted = ("--frontend", "costgcn-2d+pose")
    refused = costream(*given, *wanted)
    assert refused.returncode == 2
    first = refused.stderr.splitlines()[0]
    assert "not tried, as their weights are for research only: costgcn-2d" in first
    cache = ("--cache", tmp_path / "cache")
    lines = run(*given, *wanted, "--licence", "any", *cache).stdout.splitlines()
    assert lines[2].split()[0] == "costgcn-2d+pose"
    card = read_card(path)
    assert (card.frontend, card.licence_class) == ("skeleton-features", "research")
    done = run("detect", ROOM, "-m", path, "--start", 4, "--duration", 1, "-f", "json")
    assert {x["label"] for x in json.loads(done.stdout)["segments"]} <= set(card.labels[1:])
    done = costream("models", "export", path, "-o", tmp_path / "own.onnx", "--whole")
    assert done.returncode != 0
    assert "not exported" in done.stderr


def test_of_joints_in_files_the_network_of_their_axes_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def tried(axes: int, **options: Any) -> list[str]:
        caplog.clear()
        info = SourceInfo("poses.csv", "", "skeleton", None, None, layout="coco-17", axes=axes)
        return [f.name for f in frontends_for(info, train_settings(tmp_path, **options))]

    for axes, name in ((2, "costgcn-2d"), (3, "costgcn")):
        assert tried(axes) == ["joints"]
        assert f"research only: {name}, {name}+joints (--licence any does)" in caplog.text
        assert tried(axes, licence="any") == ["joints", name, f"{name}+joints"]
        assert not caplog.messages
    assert tried(3, frontend="joints") == ["joints"]
    assert not caplog.messages
    monkeypatch.setattr(store, "research_folder", lambda: None)
    assert tried(3, licence="any") == ["joints"]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("not tried: costgcn is in the package of research weights")


@pytest.mark.slow
@pytest.mark.parametrize("axes", [2, 3])
def test_what_a_network_knows_of_joints_in_files_is_learnt_from(tmp_path: Path, axes: int) -> None:
    """The features that the file computes are those of the network, and the joints."""
    for label in ("wave", "bend"):
        for k in range(4):
            x = data_skeleton.act(label, k)[:, None, :, :axes]
            where = tmp_path / "data" / label / f"{label}{k}.csv"
            where.parent.mkdir(parents=True, exist_ok=True)
            head = "frame,joint," + ",".join("xyz"[:axes])
            long(where, x * (1, -1, 1)[:axes], BODY_15.joints, head, person=False)
    name = {2: "costgcn-2d", 3: "costgcn"}[axes]
    path, output = tmp_path / "data", tmp_path / "own.safetensors"
    given = ("train", "auto", "--data", path, "--fps", data_skeleton.RATE_HZ, "-o", output)
    lines = run(*given, "--licence", "any", "--no-cache").stdout.splitlines()
    assert [row.split()[0] for row in lines[2:5]] == ["joints", name, f"{name}+joints"]
    wanted = ("--licence", "any", "--no-cache", "--frontend", f"{name}+joints", "--overwrite")
    run(*given, *wanted)
    card = read_card(output)
    assert (card.frontend, card.licence_class) == ("skeleton-features", "research")
    assert read_whole(name).card.licence in card.licence
    assert read_whole("pose").card.licence not in card.licence
    found = run("detect", path / "wave" / "wave0.csv", "-m", output, "--fps", 15, "-f", "json")
    assert {x["label"] for x in json.loads(found.stdout)["segments"]} == {"wave"}
    model: Any = load_model(str(output))
    module = model.frontend
    heading = 30 if axes == 3 else 0
    joints = JointStreams(
        "body-15", axes, 1, module.streams, origin=30, heading=heading, min_score=0.3
    )
    steps = torch.from_numpy(data_skeleton.act("wave", 9)[None, :, None, :, :axes])
    clip = torch.cat((steps, torch.ones_like(steps[..., :1])), -1)
    torch.testing.assert_close(module(clip)[..., module.features :], 0.3 * joints(clip).flatten(2))


@pytest.mark.slow
def test_sounds_are_learnt_as_users_do_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_audio.write_folder(tmp_path / "data", 4)
    path, cache = tmp_path / "own.safetensors", ("--cache", tmp_path / "cache")
    with monkeypatch.context() as patch:  # a setting for other models
        patch.setenv("COSTREAM_WEIGHTS", str(tmp_path))
        lines = run("train", "auto", "--data", data, "-o", path, *cache).stdout.splitlines()
    assert lines[0] == "tried, on clips of groups that were held out:"
    assert lines[1].split() == ["frontend", "right", "class", "mean"]
    assert lines[2].split()[0] == "mn04"
    assert lines[3].startswith("chosen: mn04, ")
    card = read_card(path)
    assert (card.architecture, card.frontend, card.licence_class) == ("linear", "efficientat", None)
    assert card.labels[0] == card.background == "silence"
    assert "held out in turn" in card.split
    heard = json.loads(run("listen", data / "tone" / "tone0.wav", "-m", path, "-f", "json").stdout)
    assert [segment["label"] for segment in heard["segments"]] == ["tone"]


def test_a_model_that_knows_the_labels_is_asked_as_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ("silence", "Click", "tone", "whistle")
    weights = data_audio.write_tiny_weights(tmp_path / "weights" / "heard.safetensors", known)
    monkeypatch.setenv(store.VARIABLE, str(weights.parent))
    labels = ("silence", "click", "hiss", "tone")
    base = model_that_knows(labels, "audio")
    assert base is not None
    assert (base.card.name, known_events(labels, base.card)) == ("heard", 2)
    assert model_that_knows(labels, "video") is None
    assert model_that_knows(("silence", "click", "hiss", "pop", "thud"), "audio") is None
    paths = [data_audio.write_sound(tmp_path / f"{k}.wav", "click", k) for k in range(2)]
    examples = [Example(str(path), "click", 0.0, None, path.stem, str(path)) for path in paths]
    found = answers_of(base, labels, examples, train_settings(tmp_path / "own.safetensors"))
    assert found is not None
    for path, answer in zip(paths, found, strict=True):
        every = listen(str(path), str(weights), scores=True).collect().predictions
        scores = np.mean([p.scores for p in every], 0)
        np.testing.assert_allclose(answer[[0, 1, 3]], scores[[0, 1, 2]], atol=1e-5)
        assert answer[2] == 0


@pytest.mark.slow
def test_a_model_that_knows_the_labels_is_named_and_tried_if_its_licence_allows_it(
    tmp_path: Path,
) -> None:
    for label, kind in (("Dog bark", "click"), ("rain", "hiss"), ("whirr", "tone")):
        for k in range(3):
            data_audio.write_sound(tmp_path / "data" / label / f"{kind}{k}.wav", kind, k)
    common = ("train", "auto", "--data", tmp_path / "data", "--cache", tmp_path / "cache")
    said = "cosounds (research use only) knows 2 of 3 labels: costream train cosounds starts"
    lines = run(*common, "-o", tmp_path / "free.safetensors").stdout.splitlines()
    assert lines[4].startswith(said)
    done = run(*common, "-o", tmp_path / "any.safetensors", "--licence", "any")
    lines = done.stdout.splitlines()
    assert lines[3].startswith("  cosounds, as it is")
    assert lines[5].startswith(said)
    assert lines[5].endswith("which its card names")


def test_what_auto_cannot_do_is_said_in_a_line(tmp_path: Path) -> None:
    data = data_audio.write_folder(tmp_path / "data", 1)
    output = ("-o", tmp_path / "own.safetensors")
    for given, words in (
        (("auto", "--data", data, "--scratch"), "--scratch: does not apply to auto"),
        (("auto", "--data", data, "--frontend", "pose"), "frontends for these examples: mn04"),
        (("cooadtr", "--data", data, "--frontend", "mn04"), "--frontend: applies to auto"),
    ):
        done = costream("train", *given, *output)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("wanted", ["encoder+mn04", "encoder+motion+mn04"])
def test_a_frontend_that_is_named_is_not_left_out(tmp_path: Path, wanted: str) -> None:
    """Clips without sound: there are no features of it to join."""
    for name in ("a0", "a1", "b0", "b1"):
        (tmp_path / "data" / name[0]).mkdir(parents=True, exist_ok=True)
        # One clip has sound, so that its frontend is among those that are tried.
        path = tmp_path / "data" / name[0] / f"{name}.mp4"
        make_video(path, 75, audio_s=3.0 if name == "a0" else 0.0)
    given = ("--data", tmp_path / "data", "--frontend", wanted, "-o", tmp_path / "own.safetensors")
    done = costream("train", "auto", *given)
    assert done.returncode != 0
    assert "sound" in done.stderr
    assert "not tried" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_all_files_that_cannot_be_read_are_named_before_anything_is_tried(tmp_path: Path) -> None:
    for name in ("a0", "a1", "b0", "b1"):
        (tmp_path / "data" / name[0]).mkdir(parents=True, exist_ok=True)
        make_video(tmp_path / "data" / name[0] / f"{name}.mp4", 75)
    (tmp_path / "data" / "a" / "empty.mp4").touch()
    (tmp_path / "data" / "b" / "noise.mp4").write_bytes(bytes(range(1, 256)) * 20)
    given = ("--data", tmp_path / "data", "-o", tmp_path / "own.safetensors")
    done = costream("train", "auto", *given)
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert "2 recordings cannot be used" in line
    assert "empty.mp4: the file is empty" in line
    assert "noise.mp4: this is not a video" in line
