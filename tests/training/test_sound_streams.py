"""Custom sounds: background label, streams, initial and final weights."""

from __future__ import annotations

import copy
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.errors import ModelError, UsageError
from costream.labels.examples import Example
from costream.labels.recording import UNSCORED
from costream.models.build import build
from costream.models.oad.cooadtr import CoTrans
from costream.training.audio.audio_reader import AudioReader, EncodedAudio
from costream.training.audio.audio_trainer import AudioTrainer, linear, views
from costream.training.base import TrainSetup
from costream.training.command import trainer_of
from costream.training.feature_cache import FeatureCache
from costream.training.optim import Schedule
from costream.training.tokens.token_streams import TokenStream, TokenStreams
from costream.training.tokens.token_training import fit_streams, predict, standardise
from costream.training.training_loop import TrainingRun
from costream.weights_io.file import read_weights
from kit import data_audio
from kit.data_training import train_settings


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("base") / "tiny.safetensors"
    return read_weights(data_audio.write_tiny_weights(path))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"dog", "cat"}, ("silence", "cat", "dog")),
        ({"dog", "Silence"}, ("Silence", "dog")),
        ({"dog", "none", "Background", "background"}, ("Background", "dog")),
        ({"dog", "no_music", "background", "silence"}, ("no_music", "dog")),
    ],
)
def test_the_background_is_called_by_its_name(base, found, expected):
    card = replace(base.card, background="no music") if "no_music" in found else base.card
    assert AudioTrainer().labels(found, card) == expected


def marked(kind, steps):
    """Return a recording whose tokens say their class and their step."""
    numbers = torch.arange(steps, dtype=torch.float32)
    tokens = torch.stack([torch.full_like(numbers, kind), numbers], 1)
    return [TokenStream(tokens, np.full(steps, kind))]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 60))
def test_every_token_has_its_label(seed, steps):
    maker = TokenStreams([marked(0, 3), marked(1, 9), marked(2, 30)])
    stream = maker.draw(steps, np.random.default_rng(seed))
    assert len(stream.tokens) == len(stream.labels) == steps
    assert np.array_equal(stream.labels, stream.tokens[:, 0].numpy())


@pytest.mark.parametrize(("steps", "unknown"), [(1, 0), (2, 1), (5, 2), (6, 3), (30, 3)])
def test_tokens_that_hold_what_was_before_teach_nothing(base, steps, unknown):
    heard = EncodedAudio(base.card.labels[1], tuple(torch.zeros(steps, 4) for _ in range(3)))
    plain, *varied = views(heard, base.card)
    assert plain.labels.tolist() == [1] * steps
    for view in varied:
        assert view.labels.tolist() == [UNSCORED] * unknown + [1] * (steps - unknown)


def test_classes_come_equally_often_whatever_their_number():
    maker = TokenStreams([marked(0, 8)] * 30 + [marked(1, 8)])
    labels = maker.batch(40, 100, np.random.default_rng(0))[1]
    assert 0.4 < labels.float().mean() < 0.6


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.lists(st.integers(-1, 2), min_size=1, max_size=20))
def test_pieces_of_recordings_keep_their_labels(seed, labels):
    labels = np.array([*labels, 1])
    tokens = torch.stack([torch.from_numpy(labels), torch.arange(len(labels))], 1)
    stream = TokenStreams([[TokenStream(tokens, labels)]]).draw(12, np.random.default_rng(seed))
    assert np.array_equal(stream.tokens[:, 0].numpy(), stream.labels)
    steps = np.diff(stream.tokens[:, 1].numpy())
    ends = [*np.flatnonzero(steps != 1).tolist(), 11]
    begins = [0, *(end + 1 for end in ends[:-1])]
    for begin, end in zip(begins[:-1], ends[:-1], strict=True):
        assert stream.labels[begin : end + 1].max() >= 0  # each piece has a class


def scattered(count, seed=0):
    """Return recordings of two classes that differ within theirs in one direction only."""
    places = np.random.default_rng(seed).normal(size=(2, count))
    way = torch.tensor([3.0, 4.0, 0.0])
    return [
        [TokenStream(float(x) * way + torch.tensor([0.0, 0.0, k]).expand(8, 3), np.full(8, k))]
        for k, own in enumerate(places)
        for x in own
    ], places.var(1, ddof=1).mean()


def test_pieces_are_moved_as_recordings_of_a_class_differ():
    recordings, variance = scattered(5)
    rng = np.random.default_rng(0)
    plain, moved = (TokenStreams(recordings, varied=v).batch(2000, 1, rng)[0] for v in (0.0, 2.0))
    along, across = moved[:, 0] @ torch.tensor([0.6, 0.8, 0.0]), moved[:, 0, :2]
    assert torch.allclose(across @ torch.tensor([0.8, -0.6]), torch.zeros(2000), atol=1e-5)
    assert set(moved[:, 0, 2].tolist()) == {0.0, 1.0}  # classes stay apart
    added = float(along.var() - (plain[:, 0] @ torch.tensor([0.6, 0.8, 0.0])).var())
    assert added == pytest.approx(4 * 25 * variance, rel=0.15)


def test_one_recording_of_a_class_does_not_say_how_they_differ():
    recordings = [marked(0, 9), marked(1, 9)]
    rngs = (np.random.default_rng(0) for _ in range(2))
    plain, moved = (
        TokenStreams(recordings, varied=v).draw(40, rng).tokens
        for v, rng in zip((0.0, 2.0), rngs, strict=True)
    )
    assert torch.equal(plain, moved)


def test_only_the_classifier_starts_again(base, tmp_path):
    settings = train_settings(tmp_path / "own.safetensors")
    setup = AudioTrainer().setup
    labels = ("silence", "x", "y", "z")  # as many as the model has, but others
    measured = {name: {"top1": 1.0} for name in ("metrics", "sample", "costs")}
    network, _, card, _ = setup(
        replace(base, card=replace(base.card, **measured)), labels, settings
    )
    stored = base.tensors
    for name, value in network.state_dict().items():
        same = torch.equal(value, stored[f"network.{name}"])
        assert same is not name.startswith("head."), name
    assert (card.labels, card.background, card.arguments["num_classes"]) == (labels, "silence", 4)
    assert not any(getattr(card, name) for name in measured)  # they are of other weights
    kept, *_ = setup(base, base.card.labels, settings)
    assert torch.equal(kept.head.weight, stored["network.head.weight"])
    fresh, *_ = setup(base, base.card.labels, replace(settings, scratch=True))
    assert not torch.equal(fresh.head.weight, stored["network.head.weight"])


def test_a_fresh_network_sees_tokens_of_one_scale():
    torch.manual_seed(0)
    tokens = torch.randn(500, 16) * torch.linspace(0.01, 300, 16) + 1000
    network = CoTrans(3, **{k: v for k, v in data_audio.NETWORK.items() if k != "num_classes"})
    plain = (tokens - tokens.mean(0)) / tokens.std(0).clamp(min=3.0)
    with torch.no_grad():
        expected = network.input_projection(plain)
        standardise(network, tokens)
        assert torch.allclose(network.input_projection(tokens), expected, atol=2e-2)


@pytest.mark.long
def test_training_ends_with_the_weights_that_did_best():
    """What is validation has wrong labels: the more is learnt, the worse it gets."""
    torch.manual_seed(0)
    network = CoTrans(**{**data_audio.NETWORK, "num_classes": 2})
    right = [TokenStream(torch.randn(12, 16) + 3 * k, np.full(12, k)) for k in range(2)]
    wrong = [TokenStream(s.tokens, 1 - s.labels) for s in right]
    ends = []
    for validation in (wrong, right):
        result = copy.deepcopy(network)
        schedule = Schedule(80, 4, rate=2e-3)
        history = fit_streams(
            result, TokenStreams([[s] for s in right]), schedule, TrainingRun(), validation
        )
        assert not result.training
        assert [row["step"] for row in history][:2] == [20, 40]
        assert history[-1]["loss"] < history[0]["loss"]
        told = predict(result, [s.tokens for s in right])
        ends.append(np.mean([p[:, k].mean() for k, p in enumerate(told)]))
    assert ends[0] < 0.9 < ends[1]


def test_the_linear_baseline_distinguishes_what_a_line_can():
    rng = torch.Generator().manual_seed(1)
    heard = [
        EncodedAudio(name, (torch.randn(6, 4, generator=rng) + 4 * torch.eye(4)[k],))
        for k, name in enumerate("abc")
        for _ in range(6)
    ]
    rows = linear(heard[::2], heard[1::2], ("a", "b", "c"))
    assert [row.shape for row in rows] == [(1, 3)] * 9
    assert np.concatenate(rows).argmax(1).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_what_cannot_be_taught_is_refused(base, tmp_path):
    with pytest.raises(UsageError, match="--fps: the steps of tiny are blocks of audio"):
        AudioTrainer().check(base.card, train_settings(tmp_path / "own.safetensors", rate_hz=8.0))
    encoder = torch.nn.Linear(16, 4)
    with pytest.raises(ModelError, match="tiny cannot be trained on custom classes"):
        AudioTrainer().fit(TrainSetup(encoder, None, base.card, encoder), None, Mock())
    with pytest.raises(ModelError, match="tiny cannot be trained on custom classes"):
        trainer_of(replace(base.card, frontend=None))


def test_features_are_not_sound(base, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((9, 16), np.float32))
    _, frontend = build(base.card, base.tensors)
    example = Example(str(path), "a", 0.0, None, "", "t.csv, line 3")
    with pytest.raises(UsageError, match="line 3: training takes recordings, not features"):
        AudioReader(base.card, frontend, 0, 0, FeatureCache(None, base.card, frontend)).read(
            [example]
        )
