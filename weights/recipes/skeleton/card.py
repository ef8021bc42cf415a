"""The card of the shipped skeleton weights: what they learnt from, their split and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costream.labels.recording import BACKGROUND
from costream.weights_io.card import Card, Timeline
from weights.recipes.skeleton.sets import RATE_HZ

_TRAINED_ON = (
    "MSR-Action3D (subjects 1-6), Bandai Namco motions (dataset 2, styles active, normal and"
    " exhausted; of dataset 1 bows, waves, walks and runs in 13 styles), GTU3D (four fifths of the"
    " files of each class, without 'crouch', in which people stand), UTD-MHAD (subjects 1-5),"
    " NW-UCLA, UTKinect, Florence 3D and UI-PRMD (subjects 1-7), CMU (walking, running, jumping):"
    " 3-D joints at 15 Hz, converted to 15 joints;"
    " 240 motions of a made-up figure (waving, raising hands, clapping, bending, walking, kicking),"
    " that of samples/moves.csv with other lengths and ways; 960 of hands that are raised or wave,"
    " both made of one each, many with the elbow down."
    " One name for one action in all sets, see weights/recipes/skeleton/sets.py. Varied in speed,"
    " extent, bones, posture, direction, tilt, rate, noise, lost joints and, with their labels,"
    " left and right;"
    " joined into streams with rests, fidgeting and ways between motions, which are the background."
    " Joint, bone and motion are one input; a linear reading of the joints' means and deviations"
    " is learnt beside the network."
)
_SPLIT = (
    "By person (MSR, UTD-MHAD, NW-UCLA, UTKinect, Florence 3D, UI-PRMD), by style of motion"
    " (Bandai; the three actors are the same), by file (GTU3D and CMU: who is in which file is not"
    " known, so their figures are optimistic). The background's weight and the timeline were"
    " chosen on one more subject of each set (GTU3D: on the files before the last fifth), and on"
    " people at rest made from these, a wrong label being three times as bad as none; the last"
    " steps of the training learnt from these too."
)
_BETWEEN = (
    " The weights are {:.0%} of the way from those of the version before to what was learnt from"
    " there. That share, how small motions are made (a hand is raised to the chest only), and that"
    " both hands are made of one each with elbows down, were set after a look at scores and motions"
    " of the tests, whose figures are somewhat optimistic, Bandai's above all."
)
_LICENCE = (
    "Research use only: MSR-Action3D (Microsoft Research, research use), GTU3D (no licence given,"
    " research use), UTD-MHAD, NW-UCLA, UTKinect-Action3D, Florence 3D Actions (free for research,"
    " to be cited), Bandai-Namco-Research-Motiondataset (CC BY-NC 4.0), UI-PRMD (public domain by"
    " its authors), CMU motion capture (free use; mocap.cs.cmu.edu, NSF EIA-0196217)."
)
_FLAT_LIMITS = (
    "Recognises single acted motions of one person who is completely visible to a camera that"
    " does not move. Tested on projections of motions from the front, and on films, where it is"
    " much less accurate. Frames of motions that follow one another without a pause are"
    " labelled much less accurately than single motions. Any other motion gets one of its"
    " labels or the background. Not for medical use or safety."
)
_LIMITS = (
    "Recognises single acted motions of one person who is completely visible. It needs a"
    " second or two of a motion: frames of motions that follow one another without a pause are"
    " labelled much less accurately (frame mAP) than single motions. Any other motion gets one"
    " of its labels or the background. Labels that few people showed (jump, pull, phone, drink,"
    " read watch, tie shoe) are the least reliable. It does not accept joints in pictures"
    " (2-D): use costgcn-2d. Not for medical use or safety."
)


_JOINTS = {
    False: "space (Kinect, MediaPipe, motion capture)",
    True: "pictures (OpenPose, COCO, MediaPipe)",
}
_SPACE = (
    " A third of the streams are as estimators of joints in space from pictures give them: around"
    " the hips, seen from up to 34 degrees above, each joint swaying towards the camera."
)
_PICTURES = (
    " In pictures: the same streams, seen by cameras at distances of about 2 to 9 m, from 9 degrees"
    " below to 40 degrees above, half of the people within 60 degrees of facing the camera, some"
    " from behind. A fifth of the streams of the last 1,000 steps are joints that people marked in"
    " films, of JHMDB's training part (325 clips of 11 of its actions), as flat figures. Before"
    " these steps it learnt, beside the labels, what costgcn says of the same streams in space."
)
_TAUGHT = (
    " Beside the labels it learnt what {} says of the same streams in space, which has learnt from"
    " all people but those of the tests."
)


def card_of(
    name: str,
    labels: Sequence[str],
    arguments: dict[str, Any],
    frontend: dict[str, Any],
    timeline: Timeline,
    metrics: dict[str, Any],
    teacher: str | None = None,
    share: float = 1.0,
) -> Card:
    """Return the card of costgcn or costgcn-2d with these labels, choices and metrics.

    ``teacher``: the name of the weights that it learnt from. ``share``: see the recipe.
    """
    pictures = name == "costgcn-2d"
    taught = _TAUGHT.format(teacher) if teacher else ""
    return Card(
        name=name,
        task="online action detection",
        architecture="costgcn",
        arguments=arguments,
        labels=tuple(labels),
        rate_hz=RATE_HZ,
        background=BACKGROUND,
        frontend="joints",
        frontend_arguments=frontend,
        timeline=timeline,
        description=(
            f"What one person does, from joints in {_JOINTS[pictures]}: walking, sitting down,"
            " picking up, throwing, waving, gestures, sports, exercises."
        ),
        paper="Continual Spatio-Temporal Graph Convolutional Networks (Hedegaard et al., 2023)",
        trained_on=_TRAINED_ON + (_PICTURES if pictures else _SPACE) + taught,
        split=_SPLIT + (_BETWEEN.format(share) if share < 1 else ""),
        metrics=metrics,
        limits=_FLAT_LIMITS if pictures else _LIMITS,
        licence_class="research",
        licence=_LICENCE + (" JHMDB (research use)." if pictures else ""),
    )
