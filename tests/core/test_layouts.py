"""Joint layouts: bones, mirrors, conversions, and those that users declare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError, UsageError
from costream.core.layouts import (
    BANDAI_21,
    BODY_15,
    COCO_17,
    LAYOUTS,
    MEDIAPIPE_33,
    NTU_25,
    OPENPOSE_18,
    Layout,
    find_layout,
    joint_mapping,
    leads_to_centre,
    marker_sets,
)
from kit.anatomy import check_bodies, standing_body
from kit.paths import PACKS, REFS, SHARED

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@every_layout
def test_bones_lead_to_the_centre(layout: Layout) -> None:
    assert len(set(layout.joints)) == len(layout.joints)
    assert len(layout.headings) in (0, len(layout.joints))
    assert len(set(layout.headings)) == len(layout.headings)
    assert leads_to_centre(layout)


@every_layout
def test_number_of_joints_is_in_the_name(layout: Layout) -> None:
    assert layout.name.endswith(f"-{len(layout.joints)}")


@every_layout
def test_mirror_is_its_own_inverse_and_keeps_bones(layout: Layout) -> None:
    mirror = layout.mirrored
    assert [mirror[k] for k in mirror] == list(range(len(layout.joints)))
    sides = [name.split()[0] in ("left", "right") for name in layout.joints]
    assert [mirror[k] != k for k in range(len(mirror))] == sides
    bones = set(layout.bones)
    assert {(mirror[a], mirror[b]) for a, b in bones} == bones


@every_layout
def test_everything_becomes_our_own_layout(layout: Layout) -> None:
    parts = joint_mapping(layout, BODY_15)
    assert len(parts) == 15
    wrist = parts[BODY_15.joints.index("left wrist")]
    assert [layout.joints[k] for k in wrist] == ["left wrist"]
    assert all(layout.joints[k].startswith("left") for k in parts[9] + parts[10] + parts[11])


@every_layout
def test_to_itself_nothing_changes(layout: Layout) -> None:
    assert joint_mapping(layout, layout) == tuple((k,) for k in range(len(layout.joints)))


@pytest.mark.parametrize("source", LAYOUTS.values(), ids=LAYOUTS)
def test_mirroring_and_converting_commute(source: Layout) -> None:
    for target in LAYOUTS.values():
        parts = joint_mapping(source, target)
        for k, other in enumerate(target.mirrored):
            assert sorted(source.mirrored[j] for j in parts[k]) == sorted(parts[other])


def names(source: Layout, target: Layout, joint: str) -> list[str]:
    parts = joint_mapping(source, target)[target.joints.index(joint)]
    return sorted(source.joints[k] for k in parts)


def test_joints_that_a_layout_lacks() -> None:
    assert names(COCO_17, BODY_15, "hips") == ["left hip", "right hip"]
    assert names(COCO_17, BODY_15, "neck") == ["left shoulder", "right shoulder"]
    assert names(MEDIAPIPE_33, BODY_15, "head") == ["left ear", "right ear"]
    assert names(NTU_25, BODY_15, "neck") == ["neck"]
    assert NTU_25.joints[20] == "neck"  # not its own "neck", which is above it
    assert names(MEDIAPIPE_33, NTU_25, "left hand") == ["left index", "left pinky"]
    # Each part of a mean counts the same: half for the neck, half for the head.
    assert names(COCO_17, NTU_25, "upper neck") == [
        *["left ear", "left shoulder", "right ear", "right shoulder"]
    ]
    assert names(OPENPOSE_18, NTU_25, "upper neck") == ["left ear", "neck", "neck", "right ear"]


def test_joints_that_cannot_be_made_are_named() -> None:
    arm = Layout("arm-3", ("left shoulder", "left elbow", "left wrist"), ((1, 0), (2, 1)), 0)
    with pytest.raises(SourceError, match=r"arm-3 has no hips, neck, head, right shoulder"):
        joint_mapping(arm, BODY_15)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared (the reference arrays)")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("continual_ntu25", NTU_25),
        ("continual_kinetics18", OPENPOSE_18),
        ("pyskl_coco_spatial", COCO_17),
    ],
)
def test_bones_are_those_of_the_published_graphs(name: str, layout: Layout) -> None:
    graph = np.load(REFS / "skeleton" / "adjacency.npz")[name]
    wanted = {(child, parent) for parent, child in zip(*np.nonzero(graph[1]), strict=True)}
    assert set(layout.bones) == {(int(a), int(b)) for a, b in wanted}


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared (the skeleton packs)")
def test_bandai_headings_are_those_of_the_pack() -> None:
    pack = np.load(PACKS / "skel_bandai.npz")
    assert tuple(pack["joints"]) == BANDAI_21.headings


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared (the skeleton packs)")
@pytest.mark.parametrize(
    ("pack", "layout"),
    [("msraction3d", "msraction3d-20"), ("gtu3d", "ntu-25"), ("bandai", "bandai-21")],
)
def test_bones_have_the_same_length_all_the_time(pack: str, layout: str) -> None:
    """And left and right are what they are called: seen from above, hips and feet agree."""
    found = find_layout(layout)
    x = np.load(PACKS / f"skel_{pack}.npz")["x"][::50].astype(np.float32)
    x = x[np.abs(x).sum((1, 2)) > 0]
    lengths = np.stack([np.linalg.norm(x[:, a] - x[:, b], axis=1) for a, b in found.bones])
    limbs = [
        k for k, (a, _) in enumerate(found.bones) if found.joints[a].endswith(("elbow", "knee"))
    ]
    assert (lengths[limbs].std(1) / lengths[limbs].mean(1)).max() < 0.35
    place = {name: k for k, name in enumerate(found.joints)}
    toe = "toes" if "left toes" in place else "foot"
    ahead = sum(x[:, place[f"{s} {toe}"]] - x[:, place[f"{s} ankle"]] for s in ("left", "right"))
    right = x[:, place["right hip"]] - x[:, place["left hip"]]
    assert (np.cross(ahead, [0.0, 1.0, 0.0]) * right).sum(1).mean() > 0


@pytest.mark.parametrize(
    "layout", [*LAYOUTS.values(), *marker_sets().values()], ids=lambda e: e.name
)
def test_a_body_of_every_layout_is_built_like_one(layout: Layout) -> None:
    body = standing_body(layout)
    parts = joint_mapping(layout, BODY_15)
    check_bodies(np.stack([body[list(part)].mean(0) for part in parts])[None])


# Packs whose joints are, in their order, those of a layout.
OF_LAYOUTS = {
    "msraction3d": "msraction3d-20",
    "gtu3d": "ntu-25",
    "bandai": "bandai-21",
    "nwucla": "kinect-20",
    "utkinect": "kinect-20",
}


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared (the skeleton packs)")
@pytest.mark.parametrize("pack", OF_LAYOUTS)
def test_people_of_the_packs_are_built_like_their_layout(pack: str) -> None:
    x = np.load(PACKS / f"skel_{pack}.npz")["x"][::40].astype(np.float32)
    x = x[np.abs(x).sum((1, 2)) > 0]
    parts = joint_mapping(find_layout(OF_LAYOUTS[pack]), BODY_15)
    check_bodies(np.stack([x[:, list(part)].mean(1) for part in parts], 1), 0.9)


# --- find -------------------------------------------------------------------------------------


def test_by_name() -> None:
    assert find_layout("ntu-25") is NTU_25
    assert find_layout("NTU-25") is NTU_25
    with pytest.raises(UsageError, match=r"no joint layout 'ntu25'; did you mean ntu-25\?"):
        find_layout("ntu25")
    with pytest.raises(UsageError, match="mediapipe-33"):
        find_layout("human")


def declare(folder: Path, text: str) -> Layout:
    (folder / "mine.toml").write_text(text, "utf-8")
    return find_layout(str(folder / "mine.toml"))


def test_declared(tmp_path: Path) -> None:
    layout = declare(
        tmp_path,
        'joints = ["hips", "head", "left hand"]\n'
        'bones = [["head", "hips"], ["left hand", "head"]]\n',
    )
    assert layout == Layout("mine", ("hips", "head", "left hand"), ((1, 0), (2, 1)), 0)


def test_declared_with_headings(tmp_path: Path) -> None:
    layout = declare(
        tmp_path,
        'name = "suit"\ncentre = "C7"\nbones = [["P", "C7"], ["LH", "neck"]]\n'
        '[joints]\nP = "hips"\nC7 = "neck"\nLH = "left hand"\n',
    )
    assert layout == Layout(
        "suit", ("hips", "neck", "left hand"), ((0, 1), (2, 1)), 1, ("P", "C7", "LH")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("joints = 3", "two or more names"),
        ('joints = ["a"]', "two or more names"),
        ('joints = ["a", 1]', "two or more names"),
        ('joints = ["a", "a"]\nbones = []', "same name"),
        ('joints = ["a", "b"]', "bones must be pairs"),
        ('joints = ["a", "b"]\nbones = [["a"]]', "bones must be pairs"),
        ('joints = ["a", "b"]\nbones = [["a", "c"]]', "no joint 'c'"),
        ('joints = ["a", "b"]\nbones = [["a", 3]]', "no joint 3"),
        ('joints = ["a", "b"]\nbones = [["a", "b"]]\ncentre = "z"', "no joint 'z'"),
        ('joints = ["a", "b"]\nbones = [["a", "b"]]\ncentre = "a"', "to the centre, a"),
        ('joints = ["a", "b", "c"]\nbones = [["a", "b"]]', "lead every joint"),
        ('joints = ["a", "b", "c"]\nbones = [["b", "c"], ["c", "b"]]', "lead every joint"),
        ('joints = ["a", "b"]\nbones = [["a", "b"]]\nfps = 3', "unknown keys of a layout: fps"),
        ("joints = [", "not valid TOML"),
    ],
)
def test_declared_wrongly(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        declare(tmp_path, text)
    assert "mine.toml" in str(caught.value)


def test_declared_nowhere() -> None:
    with pytest.raises(UsageError, match=r"gone\.toml: cannot be read"):
        find_layout("gone.toml")
