from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.core.errors import SourceError
from costream.core.layouts import BODY_15, COCO_17, LAYOUTS, NTU_25, OPENPOSE_18, find_layout
from costream.core.records import SkeletonFrame
from costream.models.skeleton.joints import SLOTS, JointStreams
from costream.nn.fast import use_kernels
from kit.paths import REFS

EVERY = ["joint", "bone", "joint_motion", "bone_motion", "bone_direction"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def clip(batch: int, steps: int, persons: int, joints: int = 15, axes: int = 3) -> Tensor:
    """Bodies that sway; some joints and some persons are missing now and then."""
    places = torch.randn(batch, 1, persons, joints, axes)
    moves = torch.randn(batch, steps, persons, joints, axes).cumsum(1) / 20
    score = (torch.rand(batch, steps, persons, joints, 1) > 0.1).float()
    score *= torch.rand(batch, steps, persons, 1, 1) > 0.15
    return torch.cat(((places + moves) * score, score), -1)


def steps(frontend: JointStreams, x: Tensor) -> Tensor:
    state = frontend.init_state(len(x))
    return torch.stack([frontend.forward_step(x[:, t], state) for t in range(x.shape[1])], 1)


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "body-15", "origin": 5, "unit": 10, "heading": 20},
        {"layout": "body-15", "persons": 2, "normalise": "none", "missing": "zero"},
        {"layout": "ntu-25", "persons": 2, "normalise": "ntu"},
        {"layout": "ntu-25", "persons": 2, "normalise": "pyskl"},
        {"layout": "openpose-18", "axes": 2, "normalise": "kinetics", "score": "difference"},
        {"layout": "coco-17", "axes": 2, "normalise": "pyskl", "score": "mean"},
        {"layout": "body-15", "axes": 2},
    ],
)
def test_a_clip_is_its_steps_bit_for_bit(options: dict[str, Any]) -> None:
    frontend = JointStreams(**options, streams=EVERY)
    x = clip(3, 30, 2, frontend.joints, frontend.axes)
    tokens = frontend(x)
    assert tokens.shape == (3, 30, frontend.persons, frontend.joints, frontend.channels)
    assert torch.equal(tokens, steps(frontend, x))
    assert tokens.isfinite().all()
    alone = torch.cat([steps(frontend, row[None]) for row in x])
    torch.testing.assert_close(tokens, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("persons", [1, 3])
@pytest.mark.parametrize("missing", ["hold", "zero"])
@pytest.mark.parametrize("memory", [(1, None, None), (30, 0, 30), (0, 5, 0), (None, 1, 1)])
def test_the_compiled_loop_equals_the_equations(
    axes: int, persons: int, missing: str, memory: tuple[int | None, int | None, int | None]
) -> None:
    origin, unit, heading = memory
    frontend = JointStreams(
        *("body-15", axes, persons, ["bone_motion", "joint", "bone", "joint_motion"]),
        *("body", origin, unit, heading, missing),
        min_score=0.3,
        patience=2,
    )
    x = clip(3, 40, 4, axes=axes)
    x *= torch.rand(3, 40, 4, 1, 1) > 0.3  # persons leave for longer than the patience
    fast, plain = frontend.init_state(3), frontend.init_state(3)
    for t in range(40):
        tokens = frontend.forward_step(x[:, t], fast)
        with use_kernels(False):
            expected = frontend.forward_step(x[:, t], plain)
        torch.testing.assert_close(tokens, expected, rtol=1e-4, atol=1e-5)
        for one, other in zip(fast.tensors().values(), plain.tensors().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_fewer_persons_than_before() -> None:
    x = clip(2, 12, 5).abs()
    x[..., 0:3, -1], x[..., 3:, -1] = 0, 1  # those of the last slots are there
    kept = []
    for compiled in (True, False):
        frontend = JointStreams("body-15", persons=2, patience=2)
        state = frontend.init_state(2)
        with use_kernels(compiled):
            rows = [
                frontend.forward_step(x[:, t, : 5 if t < 4 else 2 + t % 3], state)
                for t in range(12)
            ]
        kept.append((torch.stack(rows), *state.tensors().values()))
    for one, other in zip(*kept, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_other_shapes_and_parents_are_refused() -> None:
    frontend = JointStreams("body-15")
    state = frontend.init_state(1)
    for shape in ((4, 8, 15, 4), (1, 8, 17, 4), (1, 8, 15, 3), (1, 0, 15, 4), (1, 15, 4)):
        with pytest.raises(ValueError, match="do not fit the state"):
            frontend.forward_step(torch.zeros(shape), state)
    for parents in ([0] * 3, [99] * 15, [-1] * 15):
        with pytest.raises(ValueError, match="parents must be 15 numbers of joints"):
            JointStreams("body-15", parents=parents)
    with pytest.raises(ValueError, match="patience must be a whole number"):
        JointStreams("body-15", patience=1.5)  # type: ignore[arg-type]


def ntu() -> dict[str, np.ndarray]:
    path = REFS / "skeleton" / "parse_ntu.npz"
    if not path.exists():
        pytest.skip("needs ../shared/refs/skeleton (the project's shared data)")
    return dict(np.load(path))


def test_ntu_equals_the_published_preparation() -> None:
    """Reference arrays of 2s-AGCN's own code, as far as a stream can know them.

    That code drops the empty frames of a person who is not there at first, and fills the end by
    repetition: only the first is done here.
    """
    given = ntu()
    raw = torch.from_numpy(given["read_xyz"]).float().permute(1, 3, 2, 0)  # [T, M, V, C]
    first = raw[(raw[:, 0] != 0).any(-1).any(-1), 0]
    raw = torch.stack((first, raw[: len(first), 1]), 1)
    score = (raw != 0).any(-1, keepdim=True).float()
    there = score.any(2)[..., 0]
    assert there.sum(0).tolist() == [9, 8]
    options = {"normalise": "ntu", "missing": "zero"}
    frontend = JointStreams("ntu-25", persons=2, streams=EVERY[:4], **options)
    got = frontend(torch.cat((raw, score), -1)[None])[0]
    keys = ("pre_normalized", *EVERY[1:4])
    for key, part in zip(keys, got.split(3, -1), strict=True):
        expected = torch.from_numpy(given[key]).float().permute(1, 3, 2, 0)[: len(raw)]
        if "motion" in key:  # theirs is of the step after
            part, expected, seen = part[1:], expected[:-1], there[1:] & there[:-1]
        else:
            seen = there
        assert (part - expected)[seen].abs().max() < 2e-5, key
        assert not part[~there[-len(part) :]].any()


@pytest.mark.parametrize(
    ("layout", "parents"),
    [
        (NTU_25, {20: 20, 0: 1, 21: 22, 24: 11}),
        (OPENPOSE_18, {0: 0, 8: 2, 11: 5, 16: 14, 17: 15, 1: 0}),
        (COCO_17, {0: 0, 11: 0, 12: 0, 5: 0, 15: 13, 4: 2}),
        (BODY_15, {0: 0, 2: 1, 11: 10}),
    ],
)
def test_bones(layout: Any, parents: dict[int, int]) -> None:
    """Bones as in the fact sheet; a joint that is its own parent has none."""
    frontend = JointStreams(layout.name, normalise="none", streams=["joint", "bone"])
    x = clip(1, 1, 1, frontend.joints)
    x[..., -1] = 1
    joint, bone = frontend(x)[0, 0, 0].split(3, -1)
    for child, parent in parents.items():
        assert torch.equal(bone[child], joint[child] - joint[parent])


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_every_layout_with_what_body_15_needs_can_be_taken(name: str) -> None:
    frontend, layout = JointStreams("body-15"), find_layout(name)
    count = len(layout.joints)
    joints = np.random.default_rng(0).standard_normal((2, count, 3)).astype(np.float32)
    frame = SkeletonFrame(0, 0.0, joints, np.ones((2, count), np.float32), layout)
    out = frontend.prepare(frame)
    assert out.shape == (SLOTS, 15, 4)
    assert out.dtype == np.float32
    place = {joint: k for k, joint in enumerate(layout.joints)}
    for k, joint in enumerate(BODY_15.joints):
        if joint in place:
            np.testing.assert_array_equal(out[:2, k, :3], joints[:, place[joint]])
    assert (out[:2, :, 3] == 1).all()
    assert not out[2:].any()


def test_a_joint_made_of_several_is_missing_when_one_is() -> None:
    frontend, layout = JointStreams("body-15"), find_layout("coco-17")
    joints = np.ones((1, 17, 3), np.float32)
    scores = np.ones((1, 17), np.float32)
    joints[0, 5], scores[0, 5] = 0, 0  # left shoulder
    out = frontend.prepare(SkeletonFrame(0, 0.0, joints, scores, layout))
    names = list(BODY_15.joints)
    assert out[0, names.index("neck"), 3] == 0
    assert out[0, names.index("right shoulder"), 3] == 1
    tokens = frontend.forward_step(torch.from_numpy(out)[None], frontend.init_state())
    assert not tokens[0, 0, names.index("neck")].any()


def test_what_does_not_fit_is_reported() -> None:
    frontend = JointStreams("body-15")
    with pytest.raises(SourceError, match="2 axes, but the model takes 3"):
        frontend.check(COCO_17, 2)
    few = JointStreams("ntu-25", axes=2, normalise="none")
    with pytest.raises(SourceError, match="the skeletons are 3D"):
        few.check(NTU_25, 3)
    odd = LAYOUTS["body-15"].__class__("odd", ("a", "b"), ((1, 0),), 0)
    for _ in range(2):  # a refused layout is not known the next time
        with pytest.raises(SourceError, match=r"layout odd has no .*hips"):
            frontend.check(odd, 3)


def body(**options: Any) -> JointStreams:
    return JointStreams("body-15", **options)


def seen(x: Tensor) -> Tensor:
    return torch.cat((x, torch.ones_like(x[..., :1])), -1)


def turned(x: Tensor, angle: float) -> Tensor:
    cos, sin = np.cos(angle), np.sin(angle)
    return x @ torch.tensor([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]], dtype=x.dtype).T


def test_a_body_is_the_same_wherever_it_stands_however_large_and_turned() -> None:
    x = torch.randn(1, 20, 1, 15, 3)
    walk = torch.randn(1, 20, 1, 1, 3)
    tokens = body()(seen(x))
    moved = body()(seen(1.7 * turned(x, 2.0) + walk))
    torch.testing.assert_close(moved, tokens, rtol=0, atol=2e-5)
    assert not tokens[..., 0, :].any()  # the hips
    names = list(BODY_15.joints)
    across = sum(
        tokens[0, 0, 0, names.index(f"right {part}")] - tokens[0, 0, 0, names.index(f"left {part}")]
        for part in ("shoulder", "hip")
    )
    assert across[0] > 0
    assert abs(across[2]) < 1e-5


def test_memory_of_the_frame_of_reference() -> None:
    """1 is each step by itself, None the mean of all, 0 nothing."""
    x = torch.randn(1, 9, 1, 15, 3) + torch.arange(9.0).view(1, 9, 1, 1, 1)
    size = {"unit": 0, "heading": 0}
    assert torch.equal(body(origin=0, **size)(seen(x)), x)
    torch.testing.assert_close(body(origin=1, **size)(seen(x)), x - x[..., :1, :])
    hips = x[:, :, :1, :1]
    means = torch.stack([hips[:, : t + 1].mean(1) for t in range(9)], 1)
    torch.testing.assert_close(body(origin=None, **size)(seen(x)), x - means)
    followed = body(origin=3, **size)(seen(x))
    torch.testing.assert_close(followed[:, :3], (x - means)[:, :3])
    assert not torch.allclose(followed[:, 8], (x - means)[:, 8])


def test_missing_joints_hold_their_place_or_are_zero() -> None:
    x = seen(torch.randn(1, 3, 1, 15, 3))
    x[:, 1, :, 5] = 0
    x[:, :, :, 8] = 0
    held = body(streams=EVERY)(x)[0, :, 0]
    joint, bone, motion, bone_motion, direction = held.split(3, -1)
    length = bone.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(direction * length, bone, rtol=0, atol=1e-5)
    assert torch.equal(joint[1, 5], joint[0, 5])
    assert not motion[1, 5].any()
    assert not joint[:, 8].any()
    assert not bone[:, 8].any()
    assert motion[2, 5].any()
    assert bone_motion[1, 5].any()  # its parent has moved
    assert not body(missing="zero")(x)[0, 1, 0, 5].any()


def test_motion_is_zero_at_the_start_and_when_somebody_comes_back() -> None:
    x = seen(torch.randn(1, 6, 1, 15, 3))
    x[:, 3] = 0
    joint, motion = body(streams=["joint", "joint_motion"])(x)[0, :, 0].split(3, -1)
    assert not motion[[0, 3, 4]].any()
    assert not joint[3].any()
    torch.testing.assert_close(motion[2], joint[2] - joint[1])
    torch.testing.assert_close(motion[5], joint[5] - joint[4])


def test_scores_as_a_channel() -> None:
    x = clip(1, 4, 1, 18, 2)
    x[..., -1] = torch.rand(1, 4, 1, 18) * 0.8 + 0.2
    options = {"axes": 2, "normalise": "kinetics", "missing": "zero", "streams": EVERY[:4]}
    for score, of in (("difference", lambda a, b: a - b), ("mean", lambda a, b: (a + b) / 2)):
        tokens = JointStreams("openpose-18", score=score, **options)(x)[0, :, 0]
        joint, bone, motion, _ = (part[..., 2] for part in tokens.split(3, -1))
        assert torch.equal(joint, x[0, :, 0, :, 2])
        torch.testing.assert_close(bone[:, 4], of(joint[:, 4], joint[:, 3]))
        torch.testing.assert_close(motion[1:], of(joint[1:], joint[:-1]))
    torch.testing.assert_close(tokens[0, :, 0], x[0, 0, 0, :, 0] - 0.5)
    torch.testing.assert_close(tokens[0, :, 1], x[0, 0, 0, :, 1] + 0.5)  # y is up


def test_persons_keep_their_places() -> None:
    frontend = JointStreams("body-15", persons=2, normalise="none", patience=2)
    people = [torch.full((15, 3), float(k + 1)) for k in range(3)]

    def of(*slots: int | None) -> Tensor:
        x = torch.zeros(1, 3, 15, 4)
        for slot in slots:
            x[0, slot] = seen(people[slot])
        return x

    state = frontend.init_state()
    inputs = [of(1), of(0, 1), of(0), of(0, 1, 2), *[of(0, 2)] * 4, *[of(2)] * 4]
    got = [
        tuple(int(p[0, 0]) for p in frontend.forward_step(x, state)[0]) for x in inputs
    ]  # 0: nobody, else 1 + slot
    assert got[:4] == [(2, 0), (2, 1), (0, 1), (2, 1)]
    assert got[4:8] == [(0, 1), (0, 1), (1, 3), (1, 3)]  # gone for longer than the patience
    assert got[8:] == [(0, 3), (0, 3), (3, 0), (3, 0)]


def test_numbers_without_a_meaning_warn_of_nothing() -> None:
    x = seen(torch.full((1, 4, 1, 15, 3), 3e38) * torch.randn(1, 4, 1, 15, 3).sign())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"origin": 30}, {"layout": "ntu-25", "normalise": "ntu"}):
            joints = JointStreams(**{"layout": "body-15", **options})
            steps(joints, x if joints.joints == 15 else x[..., :1, :].repeat(1, 1, 1, 25, 1))


def test_costs() -> None:
    assert JointStreams("body-15", persons=2, heading=0).count_macs() == 0
    assert JointStreams("body-15", persons=2).count_macs() == 2 * 15 * 4
    assert JointStreams("ntu-25", normalise="ntu").count_macs() == 25 * 9
