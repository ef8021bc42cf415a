"""Choice of the background's weight and of the timeline, on people that nothing is learnt from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from costream.evaluation.metrics.sequence_metrics import timeline_shares
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.training.skeleton.motion_streams import rest
from costream.training.skeleton.motions import Motion
from costream.training.skeleton.skeleton_trainer import predict
from costream.weights_io.card import Timeline
from weights.recipes.skeleton.scoring import Rows, timeline_of

BIASES = (0.0, -0.7, -1.4, -2.1, -2.8)  # added to the logit of the background
THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.55, 0.6)
WRONG = 3.0  # how much worse a wrong label is than none
LENGTH_S = 0.5  # of the shortest segment
CLOSING = 0.6  # the lower threshold, relative to the upper one
RESTS, REST_STEPS = 60, 75  # streams of people at rest, and their length
RESTS_TOLD = 0.15  # at most, of those streams, that show something


def calibrate(
    network: SkeletonNet,
    frontend: JointStreams,
    sets: Mapping[str, Sequence[Motion]],
    labels: Sequence[str],
    rate_hz: float,
    seed: int,
) -> tuple[float, Timeline]:
    """Return what to add to the background's logit, which is the first, and the timeline.

    Both minimise wrong output: the shares of motions whose timeline shows a wrong label
    (``WRONG`` times), or none, and of those whose scores have another label first, means over sets.
    Anything is shown of at most ``RESTS_TOLD`` of people at rest, or as few as can be.
    """
    motions = {name: predict(network, frontend, some) for name, some in sets.items()}
    poses = [m.joints[0] for some in sets.values() for m in some if m.joints[0, 0, :, -1].all()]
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(poses))[:RESTS]
    still = [Motion("", "", "", rest(poses[k], REST_STEPS, rng)) for k in chosen]
    quiet = predict(network, frontend, still)
    rate_hz /= network.stride
    best, least = (0.0, Timeline()), (float("inf"), 0.0)
    true = {name: [m.label for m in some] for name, some in sets.items()}
    for bias in BIASES:
        moved = {name: [shifted(p, bias) for p in rows] for name, rows in motions.items()}
        resting = [shifted(p, bias) for p in quiet]
        first = {name: [labels[p.mean(0).argmax()] for p in rows] for name, rows in moved.items()}
        missed = {
            n: np.mean([a != b for a, b in zip(first[n], true[n], strict=True)]) for n in true
        }
        for threshold in THRESHOLDS:
            timeline = Timeline(threshold, round(CLOSING * threshold, 3), LENGTH_S, 0.6)
            costs = []
            for name, rows in moved.items():
                told = [timeline_of(p, labels, timeline, rate_hz) for p in rows]
                shares = timeline_shares(told, true[name])
                costs.append(WRONG * shares["wrong"] + shares["nothing"] + missed[name])
            loud = [bool(timeline_of(p, labels, timeline, rate_hz)) for p in resting]
            cost = max(float(np.mean(loud)), RESTS_TOLD), float(np.mean(costs))
            if cost < least:
                best, least = (bias, timeline), cost
    return best


def shifted(rows: Rows, bias: float) -> Rows:
    """Return probabilities [T, K] with ``bias`` added to the logit of the background, the first."""
    out = np.array(rows, np.float64)
    out[:, 0] *= np.exp(bias)
    out /= out.sum(1, keepdims=True)
    return out
