"""The card of ``costgcn-2d``: what it learnt from, its split and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costream.labels.recording import BACKGROUND
from costream.weights_io.card import Card
from weights.recipes.skeleton.people_choices import Choices
from weights.recipes.skeleton.seen import ErrorRates
from weights.recipes.skeleton.sets import RATE_HZ

_DESCRIPTION = (
    "What each person does, from joints in pictures: of video (nanodet and pose), OpenPose, COCO or"
    " MediaPipe. Walking, sitting, falling, lying, exercises, gestures, sports."
)
_MOTIONS = (
    "Motions of MSR-Action3D, Bandai Namco (dataset 2 and, of dataset 1, bows, waves, walks and"
    " runs), GTU3D, UTD-MHAD, NW-UCLA, UTKinect, Florence 3D, UI-PRMD and CMU as costgcn's card"
    " lists them, without the persons and files of the tests; JHMDB's training part (joints that"
    " people marked); motions of two made-up figures (hands, walks, kicks; falls, lying, sitting,"
    " getting up, squats, lunges, deadlifts, push-ups, planks, jumping jacks, bridges, crunches,"
    " standing about). Seen by cameras from 9 degrees below to 40 above, an eighth of them up to"
    " 75. Six tenths of these streams have what was measured of nanodet and pose in {tracks} tracks"
    " of UT-Interaction, fight films and GMDCSA24: joints that are missing ({missing}), persons who"
    " are lost ({away:.1%} of the steps within a track), and noise ({noise:.3f} mean bones)."
)
_FILMS = (
    " Half are persons in films as nanodet and pose find them: 375 clips from 29 public"
    " repositories (exercises, UT-Interaction, others), GMDCSA24's persons 1 and 3, and a third of"
    " the clips of fight films, without the films of its test part; a step has a set of labels that"
    " may be true (Cour et al., 2011); who stands upright in a clip of squats, deadlifts or lunges"
    " does none. It began with the weights of version 0.1."
)
_SPLIT = (
    "Films by source: a repository, a place of UT-Interaction, a person's home, a film. Weights"
    " are the mean of those of two trainings (Wortsman et al., Model soups, 2022). Five"
    " networks each learnt without a fifth of the sources; what each says of that fifth is the"
    " score of films below, and chose temperature {temperature}, the background's weight,"
    " thresholds of single labels, the shortest segment (together with one subject of each set of"
    " motions and GMDCSA24's person 2; a wrong label is as bad as none, but six exercises have a"
    " threshold of 0.45). Those choices were made on the clips that are scored. The shipped"
    " weights learnt from all of them, and from those subjects. Sets of motions: by person, by"
    " style (Bandai), by file (GTU3D, CMU); their tests were looked at for earlier versions. Of the"
    " steps in films that nothing was learnt from, where the most probable label has {said}, it may"
    " be true in {right}."
)
_LIMITS = (
    "A label without a pause or with less than the joints of arms and legs is often not shown."
    " Labels with threshold 1 are not shown: on films that nothing was learnt from they were wrong"
    " more often than right. Falls were learnt from a made-up figure and eight clips: nothing is"
    " claimed of them. People seen from a ceiling are hardly found"
    " by the detector. Not for medical use or safety."
)
_LICENCE = (
    "Research use only: MSR-Action3D (Microsoft Research, research use), GTU3D (no licence given,"
    " research use), UTD-MHAD, NW-UCLA, UTKinect-Action3D, Florence 3D Actions (free for research,"
    " to be cited), Bandai-Namco-Research-Motiondataset (CC BY-NC 4.0), UI-PRMD (public domain by"
    " its authors), CMU motion capture (free use; mocap.cs.cmu.edu, NSF EIA-0196217), JHMDB"
    " (research use), UT-Interaction (research use), clips of public repositories (most without a"
    " licence), GMDCSA24 (MIT), fight films (MIT repository; Akti et al., 2019)."
)


def card_of(
    labels: Sequence[str],
    arguments: dict[str, Any],
    frontend: dict[str, Any],
    choices: Choices,
    metrics: dict[str, Any],
    errors: ErrorRates,
) -> Card:
    """Return the card with these labels, choices and metrics."""
    missing = ", ".join(f"{part} {share:.0%}" for part, share in errors.missing.items())
    about = {"tracks": errors.tracks, "away": errors.away, "noise": errors.noise}
    bins = [row for row in choices.reliability if row["share"] >= 0.005]
    said, right = (", ".join(f"{row[name]:.2f}" for row in bins) for name in ("said", "right"))
    return Card(
        name="costgcn-2d",
        task="online action detection",
        architecture="costgcn",
        arguments={"num_classes": len(labels), **arguments},
        labels=tuple(labels),
        rate_hz=RATE_HZ,
        background=BACKGROUND,
        frontend="joints",
        frontend_arguments=frontend,
        timeline=choices.timeline,
        description=_DESCRIPTION,
        paper="Continual Spatio-Temporal Graph Convolutional Networks (Hedegaard et al., 2023)",
        trained_on=_MOTIONS.format(missing=missing, **about) + _FILMS,
        split=_SPLIT.format(temperature=choices.temperature, said=said, right=right),
        metrics=metrics,
        limits=_LIMITS,
        licence=_LICENCE,
        licence_class="research",
    )
