"""Matching of joint names in tables to joint layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from costream.core.errors import SourceError
from costream.core.layouts import (
    BODY_15,
    BODY_25,
    COCO_17,
    COCO_WHOLEBODY_133,
    HALPE_26,
    KINECT_20,
    LAYOUTS,
    MEDIAPIPE_33,
    OPENPOSE_18,
    Layout,
    joint_mapping,
    marker_sets,
)
from costream.sources.file import first_of

# Layouts identified by the number of joints; 25 joints may be ntu-25 or body-25.
LAYOUT_BY_JOINT_COUNT = {
    len(layout.joints): layout
    for layout in (*(COCO_17, OPENPOSE_18, KINECT_20, HALPE_26, MEDIAPIPE_33, COCO_WHOLEBODY_133),)
}
# Joint names of pose estimators by the number of joints; further joints (hands, face) are unused.
NAMES_BY_COUNT = {
    17: COCO_17.joints,
    18: OPENPOSE_18.joints,
    25: BODY_25.joints,
    26: HALPE_26.joints,
    133: COCO_WHOLEBODY_133.joints[:23],
    136: HALPE_26.joints,
}
# Joints that a table may lack and still match a layout.
DETAILS = (
    *("eye", "ear", "mouth", "nose", "thumb", "tip", "index", "pinky", "knuckles"),
    *("heel", "toes", "toe", "foot", "top"),
)
# Words in the names of joints that people do not have.
_ANIMAL = frozenset(
    ("tail", "tailbase", "snout", "paw", "hoof", "beak", "wing", "withers", "fin", "whisker")
)
_SIDES = {"left": "left", "l": "left", "lt": "left", "right": "right", "r": "right", "rt": "right"}
_SYNONYMS = {
    "pelvis": "hips",
    "root": "hips",
    "mid hip": "hips",
    "midhip": "hips",
    "hip center": "hips",
    "hip centre": "hips",
    "spine base": "hips",
    "shoulder center": "neck",
    "shoulder centre": "neck",
    "spine shoulder": "neck",
    "mid shoulder": "neck",
    "spine": "mid spine",
    "spine mid": "mid spine",
    "torso": "mid spine",
    "belly": "mid spine",
    "face": "head",
    "big toe": "toes",
    "foot index": "toes",
    "toe": "toes",
    "eye inner": "inner eye",
    "eye outer": "outer eye",
    "index finger": "index",
    "little finger": "pinky",
    "handtip": "hand tip",
}
_PARTS = "shoulder|elbow|wrist|hand|hip|knee|ankle|foot|toe|toes|heel|eye|ear|thumb|bigtoe|smalltoe"
_GLUED = re.compile(rf"(l|r|left|right)({_PARTS})|({_PARTS})(left|right|l|r)")


def pad_names(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return names for ``count`` joints: those after the last name are not used."""
    return names + tuple(f"further {k}" for k in range(len(names), count))


def words_of(text: str) -> list[str]:
    """Return the words of a heading in lower case: "HandTipLeft.X" is hand, tip, left, x."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    text = re.sub(r"([A-Z])([A-Z][a-z])", r"\1 \2", text)
    text = re.sub(r"([A-Za-z])([0-9])|([0-9])([A-Za-z])", r"\1\3 \2\4", text)
    return re.findall(r"[^\W_]+", text.lower())


def joint_phrase(text: str) -> str:
    """Return a joint's name in normal form: its side, if it has one, and then the part."""
    side, rest = "", []
    for word in words_of(text):
        glued = _GLUED.fullmatch(word)
        if word in _SIDES and not side:
            side = _SIDES[word]
        elif glued and not side:
            side = _SIDES[glued[1] or glued[4]]
            rest.append(glued[2] or glued[3])
        else:
            rest.append(word)
    return " ".join([side, *rest] if side else rest)


def joint_index(layout: Layout, names: Sequence[str]) -> dict[str, int]:
    """Return the joint index of each recognised name; a joint gets at most one name.

    Kinect's "neck" differs from costream's: names are read as the headings of the layout or as
    costream's joint names, whichever matches more of them.
    """
    headings = {joint_phrase(name): k for k, name in enumerate(layout.headings)}
    joints = {joint_phrase(name): k for k, name in enumerate(layout.joints)}
    return max(_matched(names, headings, joints), _matched(names, joints, headings), key=len)


def _matched(
    names: Sequence[str], first: Mapping[str, int], then: Mapping[str, int]
) -> dict[str, int]:
    found: dict[str, int] = {}
    taken: set[int] = set()
    for indices in (first, then):
        for name in names:
            phrase = joint_phrase(name)
            k = indices.get(phrase, indices.get(_plain(phrase)))
            if k is not None and name not in found and k not in taken:
                found[name] = k
                taken.add(k)
    return found


def find_joints(
    names: Sequence[str], layout: Layout | None, where: str
) -> tuple[Layout, Mapping[str, int]]:
    """Return the layout of these joints, and the joint index of each name.

    ``layout``: the requested layout, if any; joints not in it are left out. Names may be numbers,
    counting from 0 or 1. Raises SourceError if they do not identify a layout.
    """
    if all(name.isdecimal() for name in names):
        return _numbered(names, layout, where)
    if layout is not None:
        found = joint_index(layout, names)
        if not found:
            raise SourceError(
                f"none of its joints ({first_of(names)}) is in the layout {layout.name}",
                where=where,
                hint="a layout in a TOML file can declare the headings that tables use",
            )
        return layout, found
    animal = [name for name in names if not _ANIMAL.isdisjoint(words_of(name))]
    if animal:
        raise SourceError(
            f"these are joints of an animal ({first_of(animal)}; all: {first_of(names, 12)}), and"
            " the models are of people",
            where=where,
            hint="to try one nevertheless, declare which joint is which of a person's in a file, "
            "and give --layout joints.toml (costream help skeletons)",
        )
    layouts = (*LAYOUTS.values(), *marker_sets().values())
    candidates = [(joint_index(candidate, names), candidate) for candidate in layouts]
    complete = [c for c in candidates if len(c[0]) == len(c[1].joints)]
    fitting = [c for c in candidates if len(c[0]) == len(names) and not _lacks(*c)]
    if complete or fitting:
        # Most of the joints count; of layouts with as many, one of which all are there.
        least = min((len(c[1].joints) for c in fitting), default=0)
        smallest = [c for c in fitting if len(c[1].joints) == least]
        found, best = max([*complete, *smallest], key=lambda c: len(c[0]))
        return best, found
    bodies = [(len(c[0]), -len(c[1].joints), k) for k, c in enumerate(candidates) if _is_body(*c)]
    if not bodies:
        recognised = first_of(max(candidates, key=lambda c: len(c[0]))[0]) or "none"
        raise SourceError(
            f"its joints ({first_of(names, 12)}) do not make a complete body in any known layout "
            f"(recognised: {recognised})",
            where=where,
            hint="declare them in a file, joints.toml: bones = [...] and [joints] with one line "
            f'for each, {names[0]} = "left wrist"; and give --layout joints.toml '
            "(costream help skeletons)",
        )
    found, best_layout = candidates[max(bodies)[2]]
    part = best_layout.only(set(found.values()))
    place = {best_layout.joints.index(joint): k for k, joint in enumerate(part.joints)}
    return part, {name: place[k] for name, k in found.items()}


def _is_body(found: Mapping[str, int], layout: Layout) -> bool:
    """Return whether all joints of the common body (BODY_15) can be computed from those found."""
    if len(found) < 2:
        return False
    try:
        joint_mapping(layout.only(set(found.values())), BODY_15)
    except SourceError:
        return False
    return True


def _numbered(
    names: Sequence[str], layout: Layout | None, where: str
) -> tuple[Layout, Mapping[str, int]]:
    numbers = {name: int(name) for name in names}
    low, high = min(numbers.values()), max(numbers.values())
    count = len(layout.joints) if layout is not None else high - min(low, 1) + 1
    base = 1 if low > 0 and high == count else 0
    if layout is None:
        if len(set(numbers.values())) < count or low > 1:
            raise SourceError(
                f"its joints are numbered from {low} to {high} with gaps",
                where=where,
                hint="name the joint layout: --layout NAME",
            )
        layout = LAYOUT_BY_JOINT_COUNT.get(count)
    if layout is None:
        fits = [layout.name for layout in LAYOUTS.values() if len(layout.joints) == count]
        raise SourceError(
            f"{count} joints may be {' or '.join(fits)}" if fits else f"{count} joints are unknown",
            where=where,
            hint="give the joint layout: --layout NAME, or a TOML file that declares it",
        )
    if high - base >= count:
        raise SourceError(
            f"there is a joint number {high}, but {layout.name} has {count} joints", where=where
        )
    return layout, {name: number - base for name, number in numbers.items()}


def _lacks(found: Mapping[str, int], layout: Layout) -> bool:
    """Return whether more than details of hands, feet and face are missing."""
    missing = (name for k, name in enumerate(layout.joints) if k not in found.values())
    return any(name.split()[-1] not in DETAILS for name in missing)


def _plain(phrase: str) -> str:
    side, _, rest = phrase.partition(" ")
    if side in ("left", "right"):
        return f"{side} {_SYNONYMS.get(rest, rest)}"
    return _SYNONYMS.get(phrase, phrase)
