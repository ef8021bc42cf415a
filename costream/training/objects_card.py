"""Card text of the shipped object detector."""

from __future__ import annotations

from typing import Any

from costream.checkpoints.card import Card, Timeline
from weights.recipes.objects.data import LABELS

RATE_HZ = 10.0

_ABOUT: dict[str, Any] = {
    "description": (
        "People, vehicles (cars, buses, trucks, motorcycles), bicycles and bottles in video,"
        " with boxes; computes of each frame only the tokens that changed. Small, learnt from"
        " very little: it shows how such a network runs, see its limits."
    ),
    "paper": "Eventful Transformers (Dutson et al., ICCV 2023); ViTDet (Li et al., ECCV 2022)",
    "trained_on": (
        "120 pictures of COCO train2017 with their boxes; Intel's sample videos car-detection,"
        " one-by-one-person-detection and bottle-detection (first 70 % of each) and"
        " classroom-preview; a clip of eight signs of ASL. Boxes of the clips are those of"
        " YOLOX-nano, and of what moves in car-detection. Things cut out of the clips were put"
        " into other pictures, turned, in other colours. At every place of every view"
        " YOLOX-nano's objectness and 80 classes were a second target. From random weights,"
        " 16,000 views, about an hour on one core. Weights are rounded to half precision."
    ),
    "split": (
        "COCO val2017 and two whole clips are held out; of three clips the last fifth, the same"
        " camera as trained on. Every 16th of COCO's training pictures and the 10 % of these"
        " clips before the last fifth were for choosing the threshold. Of the clips held out,"
        " frames were looked at before cars were cut out and turned, and an earlier network of"
        " this recipe was scored on them and on COCO val2017 five times while it learnt; the"
        " choice of the size came after such a look, and so did the mending of the boxes of"
        " car-detection. This network was scored on them once. That of several thresholds with"
        " about the best F1 the lowest is taken was settled after a look at samples/room.mp4."
    ),
    "limits": (
        "No detector for work. It knows the cameras it learnt from: people in one room, cars on one"
        " road and bottles before one wall are found again in later footage. Of other cameras it"
        " finds cars on one clip, people seen from above now and then, and puts boxes where there"
        " is nothing; people on a street and bicycles, of which its pictures have 6, it does not"
        " find. In COCO's pictures it finds hardly anything. 320 pixels wide, so small things are"
        " not seen. For work, import a published ViTDet."
    ),
    "licence": (
        "COCO annotations (CC BY 4.0, COCO Consortium), COCO pictures (Flickr users, mixed"
        " terms); Intel's sample videos and the clip of signs (CC BY 4.0). Teacher: YOLOX-nano"
        " (Apache-2.0, Megvii)."
    ),
}


def make_card(
    network: dict[str, Any], frontend: dict[str, Any], threshold: float, metrics: dict[str, Any]
) -> Card:
    """Return the card of the detector with these arguments, threshold and metrics."""
    return Card(
        name="eventful-vitdet",
        task="object detection",
        architecture="vitdet",
        arguments=network,
        labels=LABELS,
        rate_hz=RATE_HZ,
        frontend="pixels",
        frontend_arguments=frontend,
        timeline=Timeline(threshold=round(threshold, 2), min_length_s=0.5, min_gap_s=0.5),
        metrics=metrics,
        **_ABOUT,
    )
