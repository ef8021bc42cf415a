"""The joints of each set, as the recipe reads them: a table of names, and the people themselves."""

from __future__ import annotations

import numpy as np
import pytest

from costream.core.layouts import BANDAI_21, BODY_15
from costream.sources.skeletons.joint_names import joint_index
from kit.anatomy import check_bodies
from kit.paths import PACKS, SHARED
from weights.recipes.skeleton.sets import SETS, read_set

# What body-15 calls hips and what a set calls so need not be one: these have a joint of the trunk
# in its place, or other words for theirs.
OTHER_WORDS = {
    "florence3d": {"hips": None},  # the set has a spine, and no hips
    "uiprmd": {
        "hips": "waist",
        **{f"{s} shoulder": f"upper_arm_{s}" for s in ("left", "right")},
        **{f"{s} elbow": f"forearm_{s}" for s in ("left", "right")},
        **{f"{s} wrist": f"hand_{s}" for s in ("left", "right")},
        **{f"{s} hip": f"upper_leg_{s}" for s in ("left", "right")},
        **{f"{s} knee": f"lower_leg_{s}" for s in ("left", "right")},
        **{f"{s} ankle": f"foot_{s}" for s in ("left", "right")},
    },
}

pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared (the skeleton packs)")


@pytest.mark.parametrize("name", SETS)
def test_each_joint_is_the_one_that_the_set_names(name: str) -> None:
    with np.load(PACKS / f"skel_{name}.npz") as pack:
        if "joints" not in pack.files:
            pytest.skip("the pack names no joints")
        names = list(map(str, pack["joints"]))
    if tuple(names) == BANDAI_21.headings:
        names = list(BANDAI_21.joints)
    others = OTHER_WORDS.get(name, {})
    for joint, k in zip(BODY_15.joints, SETS[name].joints, strict=True):
        if joint in others:
            assert others[joint] == (None if k < 0 else names[k])
        else:
            found = joint_index(BODY_15, [names[k]])
            assert found.get(names[k]) == BODY_15.joints.index(joint), names[k]


@pytest.mark.parametrize("name", SETS)
def test_people_of_each_set_are_built_like_people(name: str) -> None:
    joints = [motion.joints[::10, 0] for motion in read_set(PACKS, name)[::3]]
    x = np.concatenate(joints)
    x = x[(x[..., -1] > 0).all(1), :, :-1]
    assert len(x) > 50
    # In UI-PRMD people squat: their knees are as high as their hips.
    check_bodies(x, 0.8 if name == "uiprmd" else 0.9)
