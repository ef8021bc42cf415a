"""Class names of well-known data sets, in the order of their classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costream.checkpoints.kinetics import CLASSES
from costream.errors import ModelError


@dataclass(frozen=True)
class Labels:
    """Class names of a data set."""

    names: tuple[str, ...]
    background: str | None  # the label that is not an event
    rate_hz: float | None  # rows per second of the published features, where it is unique


# THUMOS14, in the order of its published annotations. The features used with OadTR and CoOadTR
# have one row for every 6 frames of 24 fps video: 4 per second.
THUMOS14 = Labels(
    (
        "Background",
        "BaseballPitch",
        "BasketballDunk",
        "Billiards",
        "CleanAndJerk",
        "CliffDiving",
        "CricketBowling",
        "CricketShot",
        "Diving",
        "FrisbeeCatch",
        "GolfSwing",
        "HammerThrow",
        "HighJump",
        "JavelinThrow",
        "LongJump",
        "PoleVault",
        "Shotput",
        "SoccerPenalty",
        "TennisSwing",
        "ThrowDiscus",
        "VolleyballSpiking",
        "Ambiguous",
    ),
    "Background",
    4.0,
)
TVSERIES = Labels(
    (
        "background",
        "Pick something up",
        "Point",
        "Drink",
        "Stand up",
        "Run",
        "Sit down",
        "Read",
        "Smoke",
        "Drive car",
        "Open door",
        "Give something",
        "Use computer",
        "Write",
        "Go down stairway",
        "Close door",
        "Throw something",
        "Go up stairway",
        "Get in/out of car",
        "Hang up phone",
        "Eat",
        "Answer phone",
        "Dress up",
        "Clap",
        "Undress",
        "Kiss",
        "Fall/trip",
        "Wave",
        "Pour",
        "Punch",
        "Fire weapon",
    ),
    "background",
    None,
)
# Genres in alphabetical order. A token of CoTrans covers a quarter of a second.
GTZAN = Labels(
    (
        *("blues", "classical", "country", "disco", "hiphop"),
        *("jazz", "metal", "pop", "reggae", "rock"),
    ),
    None,
    4.0,
)
# Images and videos of objects; every frame is processed, at the frame rate of ImageNet VID.
VID = Labels(
    (
        *("airplane", "antelope", "bear", "bicycle", "bird", "bus", "car", "cattle", "dog"),
        *("domestic cat", "elephant", "fox", "giant panda", "hamster", "horse", "lion"),
        *("lizard", "monkey", "motorcycle", "rabbit", "red panda", "sheep", "snake"),
        *("squirrel", "tiger", "train", "turtle", "watercraft", "whale", "zebra"),
    ),
    None,
    30.0,
)
COCO = Labels(
    (
        *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck"),
        *("boat", "traffic light", "fire hydrant", "stop sign", "parking meter", "bench"),
        *("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra"),
        *("giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis"),
        *("snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard"),
        *("surfboard", "tennis racket", "bottle", "wine glass", "cup", "fork", "knife"),
        *("spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli", "carrot"),
        *("hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed"),
        *("dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard"),
        *("cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book"),
        *("clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush"),
    ),
    None,
    30.0,
)
# The rate depends on the network.
KINETICS400 = Labels(CLASSES, None, None)
# The verbs of EPIC-KITCHENS-100, in the order of its annotations.
EPIC_VERBS = Labels(
    (
        *("take", "put", "wash", "open", "close", "insert", "turn-on", "cut", "turn-off", "pour"),
        *("mix", "move", "remove", "throw", "dry", "shake", "scoop", "adjust", "squeeze", "peel"),
        *("empty", "press", "flip", "turn", "check", "scrape", "fill", "apply", "fold", "scrub"),
        *("break", "pull", "pat", "lift", "hold", "eat", "wrap", "filter", "look", "unroll"),
        *("sort", "hang", "sprinkle", "rip", "spray", "cook", "add", "roll", "search", "crush"),
        *("stretch", "knead", "divide", "set", "feel", "rub", "soak", "brush", "sharpen", "drop"),
        *("drink", "slide", "water", "gather", "attach", "turn-down", "coat", "transition"),
        *("wear", "measure", "increase", "unscrew", "wait", "lower", "form", "smell", "use"),
        *("grate", "screw", "let-go", "finish", "stab", "serve", "uncover", "unwrap", "choose"),
        *("lock", "flatten", "switch", "carry", "season", "unlock", "prepare", "bake", "mark"),
        *("bend", "unfreeze"),
    ),
    None,
    None,
)
KNOWN = {
    "thumos14": THUMOS14,
    "tvseries": TVSERIES,
    "gtzan": GTZAN,
    "imagenet-vid": VID,
    "coco": COCO,
    "kinetics-400": KINETICS400,
    "epic-verbs": EPIC_VERBS,
}


def read_labels(name: str) -> Labels:
    """Return the labels of a known data set, or of a text file with one label per line.

    Raises ModelError when it is neither, or the file contains repeated labels.
    """
    if name.lower() in KNOWN:
        return KNOWN[name.lower()]
    try:
        lines = Path(name).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"labels={name} is neither one of {', '.join(KNOWN)} nor a readable text file"
        ) from error
    return custom_labels(tuple(line.strip() for line in lines if line.strip()), name)


def custom_labels(names: tuple[str, ...], where: object) -> Labels:
    """Return labels with custom names; one called "background" is the background.

    Raises ModelError for a repeated name.
    """
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ModelError(f"labels given twice: {', '.join(twice)}", where=where)
    background = next((name for name in names if name.lower() == "background"), None)
    return Labels(names, background, None)


def class_names(settings: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """Return the class names in the arguments of an OadTR-like training script, or None.

    Raises ModelError when their number differs from that of the classifier's classes.
    """
    names = settings.get("class_index")
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
        return None
    if len(names) != classes:
        raise ModelError(f"the checkpoint's arguments name {len(names)} classes, it has {classes}")
    return tuple(names)
