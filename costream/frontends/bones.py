"""Parent joints of bones, as used to train published networks."""

from __future__ import annotations

from costream.layouts import Layout

# Where published code does not take the bones from the layout's own graph. A joint that is its
# own parent has no bone.
_PUBLISHED = {
    "openpose-18": (0, 0, 1, 2, 3, 1, 5, 6, 2, 8, 9, 5, 11, 12, 0, 0, 14, 15),  # 2s-AGCN
    "coco-17": (0, 0, 0, 1, 2, 0, 0, 5, 6, 7, 8, 0, 0, 11, 12, 13, 14),  # pyskl
}


def bone_parents(layout: Layout) -> tuple[int, ...]:
    """Return the parent of each joint, where its bone starts; the centre is its own parent."""
    if layout.name in _PUBLISHED:
        return _PUBLISHED[layout.name]
    parents = dict(layout.bones)
    return tuple(parents.get(joint, joint) for joint in range(len(layout.joints)))
