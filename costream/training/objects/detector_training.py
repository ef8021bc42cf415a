"""Training of a detector on custom objects: end to end on images, or its heads on tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from costream.evaluation.metrics.detection import DetectedBoxes, Truth, detection_scores
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.vitdet import ViTDet
from costream.nn.boxes import areas, clip_boxes
from costream.training.early_stopping import LOSS
from costream.training.objects.image_augment import LabelledImage
from costream.training.objects.image_views import Encoded, EncodedViews, Views
from costream.training.objects.losses import detector_losses
from costream.training.optim import Schedule, device_of
from costream.training.training_loop import Stopping, TrainingLoop, TrainingRun

VALIDATE_EVERY = 25  # steps between two validations
PATIENCE = 0.5  # share of all validations without improvement
_MIN_VIEWS = 4  # augmented views per image
_MAX_VIEWS = 24
_TOTAL_VIEWS = 400  # about as many views of all images
# Tokens [B, h, w, D], and per image the true boxes [n, 4] and their classes int64 [n].
Batch = tuple[Tensor, list[Tensor], list[Tensor]]
ValidationFunction = Callable[[], dict[str, float]]


def heads_of(network: ViTDet) -> nn.ModuleList:
    """Return the modules after a detector's backbone: feature maps, proposals and box heads."""
    return nn.ModuleList([network.pyramid, network.proposal_generator, network.roi_heads])


class TokenSupply:
    """Batches of encoded views: a fixed number per image, each computed once."""

    def __init__(self, encoded: EncodedViews) -> None:
        self._encoded, self._album = encoded, encoded.views.album
        self._views = 1 + min(_MAX_VIEWS, max(_MIN_VIEWS, _TOTAL_VIEWS // len(self._album.stills)))

    def batch(self, count: int, rng: np.random.Generator) -> Batch:
        """Return ``count`` views; images of rare classes are drawn more often."""
        likely = self._album.likely
        numbers = rng.choice(len(likely), count, p=likely).tolist()
        views = rng.integers(self._views, size=count).tolist()
        rows = [self._encoded.view(*pair) for pair in zip(numbers, views, strict=True)]
        tokens = torch.stack([row.tokens for row in rows])
        return tokens, [row.boxes for row in rows], [row.labels for row in rows]


class PictureSupply:
    """Batches of freshly drawn views, encoded with gradients enabled."""

    def __init__(self, views: Views, network: ViTDet) -> None:
        self._views, self._network = views, network

    def batch(self, count: int, rng: np.random.Generator) -> Batch:
        """Return ``count`` views; images of rare classes are drawn more often."""
        network = self._network
        drawn, boxes, labels = self._views.batch(count, rng)
        pictures = self._views.pixels(drawn.to(device_of(network)))
        tokens: Tensor = network.backbone(network.embed(pictures))
        return tokens, boxes, labels


def tokens_loss(
    network: ViTDet, supply: TokenSupply | PictureSupply, count: int, rng: np.random.Generator
) -> Tensor:
    """Return the loss of a new batch of ``count`` views."""
    device = device_of(network)
    tokens, *marks = supply.batch(count, rng)
    boxes, labels = ([part.to(device) for part in each] for each in marks)
    tokens = tokens.to(device)
    size = (tokens.shape[1] * network.patch, tokens.shape[2] * network.patch)
    return torch.stack(detector_losses(network, tokens, size, boxes, labels)).sum()


def fit_detector(
    network: nn.Module,
    learning: nn.Module,
    batch_loss: Callable[[np.random.Generator], Tensor],
    schedule: Schedule,
    run: TrainingRun,
    validate: ValidationFunction,
) -> list[dict[str, float]]:
    """Train a network or a part of it, keep the best weights, return the history.

    ``batch_loss`` returns the loss of a new batch. Parameters of ``learning`` that are frozen,
    below adapters, stay so. Where ``validate`` returns nothing, the last weights are kept. For the
    history see ``EarlyStopping``.
    """
    torch.manual_seed(run.seed)
    rng = np.random.default_rng(run.seed)
    trained = [parameter for parameter in learning.parameters() if parameter.requires_grad]
    network.requires_grad_(False)
    for parameter in trained:
        parameter.requires_grad_(True)

    patience = max(1, round(PATIENCE * schedule.steps / VALIDATE_EVERY))
    stopping = Stopping(validate, VALIDATE_EVERY, patience)
    loss = partial(batch_loss, rng)
    history = TrainingLoop(learning, loss, schedule, rng, run, stopping, run.phases).fit()
    network.eval()
    return [{k: v for k, v in row.items() if k != LOSS} for row in history]


@torch.no_grad()
def detect_objects(network: ViTDet, picture: Encoded) -> DetectedBoxes:
    """Return a network's detections in an encoded image, clipped to its edges."""
    height, width = (side * network.patch for side in picture.tokens.shape[:2])
    tokens = picture.tokens.to(device_of(network))
    (detections,) = network.detect(network.view(tokens[None]), (height, width))
    return to_found(detections, picture.size)


def to_found(detections: Detections, size: Tensor) -> DetectedBoxes:
    """Return detections without those outside the image; ``size``: its height and width."""
    boxes = clip_boxes(detections.boxes, *size.tolist())
    is_inside = areas(boxes) > 0
    found = (boxes[is_inside], detections.scores[is_inside], detections.labels[is_inside])
    return DetectedBoxes(*(part.cpu().numpy() for part in found))


def to_truth(picture: Encoded | LabelledImage) -> Truth:
    """Return the ground truth of an image."""
    return Truth(picture.boxes.numpy(), picture.labels.numpy())


def figures(
    found: Sequence[DetectedBoxes], truth: Sequence[Truth], labels: Sequence[str]
) -> dict[str, float]:
    """Return AP50 and AP over images, and as the loss their mean distance from 1.

    The loss is left out while nothing is found, which may last for many steps of a training.
    """
    if not any(len(one.labels) for one in truth):
        return {}
    scores = detection_scores(found, truth, labels)
    both = {name: float(str(scores[name])) for name in ("AP50", "AP")}
    return {**({LOSS: 1 - sum(both.values()) / 2} if any(both.values()) else {}), **both}
