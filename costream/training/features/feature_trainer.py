"""Trainer of online action detection on feature files, by the published recipes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from costream.core.errors import ModelError, UsageError, say
from costream.evaluation.truth import fit_truth
from costream.labels.copies import join_copies
from costream.labels.examples import Example, split, to_examples
from costream.labels.reading import read_recordings
from costream.labels.recording import BACKGROUNDS
from costream.models.build import build
from costream.models.catalogue import check_licence, find_weights, read_whole
from costream.models.compatibility import input_width
from costream.models.oad.cooadtr import TokenClassifier
from costream.models.oad.miniroad import MiniRoad
from costream.models.oad.oadtr import OadTR
from costream.models.oad.testra import TeSTra
from costream.models.random_init import random_model
from costream.models.spec import MODELS, model_spec
from costream.sources.features.feature_arrays import split_video
from costream.training.adaptation import Adaptation, with_facts
from costream.training.base import (
    EARLY_STOPPING_NOTE,
    TrainedModel,
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
    background_first,
    base_timeline,
    knows_all,
)
from costream.training.baselines import CENTROID, nearest_centroid
from costream.training.card_text import card_text, feature_table
from costream.training.early_stopping import kept_reason
from costream.training.feature_cache import example_key
from costream.training.features.feature_checks import (
    FeatureChecks,
    first_labels,
    ignored_class,
)
from costream.training.features.feature_reader import (
    FeatureRecording,
    find_protocol,
    first_features,
    read_rows,
)
from costream.training.features.feature_windows import FeatureWindows
from costream.training.features.recipes import EpochSchedule, describe, recipe_of, window_loss
from costream.training.optim import device_of
from costream.training.report.feature_report import feature_report
from costream.training.report.sequence_report import SequenceReport
from costream.training.sequence_trainer import fitting_tensors
from costream.training.stream_calibration import StreamPredictions, calibrate
from costream.training.training_loop import Pace, Phase, Stopping, TrainingLoop, TrainingRun
from costream.training.verdict import Held, score_verdict
from costream.weights_io.card import Card
from costream.weights_io.file import Weights, read_card

log = logging.getLogger("costream")

CHANCE = "chance"  # mAP of scores that say nothing: the share of a class
_DEPTHS = {"cooadtr-b2": 2}  # of names of weights, where it is not that of the architecture
_NETWORKS = (TokenClassifier, OadTR, MiniRoad, TeSTra)


def feature_base(settings: TrainSettings) -> Weights | None:
    """Return what a training on features starts from; None if the data are not features.

    MODEL's weights if they take such rows, or else, for a name, a network with the sizes of its
    paper and random weights. None too for a MODEL that does not classify rows. UsageError for a
    weight file that takes other rows, and for a name without weights if the data are not features;
    SourceError if they cannot be read.
    """
    is_name = settings.model in MODELS
    try:
        card: Card | None = read_card(find_weights(settings.model, settings.weights))
    except ModelError:
        if not is_name or settings.weights is not None:
            raise
        card = None
    architecture = _architecture(settings.model if card is None else card.architecture)
    if architecture is None:
        return None
    features = first_features(settings.data)
    if features is None:
        if card is None:
            what = "there are no .npy, .npz or pickle files of features"
            raise UsageError(what, where=settings.data or "--data")
        return None
    if card is not None and input_width(card) == features.width:
        check_licence(settings.model, settings.weights, settings.licence)
        return read_whole(settings.model, settings.weights)
    if card is not None and (not is_name or settings.weights is not None):
        what = f"{card.name} takes rows of {input_width(card)} values, not {features.width}"
        hint = f"costream models init {architecture} --set input_width={features.width}"
        raise UsageError(what, where=settings.data, hint=hint)
    sizes: dict[str, Any] = {"input_width": features.width}
    if settings.model in _DEPTHS:
        sizes["depth"] = _DEPTHS[settings.model]
    new, network, _ = random_model(architecture, settings.model, sizes, seed=settings.seed)
    numbers = sum(p.numel() for p in network.parameters())
    say(
        f"rows of {features.width} values: a new {settings.model} in the sizes of its paper,"
        f" {numbers / 1e6:.1f} M weights"
    )
    return Weights(new, "", {f"network.{k}": v for k, v in network.state_dict().items()})


def _architecture(name: str) -> str | None:
    """Return the architecture of a registered network if it classifies rows, else None."""
    if name not in MODELS:
        return None
    architecture = model_spec(name).architecture or name
    kind = MODELS.load(architecture)
    return architecture if isinstance(kind, type) and issubclass(kind, _NETWORKS) else None


@dataclass(frozen=True)
class FeatureResult:
    """Results of a training, except the weights.

    ``how``: the recipe in words. ``scores``: of the network and the baselines, by name;
    ``streams``: predictions of the validation recordings. ``reason``: why the weights are those of
    the base, if they are.
    """

    how: str
    history: list[dict[str, float]]
    adaptation: Adaptation
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    streams: list[StreamPredictions] = field(default_factory=list)
    reason: str = ""


class FeatureTrainer:
    """Trainer of networks of online action detection; see ``CustomClassTrainer``."""

    metric = ("mAP", "mAP of frames", "recordings")
    command = "detect"

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Raise UsageError for options of other trainings."""
        if settings.fine_tune:
            raise UsageError("features have no frontend to train", where="--fine-tune")
        return replace(settings, fine_tune=False)

    def read(self, card: Card, settings: TrainSettings) -> TrainingData:
        """Return the recordings with their rows.

        Labels that are all actions of a protocol become its labels, in its order. UsageError for
        unusable data or fewer than two classes.
        """
        recordings = read_recordings(
            settings.data, settings.labels, settings.group, settings.columns
        )
        found = {one.label for r in recordings for one in r.labels}
        protocol = find_protocol(found)
        if protocol is None:
            known = () if card.background is None else (card.background,)
            labels = background_first(found, (*known, *BACKGROUNDS))
        else:
            labels = (*protocol.labels, *protocol.ignored)
            log.info("the labels are those of %s", protocol.name)
        if len(labels) < 2:
            raise UsageError(
                "no labels but the background",
                where=settings.labels or settings.data,
                hint="at least one class is needed",
            )
        fitted = fit_truth(recordings, labels, background=labels[0])
        read = read_rows(fitted, labels, input_width(card), settings.rate_hz, card.rate_hz)
        examples = join_copies(to_examples(fitted, labels[0]))
        held = {e.source for e in split(examples, settings.validation, settings.seed)[1]}
        training = [r for r in read if r.recording.source not in held]
        checks = [r for r in read if r.recording.source in held]
        log.info("%d recordings to train on, %d to validate with", len(training), len(checks))
        return TrainingData(labels, training, checks, [_identity(r) for r in read])

    def setup(self, base: Weights, labels: tuple[str, ...], settings: TrainSettings) -> TrainSetup:
        """Return the network to train for these labels, the first of which is the background.

        The network starts from the base weights, its classifier for the labels that the base has
        too.
        """
        is_same = labels == base.card.labels
        card = replace(
            base.card,
            name=settings.output.stem,
            labels=labels,
            arguments={**base.card.arguments, "num_classes": len(labels)},
            background=labels[0],
            timeline=base_timeline(labels, base.card),
            temperature=1.0,
            familiarity=base.card.familiarity if is_same else None,
            metrics={},
            sample={},
            costs={},
            compression={},
        )
        network, frontend = build(card, fitting_tensors(card, base, settings))
        return TrainSetup(network, frontend, card, nn.Identity())

    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> FeatureResult:
        """Train the network by its recipe, and return the results.

        UsageError if no recording is as long as a window.
        """
        network, settings, card = setup.network, workspace.settings, setup.card
        recipe = recipe_of(network)
        recipe = replace(
            recipe,
            epochs=settings.epochs or recipe.epochs,
            rate=settings.learning_rate or recipe.rate,
        )
        ignored = ignored_class(card.labels)
        windows = FeatureWindows(
            [r.content for r in data.training],
            recipe,
            ignored,
            settings.seed,
            stepwise=settings.stepwise,
        )
        if not windows.windows:
            raise UsageError(
                f"no recording has labels after {recipe.window} rows, the window of {card.name}",
                where=settings.data,
                hint="costream models init ARCHITECTURE --set window=N makes a network of a"
                " shorter one",
            )
        log.info("%d windows to train on", windows.windows)
        steps = min(recipe.epochs * windows.epoch, settings.steps or 1 << 62)
        schedule = EpochSchedule(
            steps,
            windows.streams,
            recipe.rate,
            recipe.decay,
            0.0,
            clip=recipe.clip,
            epoch=windows.epoch,
            drop=recipe.drop,
            decoupled=recipe.decoupled,
        )
        device = device_of(network)

        def loss() -> Tensor:
            batch = windows.batch()
            last = batch.targets.shape[1]
            out = network(batch.rows.to(device), batch.offsets, last)
            return window_loss(
                recipe, out, batch.targets.to(device), batch.coming.to(device), ignored
            )

        checks = FeatureChecks(card, data.validation)
        adaptation = Adaptation(network, settings, steps)
        run = TrainingRun(settings.seed, workspace.checkpoint, adaptation)
        knows = knows_all(card.labels, workspace)
        stopping = Stopping(lambda: checks.figures(network), windows.epoch, recipe.epochs, knows)
        rng = np.random.default_rng(settings.seed)
        phases: list[Phase] = [windows, Pace(windows.epoch, steps), *run.phases]
        history = TrainingLoop(network, loss, schedule, rng, run, stopping, phases).fit()
        adaptation.finish()
        how = describe(recipe, schedule, settings.stepwise)
        if not data.validation:
            return FeatureResult(how, history, adaptation)
        rows = checks.predict(network)
        scores = {card.name: checks.scores(rows)}
        scores[CENTROID] = checks.scores(_centroid(data, len(card.labels)))
        scores[CHANCE] = {"mAP": checks.chance(scores[card.name])}
        reason = kept_reason(history, workspace.origin) if knows else ""
        return FeatureResult(how, history, adaptation, scores, checks.streams(rows), reason)

    def describe(
        self, setup: TrainSetup, result: FeatureResult, data: TrainingData, workspace: Workspace
    ) -> TrainedModel:
        """Return the card with training data and metrics, texts, and the verdict.

        Temperature and timeline are chosen on the validation recordings.
        """
        card, settings, origin = setup.card, workspace.settings, workspace.origin
        counts, checked = (
            _segments(side, card.labels) for side in (data.training, data.validation)
        )
        notes, chosen = ([EARLY_STOPPING_NOTE] if data.validation else []), None
        if result.streams:
            rate_hz = _rate_hz(data)
            chosen = calibrate(
                [result.streams], card.labels, rate_hz, card.timeline, examples=checked
            )
            card = replace(card, timeline=chosen.timeline, temperature=chosen.temperature)
            notes.append(chosen.how)
        held = Held(len(data.validation), "recording", "", "more recordings, or other epochs")
        others = {name: s for name, s in result.scores.items() if name != card.name}
        verdict = score_verdict("mAP", result.scores.get(card.name, {}), others, held)
        verdict += f"; {result.reason}" if result.reason else ""
        start = f"started from {origin}" if origin else "trained from scratch"
        trained, checks = len(data.training), len(data.validation)
        listed = ", ".join(f"{label} {counts[label]}" for label in card.labels if counts[label])
        card = replace(
            card,
            rate_hz=_rate_hz(data),
            description=f"Classes on features: {', '.join(card.labels[1:])}.",
            trained_on=f"{trained} recordings of the user's features ({listed}), {start};"
            f" {result.how}; seed {settings.seed}.",
            split=f"{trained} recordings to train, {checks} to validate, by file or group."
            + "".join(f" {sentence}" for sentence in notes),
            limits=f"Verdict: {verdict}. Only for the features it was trained on.",
            **workspace.terms("features"),
            metrics={"validation": result.scores} if result.scores else {},
        )
        if result.adaptation.facts:
            card = with_facts(card, result.adaptation.facts, settings.compare)
        report = SequenceReport(
            *(card, workspace.file, counts, checked, result.history, result.streams, chosen),
            verdict=verdict,
            command=self.command,
        )
        text = card_text(card, feature_table)
        return TrainedModel(card, text, feature_report(report), verdict, result.adaptation.adapter)


def _centroid(data: TrainingData, classes: int) -> list[npt.NDArray[Any]]:
    """Return the probabilities of the nearest class mean for each row of the validation."""
    labels = np.concatenate([first_labels(r.content.targets) for r in data.training])
    rows = np.concatenate([r.content.rows.numpy() for r in data.training])[labels >= 0]
    found = []
    for recording in data.validation:
        checks = recording.content.rows.numpy()
        each = nearest_centroid(rows, labels[labels >= 0].tolist(), checks, classes)
        found.append(np.concatenate(each))
    return found


def _segments(recordings: Sequence[FeatureRecording], labels: Sequence[str]) -> Counter[str]:
    counts = Counter(one.label for r in recordings for one in r.recording.labels)
    return Counter({label: counts[label] for label in labels if counts[label]})


def _rate_hz(data: TrainingData) -> float:
    return float(data.training[0].rate_hz)


def _identity(one: FeatureRecording) -> list[Any]:
    recording = one.recording
    labels = [[x.label, x.start_s, x.end_s] for x in recording.labels]
    file = Example(split_video(recording.source)[0], "", 0.0, None, "", "")
    return [recording.source, recording.group, one.rate_hz, example_key(file), labels]
