"""Baselines: linear probe on skeletons, against scikit-learn, and nearest class mean, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from costream.core.layouts import BODY_15
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.training.baselines import SHARPNESS, nearest_centroid
from costream.training.skeleton.linear_probe import (
    BATCHES,
    DECAY,
    PROBE_STEPS,
    LinearProbe,
    disable_probe,
    fit_probe,
)
from costream.training.skeleton.motion_augment import Augmenter
from costream.training.skeleton.motion_streams import StreamMaker
from costream.training.skeleton.motions import Motion, single
from costream.training.skeleton.skeleton_trainer import AS_THEY_ARE
from costream.training.skeleton.skeleton_training import SkeletonSupply, draw
from kit import data_skeleton


@pytest.fixture
def frontend():
    return JointStreams(**data_skeleton.FRONTEND).eval()


@pytest.fixture
def network():
    torch.manual_seed(0)
    return SkeletonNet(**data_skeleton.NETWORK, statistics=True).eval()


@pytest.fixture
def supplies():
    motions = [
        Motion("", label, "", single(data_skeleton.act(label, k)))
        for label in data_skeleton.ACTS
        for k in range(3)
    ]
    augmenter = Augmenter(BODY_15, 3, AS_THEY_ARE, {})
    return [SkeletonSupply(StreamMaker(motions, data_skeleton.LABELS, augmenter, "background"), 2)]


@pytest.mark.slow
def test_it_is_a_logistic_regression(network, frontend, supplies):
    reading = fit_probe(network, frontend, supplies, 0.0, 5)
    rng = np.random.default_rng(5)
    parts = [draw(frontend, supplies, PROBE_STEPS, rng) for _ in range(BATCHES)]
    tokens, labels, weights = (torch.cat(p) for p in zip(*parts, strict=True))
    rows = network.describe(tokens).flatten(0, 1).numpy()
    labels, weights = (t[:, ::2].flatten().numpy() for t in (labels, weights))
    joints = rows.shape[1] // 2
    centred = rows - rows.mean(0)
    scales = [centred[:, :joints].std(), centred[:, joints:].std()]
    centred /= np.repeat(scales, joints)
    theirs = LogisticRegression(C=1 / (2 * DECAY * weights.sum()), max_iter=2000, tol=1e-6)
    theirs.fit(centred, labels, weights)
    with torch.no_grad():
        ours = (torch.from_numpy(rows) @ reading.weight.T + reading.bias).softmax(-1).numpy()
    np.testing.assert_allclose(ours, theirs.predict_proba(centred), atol=0.01)


def test_it_is_the_same_with_the_same_seed(network, frontend, supplies):
    one, two = (fit_probe(network, frontend, supplies, 0.1, 5) for _ in range(2))
    assert torch.equal(one.weight, two.weight)
    assert torch.equal(one.bias, two.bias)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_network_that_it_joins_gives_the_mean(network, share):
    tokens = torch.randn(2, 30, 1, 15, 6)
    reading = LinearProbe(torch.randn(4, 180), torch.randn(4))
    with torch.no_grad():
        alone = network(tokens)
        read = network.describe(tokens) @ reading.weight.T + reading.bias
        reading.join(network, share)
        together = network(tokens)
        steps = network.forward_steps(tokens, network.init_state(2)).logits
    torch.testing.assert_close(together, share * alone + (1 - share) * read)
    torch.testing.assert_close(steps, together)


def test_a_disabled_probe_neither_predicts_nor_learns(network):
    tokens = torch.randn(1, 8, 1, 15, 6)
    with torch.no_grad():
        alone = network(tokens)
        torch.nn.init.normal_(network.reading.weight)
        assert (network(tokens) - alone).abs().max() > 0.1
    disable_probe(network)
    logits = network(tokens)
    torch.testing.assert_close(logits, alone)
    logits.sum().backward()
    assert network.reading.weight.grad is None


def test_networks_without_statistics_are_refused():
    plain = SkeletonNet(**data_skeleton.NETWORK)
    with pytest.raises(ValueError, match="has no statistics"):
        disable_probe(plain)
    with pytest.raises(ValueError, match="has no statistics"):
        LinearProbe(torch.zeros(4, 180), torch.zeros(4)).join(plain, 0.5)
    with pytest.raises(ValueError, match="has no statistics"):
        plain.describe(torch.zeros(1, 1, 1, 15, 6))


def test_the_class_whose_mean_points_the_same_way_is_the_answer():
    rows = np.array([[2.0, 0, 0], [0, 0, 4], [1, 1, 0], [0, 0, 1]])
    told = nearest_centroid(rows, [1, 3, 1, 3], np.array([[5.0, 1, 1], [0, 0.1, 9]]), 4)
    cosines = []
    for check in ([5.0, 1, 1], [0, 0.1, 9]):
        means = ([1.5, 0.5, 0], [0, 0, 2.5])
        cosines.append(
            [np.dot(check, m) / np.linalg.norm(check) / np.linalg.norm(m) for m in means]
        )
    for one, two in zip(told, cosines, strict=True):
        expected = np.exp(SHARPNESS * np.array(two))
        assert one.shape == (1, 4)
        assert one[0, [1, 3]] == pytest.approx(expected / expected.sum())
        assert one[0, [0, 2]].tolist() == [0, 0]  # no examples
    assert [one.argmax() for one in told] == [1, 3]


def test_features_that_are_all_zero_are_not_trouble():
    told = nearest_centroid(np.zeros((2, 3)), [0, 1], np.zeros((1, 3)), 2)
    assert told[0].tolist() == [[0.5, 0.5]]
