"""Published recipes of networks for online action detection on features.

- OadTR (Wang et al., ICCV 2021, section 4.2 and released code), also of CoOadTR (Hedegaard et al.,
  Continual Transformers, ICLR 2023, section 4.1): every window of a recording, of which the newest
  row is labelled; cross entropy of that row, plus half of that of the rows that the decoder
  anticipates; Adam, whose rate falls to a tenth after each epoch, gradients of norm 1 at most.
  Rows labelled Ambiguous do not count, and that class is not in the softmax.
  A network with a long memory sees the rows before the window that it remembers best.
- MiniROAD (An et al., ICCV 2023, section 3.3 and released code): a window at every fourth row, with
  zeros before the recording; cross entropy of the newest row only, so that training resembles long
  streams; AdamW.
- TeSTra (Zhao and Krähenbühl, ECCV 2022, released settings): the window and the rows that its
  memory remembers best; Adam. Its authors label all rows of a window, here only the newest is.
- CMeRT (Pang et al., CVPR 2025, released settings): the window and the rows that its memory may
  take; cross entropy of the newest row, plus half of that of the anticipated rows; Adam. Its
  authors label all rows of a window, also before they are refined, and the generated future, and
  warm the rate up.

Trained step by step, streams of twice the window are labelled at every step whose window is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.oad.cmert import CMeRT
from costream.models.oad.cooadtr import OadOutput
from costream.models.oad.miniroad import MiniRoad
from costream.models.oad.testra import TeSTra
from costream.nn.long_memory import LongMemory
from costream.training.optim import Schedule

COMING = 0.5  # weight of the loss of anticipated rows


@dataclass(frozen=True)
class Recipe:
    """How a network is trained on windows of feature rows.

    ``window``: rows of a window. ``stride``: rows from one window to the next. ``ahead``: rows
    after a window that must exist. ``padded``: windows may begin before the recording, with zeros.
    ``batch``: windows in a step. ``rate``: learning rate; ``drop``: its factor after each epoch.
    ``decoupled``: AdamW, else Adam with an L2 penalty; ``decay``: its strength. ``clip``: norm of
    gradients. ``unit``: several labels of a row have an L2 norm of 1, else each counts fully.
    """

    window: int
    stride: int = 1
    ahead: int = 0
    padded: bool = False
    batch: int = 128
    epochs: int = 5
    rate: float = 1e-4
    drop: float = 0.1
    decay: float = 1e-4
    decoupled: bool = False
    clip: float | None = 1.0
    ignores: bool = True  # rows labelled Ambiguous do not count
    unit: bool = False


def recipe_of(network: nn.Module) -> Recipe:
    """Return the published recipe of a network that classifies tokens."""
    if isinstance(network, MiniRoad):
        return Recipe(
            *(128, 4),
            padded=True,
            batch=16,
            epochs=10,
            drop=1.0,
            decay=0.05,
            decoupled=True,
            clip=None,
            ignores=False,
            unit=True,
        )
    if isinstance(network, TeSTra):
        recipe = Recipe(
            *(network.window + network.horizon, 4),
            padded=True,
            batch=16,
            epochs=25,
            rate=7e-5,
            drop=1.0,
            decay=5e-5,
            clip=None,
        )
        if isinstance(network, CMeRT):
            ahead = len(network.anticipation_queries)
            recipe = replace(recipe, ahead=ahead, batch=32, epochs=16, rate=2e-4)
        return recipe
    memory = getattr(network, "memory", None)
    before = memory.horizon if isinstance(memory, LongMemory) else 0
    return Recipe(int(network.window) + before, ahead=8)  # type: ignore[arg-type]


@dataclass(frozen=True)
class EpochSchedule(Schedule):
    """The schedule of a recipe: the learning rate changes from epoch to epoch.

    ``epoch``: steps of an epoch.
    """

    epoch: int = 1
    drop: float = 1.0
    decoupled: bool = False

    def optimizer(
        self, modules: nn.Module
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Return Adam or AdamW, with decay of all parameters, and the rate of each step."""
        kind = torch.optim.AdamW if self.decoupled else torch.optim.Adam
        optimizer = kind(modules.parameters(), lr=self.rate, weight_decay=self.decay)
        drop = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.drop ** (step // self.epoch)
        )
        return optimizer, drop


def window_loss(
    recipe: Recipe, out: OadOutput, targets: Tensor, coming: Tensor, ignored: int | None
) -> Tensor:
    """Return the loss of outputs for labelled rows.

    ``targets`` [B, T, K]: 1 for each true class; none where unknown. ``coming`` [B, T, A, K]: of
    the A rows after each. ``ignored``: class whose rows do not count; None: there is none.
    """
    ignored = ignored if recipe.ignores else None
    total = multilabel_cross_entropy(out.logits, targets, ignored, unit=recipe.unit)
    if out.anticipation is not None:
        later = coming[:, :, : out.anticipation.shape[2]]
        ahead = multilabel_cross_entropy(out.anticipation, later, ignored, unit=recipe.unit)
        total = total + COMING * ahead
    return total


def multilabel_cross_entropy(
    logits: Tensor, targets: Tensor, ignored: int | None, *, unit: bool = False
) -> Tensor:
    """Return the mean over labelled rows of - sum(target x log softmax); 0 without such rows.

    ``logits``, ``targets`` [..., K]. Rows of the class ``ignored`` are left out, and so is its
    logit. ``unit``: targets of a row are divided by their L2 norm.
    """
    is_scored = targets.sum(-1) > 0
    if ignored is not None:
        is_scored = is_scored & (targets[..., ignored] == 0)
        kept = [k for k in range(targets.shape[-1]) if k != ignored]
        logits, targets = logits[..., kept], targets[..., kept]
    if unit:
        targets = F.normalize(targets, dim=-1)
    each = -(targets * logits.log_softmax(-1)).sum(-1)
    return each[is_scored].sum() / is_scored.sum().clamp(min=1)


def describe(recipe: Recipe, schedule: EpochSchedule, stepwise: bool) -> str:
    """Return the settings of a training in words, for its card."""
    return ", ".join(_settings(recipe, schedule, stepwise))


def _settings(recipe: Recipe, schedule: EpochSchedule, stepwise: bool) -> Iterator[str]:
    yield f"windows of {recipe.window} rows"
    yield "labelled at every step" if stepwise else "labelled at the newest row"
    yield f"{schedule.steps} steps of {schedule.batch} streams"
    yield f"{'AdamW' if recipe.decoupled else 'Adam'} {schedule.rate:g}"
    if recipe.drop != 1:
        yield f"x {recipe.drop:g} after each {schedule.epoch} steps"
    yield f"decay {schedule.decay:g}"
