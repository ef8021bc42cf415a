"""The fast forms of the recipe are those of the package, and what the streams are made of."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from costream.core.layouts import BODY_15
from costream.core.records import SkeletonFrame
from costream.labels.recording import BACKGROUND
from costream.models.build import save_model
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.training.checkpoint import TrainingCheckpoint
from costream.training.optim import Schedule
from costream.training.skeleton.motions import Motion, single
from costream.training.training_loop import TrainingRun
from costream.weights_io.card import Timeline
from kit.data_skeleton import STANDING, act
from weights.recipes.skeleton import learning, pictures
from weights.recipes.skeleton.card import card_of
from weights.recipes.skeleton.clips import clip_logits
from weights.recipes.skeleton.figures import figures
from weights.recipes.skeleton.learning import learn, start_from, taught_loss
from weights.recipes.skeleton.sets import MIRRORED as MIRRORED_LABELS
from weights.recipes.skeleton.sets import SETS
from weights.recipes.skeleton.streams import Changes, MixedStreams, StreamBatches
from weights.recipes.skeleton.tokens import body_tokens
from weights.recipes.skeleton.train import FLAT_FRONTEND, FRONTEND, NETWORK

LABELS = [BACKGROUND, "bend", "wave left", "wave right"]
MIRRORED = {"wave left": "wave right", "wave right": "wave left"}
NOTHING = Changes(**dict.fromkeys(Changes.__dataclass_fields__, 0.0))


def motions() -> list[Motion]:
    acts = [("bend", "bend", 0), ("wave", "wave right", 1), ("wave", "wave right", 2)]
    return [Motion(f"set {k}", label, "x", single(act(name, k))) for name, label, k in acts]


def drawn(changes: Changes, seed: int = 0, count: int = 24):
    streams = StreamBatches(motions(), LABELS, MIRRORED, changes)
    return streams.draw(count, 48, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("strides", [[1, 2, 1, 1], [2, 1, 2, 1]])
def test_products_are_the_network(strides):
    torch.manual_seed(0)
    network = SkeletonNet(5, **{**NETWORK, "widths": [8, 12, 12, 16], "strides": strides}).double()
    torch.nn.init.normal_(network.reading.weight)
    other = copy.deepcopy(network)
    x = torch.randn(3, 24, 1, 15, 9, dtype=torch.float64)
    mine, its = clip_logits(other, x), network(x)
    torch.testing.assert_close(mine, its)
    weights = torch.randn_like(its)
    (mine * weights).sum().backward()
    (its * weights).sum().backward()
    for (name, one), two in zip(network.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, rtol=1e-6, atol=1e-8, msg=name)
    for one, two in zip(network.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(two, one)


def test_tokens_are_those_of_the_frontend():
    batch = drawn(Changes(limb=1.0, flicker=0.5, away=0.5))
    assert not batch.seen.all()
    given = torch.cat((batch.joints, batch.seen[..., None].float()), -1)[:, :, None]
    expected = JointStreams(**FRONTEND)(given)
    torch.testing.assert_close(body_tokens(batch.joints, batch.seen), expected)


def test_streams_are_drawn_again_from_their_seed():
    one, again, other = drawn(Changes()), drawn(Changes()), drawn(Changes(), seed=1)
    assert one.joints.equal(again.joints)
    assert one.labels.equal(again.labels)
    assert not one.joints.equal(other.joints)
    assert one.joints.isfinite().all()


def test_unchanged_motions_and_pauses():
    batch = drawn(NOTHING)
    assert set(batch.labels.unique().tolist()) == {0, 1, 3}
    assert batch.seen.all()
    begins = batch.labels[:, 0] > 0
    assert 0 < begins.sum() < len(begins)
    joints = dict(enumerate(m.joints[:, 0, :, :3] for m in motions()))
    whole = [row for row, labels in enumerate(batch.labels) if (labels[:36] == 1).all()]
    neck = joints[0][:, 1] - joints[0][:, 0]
    for row in whole:
        own = batch.joints[row, :36, 1] - batch.joints[row, :36, 0]
        np.testing.assert_allclose(own.norm(dim=-1), np.linalg.norm(neck, axis=-1), rtol=1e-4)
    assert whole
    steps = (batch.joints[:, 1:] - batch.joints[:, :-1]).norm(dim=-1)[..., 0]
    assert steps.max() < 0.7  # where one motion follows another, the hips go on


def test_each_bone_goes_its_own_way_around_the_mean_or_the_first_pose():
    batch = drawn(replace(NOTHING, uneven=0.5))
    whole = (batch.labels[:, :36] == 1).all(1)
    assert whole.any()
    joints = torch.from_numpy(motions()[0].joints[None, :, 0, :, :3])
    own, drawn_ones = (x[:, :36, [4, 5]] - x[:, :36, [3, 4]] for x in (joints, batch.joints[whole]))
    own, drawn_ones = own[..., 1], drawn_ones[..., 1]  # people are turned, up stays up
    mean, first = (
        torch.isclose(a, b, atol=1e-4).all(1)
        for a, b in ((drawn_ones.mean(1), own.mean(1)), (drawn_ones[:, 0], own[:, 0]))
    )
    assert (mean ^ first).all()
    assert mean.any()
    assert first.any()
    far = drawn_ones.std(1) / own.std(1)
    assert far.std() > 0.1
    assert (far[:, 0] - far[:, 1]).abs().max() > 0.1


def test_joints_guessed_from_pictures_are_around_the_hips_and_sway_towards_the_camera():
    hips = slice(BODY_15.centre, BODY_15.centre + 1)
    around = drawn(NOTHING).joints - drawn(NOTHING).joints[:, :, hips]
    guessed = drawn(replace(NOTHING, guessed=1.0)).joints
    torch.testing.assert_close(guessed, around)
    swaying = drawn(replace(NOTHING, guessed=1.0, depth=0.5)).joints
    torch.testing.assert_close(swaying[..., :2], around[..., :2])
    assert not swaying[:, :, hips].any()
    assert 0.05 < (swaying - around)[..., 2].std() < 0.5
    lower = drawn(replace(NOTHING, guessed=1.0, above=0.6)).joints
    torch.testing.assert_close(lower.norm(dim=-1), around.norm(dim=-1))
    torch.testing.assert_close(lower[..., 0], around[..., 0])


def test_a_share_of_each_batch_is_of_films():
    film = np.concatenate((act("wave", 1)[..., :2], np.ones((*act("wave", 1).shape[:2], 1))), -1)
    (figure,) = pictures.upright([Motion("film", "bend", "x", film[:, None].astype(np.float32))])
    assert not figure.joints[..., 2].any()
    one, few = (StreamBatches(some, LABELS, MIRRORED, NOTHING) for some in (motions(), [figure]))
    batch = MixedStreams(one, few, 0.25).draw(12, 48, torch.Generator().manual_seed(0))
    assert batch.joints.shape[:2] == batch.labels.shape == batch.weights.shape == (12, 48)
    across, _, away = batch.joints[9:].abs().mean((0, 1, 2))
    assert away < 0.5 * across  # each motion is turned a little
    assert set(batch.labels[9:].unique().tolist()) <= {0, LABELS.index("bend")}


def test_mirrored_motions_are_the_other_label():
    labels = drawn(Changes(mirror=1.0)).labels.unique().tolist()
    assert labels == [0, 1, 2]


def test_nobody_rests_with_a_raised_hand():
    still = single(STANDING[None].repeat(20, 0))
    raised = still.copy()
    raised[-1, 0, 5, 1] = raised[-1, 0, 2, 1]  # the left wrist, as high as the head
    for motion, most in ((raised, 3), (still, 40)):
        streams = StreamBatches([Motion("set 1", "bend", "x", motion)], LABELS, MIRRORED, NOTHING)
        labels = streams.draw(64, 64, torch.Generator().manual_seed(0)).labels
        after = labels[labels[:, 0] > 0][:, 20:]  # of streams that begin with a motion
        pauses = (after > 0).int().argmax(1)
        assert pauses.max() <= most + 12  # and the way to the next motion
        assert (pauses.max() > 15) == (most > 3)


def test_figures_have_labels_of_the_sets(monkeypatch):
    monkeypatch.setattr("weights.recipes.skeleton.figures.EACH", 4)
    made = figures(0)
    known = {label for own in SETS.values() for label in own.labels.values()}
    assert {m.label for m in made} <= known | set(MIRRORED_LABELS)
    assert len({m.joints.tobytes() for m in made}) == len(made) == 40
    assert all(np.isfinite(m.joints).all() and len(m.joints) >= 12 for m in made)


def test_a_far_camera_in_front_sees_what_the_frontend_projects(monkeypatch):
    monkeypatch.setattr(pictures, "NEAREST", 1e5)
    monkeypatch.setattr(pictures, "FARTHEST", 2e5)
    monkeypatch.setattr(pictures, "PITCH", (0.0, 0.0))
    batch, frontend = drawn(Changes()), JointStreams(**FLAT_FRONTEND)
    x = batch.joints[0].numpy()
    frames = [SkeletonFrame(i, i / 15, x[i : i + 1], np.ones((1, 15)), BODY_15) for i in range(48)]
    given = torch.from_numpy(np.stack([frontend.prepare(frame) for frame in frames]))[None]
    given[..., -1] *= torch.nn.functional.pad(batch.seen[0].float()[None, :, None], (0, 0, 0, 7))
    tokens = pictures.picture_tokens(batch, torch.Generator().manual_seed(0))
    torch.testing.assert_close(tokens[:1], frontend(given), rtol=1e-3, atol=1e-3)


def test_weights_of_space_begin_those_of_pictures(tmp_path):
    """Without depth in its weights the network for space says the same of flat motions."""
    torch.manual_seed(0)
    space = SkeletonNet(len(LABELS), **NETWORK).eval()
    torch.nn.init.normal_(space.data_bn.running_mean)
    torch.nn.init.normal_(space.data_bn.bias)
    with torch.no_grad():
        for conv in (
            *space.layers["layer1"].gcn.g_conv,
            space.layers["layer1"].gcn.gcn_residual[0],
        ):
            conv.weight[:, 2::3] = 0
    card = card_of(
        *("costgcn", LABELS, {"num_classes": len(LABELS), **NETWORK}, FRONTEND, Timeline(), {})
    )
    save_model(tmp_path / "a.safetensors", card, space, JointStreams(**FRONTEND))
    flat = SkeletonNet(len(LABELS), **{**NETWORK, "channels": 6}).eval()
    start_from(flat, LABELS, tmp_path / "a.safetensors")
    x = torch.randn(2, 20, 1, 15, 9)
    xy = x[..., [0, 1, 3, 4, 6, 7]] * torch.tensor([-1.0, 1.0] * 3)
    with torch.no_grad():
        torch.testing.assert_close(flat(xy), space(x), rtol=1e-4, atol=1e-4)


def test_a_timed_training_is_over_in_time_and_continues_from_its_end(tmp_path):
    streams = StreamBatches(motions(), LABELS, MIRRORED)
    flat = {**NETWORK, "channels": 6, "widths": [8, 12], "strides": [1, 2]}
    teacher = SkeletonNet(len(LABELS), **{**NETWORK, "widths": [8], "strides": [2]}).eval()
    one, other = (SkeletonNet(len(LABELS), **flat) for _ in range(2))
    before, took = one.fc.weight.detach().clone(), []
    for network in (one, other):
        partial, began = TrainingCheckpoint(tmp_path / "a.partial", {}, False), time.monotonic()
        schedule = Schedule(40, 2, seconds=2.0)
        learn(
            network,
            streams,
            pictures.picture_tokens,
            schedule,
            16,
            TrainingRun(0, partial),
            teacher,
        )
        took.append(time.monotonic() - began)
    assert 2 <= took[0] < 10
    assert took[1] < 2
    assert not one.fc.weight.equal(before)
    assert one.fc.weight.equal(other.fc.weight)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("taught", [False, True])
def test_recorded_updates_are_the_ordinary_ones(monkeypatch, taught):
    learnt = []
    for ordinary in (100, 3):
        monkeypatch.setattr(learning, "ORDINARY", ordinary)
        torch.manual_seed(0)
        network = SkeletonNet(len(LABELS), **{**NETWORK, "widths": [8, 12], "strides": [1, 2]})
        teacher = SkeletonNet(len(LABELS), **NETWORK).cuda().eval() if taught else None
        streams = StreamBatches(motions(), LABELS, MIRRORED, device="cuda")
        learn(
            *(network.cuda(), streams, lambda batch, _: body_tokens(batch.joints, batch.seen)),
            *(Schedule(12, 4), 16, TrainingRun(), teacher),
        )
        learnt.append(network.state_dict())
    for key, value in learnt[0].items():
        torch.testing.assert_close(learnt[1][key], value, rtol=1e-3, atol=1e-4)


def test_a_teacher_is_learnt_from_where_there_is_an_action():
    taught, weights = torch.randn(2, 3, 4), torch.ones(2, 3)
    labels = torch.tensor([[0, 1, 2], [3, 0, 0]])
    agreed = taught + torch.tensor([5.0, 1, 1, 1])  # but for the background
    agreed[labels == 0] = 0
    assert taught_loss(agreed, taught, labels, weights) == pytest.approx(0, abs=1e-5)
    assert taught_loss(-taught, taught, labels, weights) > 0.1


def test_a_wider_network_begins_with_the_output_of_the_narrow_one(tmp_path):
    arguments = {"num_classes": len(LABELS), **NETWORK, "widths": [8, 12], "strides": [1, 2]}
    narrow = SkeletonNet(**arguments).eval()
    torch.nn.init.normal_(narrow.reading.weight)
    card = card_of("costgcn", LABELS, arguments, FRONTEND, Timeline(), {})
    save_model(tmp_path / "a.safetensors", card, narrow, JointStreams(**FRONTEND))
    wide = SkeletonNet(**{**arguments, "widths": [12, 16]}).eval()
    start_from(wide, LABELS, tmp_path / "a.safetensors")
    x = torch.randn(2, 20, 1, 15, 9)
    with torch.no_grad():
        torch.testing.assert_close(wide(x), narrow(x), rtol=1e-4, atol=1e-4)
