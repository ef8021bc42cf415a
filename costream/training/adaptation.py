"""Adapters and pruning of the network of a training: ``costream train --adapter --density``.

Low-rank differences to frozen weights (LoRA), with or without masks (structured pruning adapters,
SPLoRA: thesis of Hedegaard, chapter 5), or the weights themselves under masks (fine-pruning).
Channels are masked step by step while the network learns (``nn.adapters.pruning.gradual``), by the
Taylor term of its loss; at the end they are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.models.adapters import WithFrontend, prunable
from costream.models.compact import round_weights
from costream.nn.adapters.adapting import adapt, adapter_state, count_learnt, fuse
from costream.nn.adapters.pruning import Pruner, gradual
from costream.training.base import TrainSettings
from costream.weights_io.card import Card
from costream.weights_io.file import read_card

log = logging.getLogger("costream")
BEGIN = 0.1  # share of the steps after which channels are pruned
END = 0.5  # share of the steps before which they are pruned
TIMES = 16  # how many times
OBSERVED = 4  # batches behind the scores of each time
MEASURES = ("top1", "AP50", "mAP")  # figures that are compared before and after pruning
# Ends of the names of classifier layers; the last two are of detectors.
CLASSIFIERS = ("head", "skip", "anticipation_head", "fc", "reading", "cls_score", "bbox_pred")


class Adaptation:
    """Adapters and pruning of a network during its training: ``--adapter`` and ``--density``.

    Without both options it does nothing. Otherwise the network has adapters from now on; call
    ``begin`` before each step, and ``finish`` once at the end. All state is in the network.

    Args:
        network: with its initial weights; its classifiers are trained completely. Also a
            ``WithFrontend``.
        settings: of the training. ``steps``: of the training at most.
        macs: returns the multiply-accumulates of a step; default: ``network.count_macs``.

    Raises UsageError for a network without removable channels.
    """

    def __init__(
        self,
        network: nn.Module,
        settings: TrainSettings,
        steps: int,
        macs: Callable[[], int] | None = None,
    ) -> None:
        self._network, self._count = network, macs or cast(Any, network).count_macs
        self._kind, self._rank, self._density = settings.adapter, settings.rank, settings.density
        self._rounds = settings.compact
        self._pruner: Pruner | None = None
        self._when: list[int] = []
        self.adapter: tuple[dict[str, Tensor], str] | None = None  # see ``adapter_state``
        self.facts: dict[str, Any] = {}  # for the card
        if self._kind == "none" and not self.prunes:
            return
        names = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        whole = [name for name in names if name.rpartition(".")[2] in CLASSIFIERS]
        self._macs, self._all = int(self._count()), count_learnt(network)
        adapt(network, "mask" if self._kind == "none" else self._kind, self._rank, whole=whole)
        if self.prunes:
            self._pruning()
            span = (END - BEGIN) * steps / TIMES
            self._when = sorted({int(BEGIN * steps + k * span) for k in range(TIMES)})

    @property
    def prunes(self) -> bool:
        """Whether channels are removed."""
        return self._density < 1

    def begin(self, step: int, loss: Callable[[], Tensor]) -> None:
        """Mask channels if they are due at this step. ``loss``: returns the loss of a new batch."""
        if step not in self._when:
            return
        pruner = self._pruning()
        for _ in range(OBSERVED):
            pruner.observe(loss)
        times = self._when.index(step) + 1
        pruner.prune(gradual(times, len(self._when), self._density))

    def over(self, step: int) -> bool:
        """Return whether no more channels are masked after this step."""
        return not self._when or step >= self._when[-1]

    def finish(self) -> None:
        """Remove the masked channels, merge the adapters into the weights, and set ``facts``.

        The weights are rounded as they will be stored.
        """
        if self._rounds:
            round_weights(self._network)
        if self._kind == "none" and not self.prunes:
            return
        self.facts = {"adapter": self._kind, "learnt": count_learnt(self._network)}
        self.facts |= {"learnt_whole": self._all, "macs_before": self._macs}
        if self._kind != "none":
            self.facts["rank"] = self._rank
            tensors, sha256 = adapter_state(self._network)
            self.adapter = {k: v.clone() for k, v in tensors.items()}, sha256
        if self.prunes:
            pruner = self._pruning()
            both = isinstance(self._network, WithFrontend)
            parts = ["network", "frontend"] if both else ["network"]
            density = round(pruner.density, 4)
            self.facts |= {"density": density, "pruned": parts}
            if density > self._density:
                what = "--density %g is out of reach: the least that layers can keep is %g"
                log.warning(what, self._density, density)
                self.facts["density_wanted"] = self._density
            pruner.finish()
        fuse(self._network)
        if self._rounds:
            round_weights(self._network)
        self._network.eval()
        self.facts["macs"] = int(self._count())

    def _pruning(self) -> Pruner:
        if self._pruner is None:
            training = self._network.training
            with torch.random.fork_rng(devices=[]):  # a resumed training comes here later
                try:
                    self._pruner = Pruner(*prunable(self._network))
                except ValueError as error:
                    raise UsageError(str(error), where="--density") from error
            self._network.train(training)
        return self._pruner


def check_adapter(settings: TrainSettings, objects: bool = False) -> None:
    """Raise UsageError if ``--adapter`` or ``--density`` contradict each other or other options.

    ``settings``: after their defaults are filled in. ``objects``: of a detector.
    """
    changed = settings.adapter != "none" or settings.density < 1
    if objects and changed and not settings.fine_tune:
        raise UsageError("adapters and pruning apply to all of the network", where="--no-fine-tune")
    if settings.adapter == "lora" and settings.density < 1:
        raise UsageError(
            "LoRA has no masks", where="--density", hint="use --adapter splora, or none"
        )
    if settings.adapter != "none" and settings.scratch:
        raise UsageError("an adapter needs trained weights to start from", where="--adapter")
    if settings.compare is not None and settings.density == 1:
        raise UsageError("applies to trainings with --density only", where="--compare")


def with_facts(card: Card, facts: dict[str, Any], compare: Path | None) -> Card:
    """Return a card with the numbers of trained weights, removed channels and operations.

    ``compare``: weights of the same training without ``--density``; the card gets the difference
    of the validation accuracies. UsageError if they are of another training.
    """
    if not facts:
        return card
    scores = card.metrics.get("validation", {}).get(card.name, {})
    measure = next((key for key in MEASURES if key in scores), MEASURES[0])
    score = scores.get(measure)
    if compare is not None:
        other = read_card(compare)
        scores = other.metrics.get("validation", {}).get(other.name, {})
        is_same_training = (other.trained_on, other.labels) == (card.trained_on, card.labels)
        if not is_same_training or score is None or measure not in scores or other.compression:
            raise UsageError(
                "not the same training without --density: examples, labels, seed or base differ",
                where=compare,
            )
        facts = {**facts, "validation_loss": round(scores[measure] - score, 4)}
    return replace(card, compression=facts)


def adapter_card(card: Card, base_sha256: str, sha256: str) -> Card:
    """Return the card of the adapter file of weights with this card.

    ``base_sha256``: digest of the base weights; ``sha256``: of the frozen ones.
    """
    facts = {k: v for k, v in card.compression.items() if k != "pruned"}
    facts |= {"base": base_sha256, "frozen": sha256}
    return replace(card, compression=facts)
