"""Linear heads on frozen features: what is chosen by groups, and biases."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from costream.models.oad.linear import LinearClassifier
from costream.training.auto.selection import options
from costream.training.early_stopping import LOSS, is_best_untrained, kept_reason
from costream.training.tokens.linear_head import (
    CHANGE,
    KINDS,
    MEAN,
    SPREAD,
    Clip,
    HeadFitter,
    HeadKind,
    HeldOut,
    fitted_bias,
    folds,
    mean_answer,
    why_few,
)
from costream.training.tokens.token_trainer import (
    EncodedChecks,
    EncodedData,
    choose_head,
)
from costream.training.tokens.token_training import predict

WIDTH, STEPS = 12, 8


def clips(kind: str, count: int = 24, groups: int = 6, seed: int = 0) -> list[Clip]:
    """Return clips of classes 1 and 2, which differ in the mean, change or spread of a feature."""
    rng = np.random.default_rng(seed)
    out = []
    for k in range(2 * count):
        label = 1 + k % 2
        rows = rng.normal(5, 0.1, (STEPS, WIDTH))
        if kind == "mean":
            rows[:, 0] += label
        elif kind == "change":
            rows[:, 0] += np.where(np.arange(STEPS) % 2, 1, -1) * (label == 2)
        elif kind == "spread":  # as much change, up and down or in one direction
            ramp = rng.choice([-1, 1]) * np.linspace(-7, 7, STEPS)
            rows[:, 0] += ramp if label == 2 else np.where(np.arange(STEPS) % 2, 1, -1)
        tokens = torch.from_numpy(rows.astype(np.float32))
        out.append(Clip(tokens, np.arange(STEPS), label, f"film {k // 2 % groups}"))
    return out


@pytest.mark.parametrize("kind", ["mean", "change", "spread"])
def test_the_kind_that_separates_the_classes_is_chosen(kind: str) -> None:
    fitter = HeadFitter(clips(kind), 3, 0)
    held = fitter.held_out()
    best = held.best()
    # At its first steps a clip does not show yet how far it spreads.
    assert held.right(best).mean() > (0.8 if kind == "spread" else 0.99)
    assert kind == "mean" or best.pooled == {"change": CHANGE, "spread": SPREAD}[kind]
    head = fitter.head(best)
    right = []
    for clip in clips(kind, seed=1):
        logits = head.forward_steps(clip.tokens[None], head.init_state()).logits[0]
        right.append(int(logits[STEPS // 2 :].softmax(-1).mean(0).argmax()) == clip.label)
    assert np.mean(right) > (0.9 if kind == "spread" else 0.99)


def test_a_head_is_judged_from_the_first_step_on() -> None:
    """Whoever looks at the end of a clip alone does not see what a head says before it."""
    fitter = HeadFitter(clips("spread"), 3, 0)
    held = fitter.held_out(2)
    for kind in (HeadKind(MEAN, None), HeadKind(SPREAD, 0.01)):
        made, expected = clips("spread"), []
        for train, check in folds([clip.group for clip in made], 0, 2):
            head = HeadFitter([made[k] for k in train], 3, 0).head(kind)
            for k in check:
                rows = head.forward_steps(made[k].tokens[None], head.init_state()).logits[0]
                expected.append((k, rows.softmax(-1).mean(0).double().numpy()))
        answers = np.stack([answer for _, answer in sorted(expected, key=lambda pair: pair[0])])
        np.testing.assert_allclose(held.answers[kind], answers, atol=1e-3)


def test_classes_that_are_alike_are_named_as_the_reason() -> None:
    alike = clips("none")
    held = HeadFitter(alike, 3, 0).held_out()
    assert "look alike to this frontend" in why_few(held, held.best(), alike)
    few = clips("none", groups=2)
    held = HeadFitter(few, 3, 0).held_out()
    assert (
        why_few(held, held.best(), few)
        == "a class has clips of only 2 groups (recordings, or --group)"
    )
    kind, good = KINDS[0], clips("mean")
    labels = np.array([clip.label for clip in good])
    for shift, named, expected in (  # of the scores of class 2
        (0.0, (), ""),
        (0.5, (), "it ranks the classes well (area under the ROC curve 1.00), but its boundary is"),
        (None, ("none", "kick", "punch"), "kick and punch look alike to this frontend, 24 of 48"),
    ):
        scores = np.zeros((len(good), 3))
        scores[:, 1] = 0.7 if shift is None else np.where(labels == 1, 0.7, 0.3) + shift
        scores[:, 2] = 1 - scores[:, 1]
        assert why_few(HeldOut(labels, {kind: scores}), kind, good, named).startswith(expected)
        assert bool(expected) == bool(why_few(HeldOut(labels, {kind: scores}), kind, good, named))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_class_without_examples_is_never_the_answer(kind: HeadKind) -> None:
    head = HeadFitter(clips("mean"), 3, 0).head(kind)
    rows = 5 + torch.randn(1, 50, WIDTH)
    logits = head.forward_steps(rows, head.init_state()).logits
    assert (logits[0].argmax(1) != 0).all()


def test_the_spread_of_a_window_is_its_standard_deviation_step_by_step() -> None:
    """Also of large values that hardly vary, and at the beginning, where the window is not full."""
    rows = torch.randn(2, 9, 3) * torch.tensor([1.0, 1e-2, 0.0]) + 100
    head = LinearClassifier(3, 2, 4, changes=True, spread=True)
    pooled = head.pool(rows, head.init_state(2))
    expected = [rows[:, max(0, t - 3) : t + 1].double().std(1, correction=0) for t in range(9)]
    torch.testing.assert_close(
        pooled[..., 6:].double(), torch.stack(expected, 1), atol=1e-6, rtol=0
    )
    state = head.init_state(2)
    steps = [head.pool(row[:, None], state)[:, 0] for row in rows.unbind(1)]
    torch.testing.assert_close(torch.stack(steps, 1), pooled)


def test_logistic_regression_is_that_of_all_numbers() -> None:
    """The optimum that is found in the space of the rows has no slope in any direction."""
    made = clips("mean")
    head = HeadFitter(made, 3, 0).head(HeadKind(MEAN, 0.1))
    rows = torch.stack([c.tokens.cumsum(0)[[3, 4, 6, 7]] for c in made])
    rows = (rows / torch.tensor([4.0, 5.0, 7.0, 8.0])[:, None]).double()
    flat = rows.flatten(0, 1)
    centre, spread = flat.mean(0), flat.std(0, correction=0)
    scale = spread.clamp(min=0.01 * float(spread.max())) * WIDTH**0.5
    labels = torch.tensor([c.label - 1 for c in made]).repeat_interleave(4)
    stored = head.classifier.weight[1:].double()
    bias = head.classifier.bias[1:].double() + stored @ centre
    weight = (stored * scale).requires_grad_()
    logits = ((flat - centre) / scale) @ weight.T + bias
    loss = torch.nn.functional.cross_entropy(logits, labels) + 0.1 * weight.square().sum()
    (slope,) = torch.autograd.grad(loss, weight)
    assert float(slope.abs().max()) < 1e-3


def test_discriminants_are_those_of_the_covariance_within_classes() -> None:
    """In all of the space, with NumPy: the same differences between the logits of classes."""
    made = clips("mean", seed=3)
    head = HeadFitter(made, 3, 0).head(HeadKind(MEAN, 0.0))
    rows = torch.stack([c.tokens.cumsum(0)[[3, 4, 6, 7]] for c in made])
    flat = (rows / torch.tensor([4.0, 5.0, 7.0, 8.0])[:, None]).double().flatten(0, 1).numpy()
    labels = np.repeat([c.label for c in made], 4)
    scale = np.maximum(flat.std(0), 0.01 * flat.std(0).max()) * WIDTH**0.5
    z = (flat - flat.mean(0)) / scale
    first, second = (z[labels == k] for k in (1, 2))
    within = (np.cov(first.T, bias=True) + np.cov(second.T, bias=True)) / 2
    within = within / 2 + np.eye(WIDTH) * np.trace(within) / WIDTH / 2
    gap = np.linalg.solve(within, second.mean(0) - first.mean(0))
    expected = z @ gap - gap @ (first.mean(0) + second.mean(0)) / 2
    said = head(torch.from_numpy(flat).float()).double().numpy()
    np.testing.assert_allclose(said[:, 2] - said[:, 1], expected, rtol=1e-3, atol=1e-2)
    assert (said[:, 0] < said[:, 1:].max(1)).all()


def test_what_a_mirror_shows_gets_the_same_answer_with_twins() -> None:
    """All examples face one side; who faces the other one is told as well only with twins."""

    def sided(seed: int) -> list[Clip]:
        out = []
        for clip in clips("none", seed=seed):
            tokens = clip.tokens.clone()
            tokens[:, clip.label] += 1
            other = tokens.clone()
            other[:, [1, 2, 3, 4]] = tokens[:, [3, 4, 1, 2]]
            out.append(replace(clip, tokens=tokens, twins=(other,)))
        return out

    fitter = HeadFitter(sided(0), 3, 0)
    held = fitter.held_out()
    assert held.right(held.best()).mean() > 0.9
    for kind in (
        HeadKind(MEAN, 0.1, True),
        HeadKind(SPREAD, 0.01, True),
        HeadKind(MEAN, 0.0, True),
    ):
        assert kind in fitter.kinds
        apart = []
        for way in (kind, replace(kind, twins=False)):
            head = fitter.head(way)
            each = [(clip, replace(clip, tokens=clip.twins[0])) for clip in sided(1)]
            said = [[mean_answer(head, fitter.rows(c, way)) for c in both] for both in each]
            apart.append(np.abs(np.diff(said, axis=1)).max())
        assert apart[0] < 1e-3
        assert apart[1] > 0.01


def test_no_group_is_on_both_sides_and_every_example_is_checked_once() -> None:
    groups = [f"g{k % 7}" for k in range(40)]
    checked = []
    for train, check in folds(groups, 3):
        assert not {groups[k] for k in train} & {groups[k] for k in check}
        checked += check.tolist()
    assert sorted(checked) == list(range(40))
    assert list(folds(["a", "a"], 0)) == []


def test_a_boundary_that_is_off_is_moved() -> None:
    rng = np.random.default_rng(0)
    labels = [1 + k % 2 for k in range(20)]
    logits = np.array([[0.0, 0.2 * (y == 1) + 1, 0.2 * (y == 2)] for y in labels])
    logits += rng.normal(0, 0.01, logits.shape)
    answers = list(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    bias = fitted_bias(answers, labels, [f"g{k}" for k in range(20)], 0)
    assert bias is not None
    assert ((logits + bias).argmax(1) == labels).all()
    right = list(np.eye(3)[labels] * 0.9 + 0.03)
    assert fitted_bias(right, labels, [f"g{k}" for k in range(20)], 0) is None


@pytest.mark.long
@pytest.mark.parametrize("is_new", [True, False])
def test_a_head_replaces_a_network_that_is_not_better(is_new: bool) -> None:
    training, checked = clips("mean"), clips("mean", count=6, seed=1)
    tokens = [clip.tokens for clip in checked]
    checks = EncodedChecks([], lambda net: predict(net, tokens))
    none = torch.zeros(0, WIDTH)
    encoded = EncodedData(None, none, none, checks, dict, training, checked)  # type: ignore[arg-type]
    guess = LinearClassifier(WIDTH, 3).requires_grad_(False)
    guess.classifier.weight.zero_()
    choice = choose_head(guess, encoded, 3, 0, is_new=is_new)
    assert choice.head is not None
    assert "12 of 12 validation examples right" in choice.how
    assert choice.reason == ""
    right = HeadFitter(training, 3, 0)
    kept = choose_head(right.head(right.held_out().best()), encoded, 3, 0, is_new=is_new)
    assert (kept.head is None) != is_new


@pytest.mark.parametrize(("wrong", "is_kept"), [(2, True), (6, False)])
def test_what_a_base_knows_is_replaced_only_by_a_surely_better_head(
    wrong: int, is_kept: bool
) -> None:
    training, checked = clips("mean"), clips("mean", 6, 3, seed=1)
    tokens = [clip.tokens for clip in checked]

    def answers(network: torch.nn.Module) -> list[npt.NDArray[np.float64]]:
        rows = predict(network, tokens)
        if network is base:  # which takes some clips for those of the other class
            rows = [row[:, [0, 2, 1]] if k < wrong else row for k, row in enumerate(rows)]
        return rows

    fitter = HeadFitter(training, 3, 0)
    base = fitter.head(fitter.held_out().best())
    none = torch.zeros(0, WIDTH)
    checks = EncodedChecks([], answers)
    encoded = EncodedData(None, none, none, checks, dict, training, checked)  # type: ignore[arg-type]
    assert choose_head(base, encoded, 3, 0).head is not None
    assert (choose_head(base, encoded, 3, 0, knows=True).head is None) == is_kept


def test_weights_before_training_may_be_the_best() -> None:
    history = [{"step": 0.0, LOSS: 0.3}, {"step": 20.0, LOSS: 0.4}, {"step": 40.0}]
    assert is_best_untrained(history)
    assert not is_best_untrained(history[1:])
    assert not is_best_untrained([{"step": 20.0}])
    assert kept_reason(history, "mine").startswith("training made what mine knew")
    assert kept_reason(history[1:], "mine") == ""


@pytest.mark.parametrize(("wrong", "is_taken"), [(2, True), (4, False)])
def test_a_kind_that_is_right_less_often_does_not_replace_class_means(
    wrong: int, is_taken: bool
) -> None:
    every = clips("mean", count=12, groups=12)
    labels = np.array([clip.label for clip in every])
    rows = np.arange(len(labels))

    def answers(right: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        out = np.zeros((len(labels), 3))
        out[rows, labels], out[rows, 3 - labels] = right, 1 - right
        return out

    held = HeldOut(
        labels,
        {
            KINDS[0]: answers(np.where(rows < 3, 0.4, 0.6)),  # wrong in three
            KINDS[-1]: answers(np.where(rows < wrong, 0.499, 0.99)),  # hardly wrong, else sure
        },
    )
    features = SimpleNamespace(
        name="x",
        clips=every,
        first=KINDS[0],
        fitter=lambda *_: SimpleNamespace(held_out=lambda _: held),
    )
    assert held.best() == KINDS[-1]
    (chosen,) = options([features], 3, 0)  # type: ignore[list-item]
    assert chosen.kind == KINDS[-1 if is_taken else 0]
