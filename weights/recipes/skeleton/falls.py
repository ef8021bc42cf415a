"""The rule for falls as a weight file: ``python -m weights.recipes.skeleton.falls``.

Nothing is trained: the file holds the constants of the rule, and its card.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from costream.labels.recording import BACKGROUND
from costream.models.build import save_model
from costream.models.skeleton.falls import LABELS, FallRule
from costream.models.skeleton.joints import JointStreams
from costream.models.spec import model_spec
from costream.training.card_text import card_text, sequence_table
from costream.weights_io.card import Card, Timeline
from weights.recipes.common import FREE, carry_out

NAME = "falls"
CARD = Card(
    name=NAME,
    task=model_spec(NAME).task,
    architecture=NAME,
    arguments={"num_classes": len(LABELS)},
    labels=LABELS,
    rate_hz=model_spec(NAME).rate_hz,
    background=BACKGROUND,
    frontend="joints",
    frontend_arguments=dict(model_spec(NAME).frontend_arguments),
    timeline=Timeline(0.5, 0.3, 0.2, 1.0),
    description=(
        "Who falls, and who lies, from joints in pictures: of video (nanodet and pose), OpenPose,"
        " COCO or MediaPipe. A rule without learning: head and hips come down fast, and the body is"
        " then on the floor."
    ),
    paper="Fall detection - principles and methods (Noury et al., EMBS 2007)",
    trained_on=(
        "Nothing. Its constants were chosen on eleven falls and eight other films of three persons"
        " of GMDCSA24, on persons in films who exercise, meet, fight or pass by, and on a made-up"
        " figure seen by cameras from 9 degrees below to 52 above."
    ),
    split=(
        "There is none: these are the films that the constants were chosen on. A fall was shown in"
        " 9 of the 11 (8 with joints found otherwise), at most 0.7 s after its end, and in none of"
        " the 8 others. In 29 minutes of clips of other persons, as nanodet and pose find them, it"
        " found two that are falls, two in fights, and 12 that are not: exercises (a push-up, a"
        " burpee, a deadlift), people who meet, push, box, play the guitar, wash hands, ride,"
        " shuffle cards. An earlier search found none in 11 minutes of persons who pass by, and 29"
        " of 40 falls of the figure."
    ),
    limits=(
        "Scores are 0 or nearly 1, and are not probabilities. People who fall towards the camera or"
        " away from it, seen from above, or on a bed or chair, are often missed, as are those whom"
        " pose loses. Exercises on the floor are lying, and sometimes a fall. Few films: not for"
        " safety, and not a medical device."
    ),
    licence="Apache-2.0: part of costream.",
    licence_class="free",
)


def make(folder: Path) -> list[Path]:
    """Write the weight file and its card; return the written file."""
    path = folder / f"{NAME}.safetensors"
    save_model(path, CARD, FallRule(), JointStreams(**CARD.frontend_arguments))
    path.with_suffix(".md").write_text(card_text(CARD, sequence_table), encoding="utf-8")
    return [path]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = argparse.ArgumentParser(prog="python -m weights.recipes.skeleton.falls")
    known.add_argument("-o", "--output", type=Path, default=FREE, help="folder")
    options = known.parse_args(argv)
    return carry_out(lambda: make(options.output), 1)


if __name__ == "__main__":
    sys.exit(main())
