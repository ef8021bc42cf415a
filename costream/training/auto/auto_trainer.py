"""Trainer that chooses a frontend: ``costream train auto``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError, UsageError
from costream.core.formatting import counted
from costream.labels.collector import abbreviate
from costream.labels.copies import join_groups
from costream.labels.examples import Example
from costream.models.compatibility import card_kind
from costream.training.auto.frontends import (
    JOINED,
    JOINTLY,
    JOINTS,
    JOINTS_HEAD,
    JOINTS_SCALE,
    NETWORKS,
    PEOPLE,
    SOUND,
    FoundJoints,
    FrontendChoice,
    clips_by,
    first_source,
    frontends_for,
    joined_frontend,
    shows_people,
    silence,
)
from costream.training.auto.known_labels import answers_of, known_events, model_that_knows
from costream.training.auto.selection import (
    Choice,
    ClipFeatures,
    Nested,
    best,
    fitted_scaling,
    joined,
    near_copies,
    nested,
    options,
)
from costream.training.base import (
    TrainedModel,
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
)
from costream.training.baselines import CENTROID
from costream.training.open_examples import of_each
from costream.training.sequence_trainer import (
    SequenceTrainer,
    TrainResult,
    labelled_recordings,
)
from costream.training.stream_calibration import clips_alone
from costream.training.tokens.linear_head import HeldOut, why_few
from costream.training.tokens.token_trainer import with_head
from costream.training.verdict import share_text
from costream.weights_io.card import Card
from costream.weights_io.file import Weights
from costream.weights_io.licences import is_allowed, licence_class, licence_use

log = logging.getLogger("costream")

LONGEST_S = 900.0  # of all clips, up to which joints are looked for in video
_REFUSED = {
    "weights": None,
    "scratch": False,
    "fine_tune": None,
    "steps": None,
    "compare": None,
    "adapter": "none",
    "density": 1.0,
}


def start_auto(settings: TrainSettings) -> tuple[Weights, AutoTrainer]:
    """Return the first frontend to try, and the trainer.

    Raises UsageError for options that ``auto`` does not have, and for unusable data; SourceError.
    """
    for name, default in _REFUSED.items():
        if getattr(settings, name) != default:
            option = f"--{name.replace('_', '-')}"
            hint = "name a model: train encoder" if name != "weights" else "name the weight file"
            what = "does not apply to auto, which trains linear heads"
            raise UsageError(what, where=option, hint=hint)
    trainer = AutoTrainer()
    return trainer.begin(settings), trainer


class AutoTrainer(SequenceTrainer):
    """Trainer of linear heads on the frontend that suits the examples best."""

    _frontends: Sequence[FrontendChoice]
    _chosen: FrontendChoice

    def __init__(self) -> None:
        super().__init__()
        self._joints = FoundJoints()

    def begin(self, settings: TrainSettings) -> Weights:
        """Return the weights of the first frontend to try. Raises UsageError, SourceError."""
        recordings = labelled_recordings(settings)
        sources = dict.fromkeys(recording.source for recording in recordings)
        info = of_each(sources, lambda uri: first_source(uri, settings), "recordings")[0]
        self._frontends = frontends_for(info, settings)
        if settings.frontend is not None:
            self._frontends = _named(settings.frontend, self._frontends)
        self.command = "listen" if info.kind == "audio" else "detect"
        return self._frontends[0].base

    def read(self, card: Card, settings: TrainSettings) -> TrainingData:
        """Return the examples, all of which are held out in turn."""
        data = super().read(card, replace(settings, validation=0.0))
        if len({example.group for example in data.training}) < 2:
            raise UsageError(
                "all examples are of one recording or group, so that none can be held out",
                where=settings.data,
                hint="give clips of several recordings, or name a model: train encoder",
            )
        return replace(data, validation=data.training)

    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> TrainResult:
        """Choose features and a head, judge the choice, and fit it to all examples."""
        settings, classes = workspace.settings, len(setup.card.labels)
        seed = settings.seed
        every = self._features(data, settings)
        found = nested(every, classes, seed)
        chosen = best(options(every, classes, seed))
        name, clips = chosen.features.name, chosen.features.clips
        self._chosen = self._frontend(name)
        setup = self.setup(self._chosen.base, data.labels, settings)
        if JOINED in name:  # the features that its frontend outputs
            self._on_device(setup, settings)
            fitted = clips_by(data.training, setup, settings, self._joints)
            chosen = replace(chosen, features=replace(chosen.features, clips=fitted))
        head = chosen.head(classes, seed)
        labels, groups = np.array([c.label for c in clips]), [c.group for c in clips]
        answers, streams, how = found.answers, found.streams, ""
        alone = clips_alone(found.rows, labels)
        scaling = fitted_scaling(found.rows, labels, groups, seed)
        if scaling is not None:
            scaling[0].put_into(head)
            answers = scaling[1]
            streams, alone = (
                [replace(s, probabilities=scaling[0].apply(s.probabilities)) for s in part]
                for part in (streams, alone)
            )
            how = " The temperature and the biases of classes were fitted to clips held out."
        return TrainResult(
            list(answers[:, None]),
            streams,
            {CENTROID: list(found.means[name][:, None])},
            alone=alone,
            setup=with_head(setup, head),
            how=f"Chosen: {name}, {chosen.kind}.{how}",
            reason=why_few(
                HeldOut(labels, {chosen.kind: answers}), chosen.kind, clips, setup.card.labels
            ),
            split=f"{counted(len(clips), 'example')} of {counted(len(set(groups)), 'group')}, held"
            " out in turn; frontend and head were chosen and fitted without them.",
            lines=tuple(_table(every, found, chosen, labels, self._known(data, settings))),
        )

    def _known(self, data: TrainingData, settings: TrainSettings) -> _Known | None:
        """Return what the model that knows most of the labels says of the examples.

        None if there is none, or if ``--frontend`` fixes what is tried.
        """
        kind = card_kind(self._frontends[0].base.card)
        base = model_that_knows(data.labels, kind) if settings.frontend is None else None
        if base is None:
            return None
        known, events = known_events(data.labels, base.card), len(data.labels) - 1
        found = _Known(base.card.name, licence_use(base.card), known, events)
        if not is_allowed(licence_class(base.card), settings.licence or "free"):
            return found
        try:
            return replace(found, answers=answers_of(base, data.labels, data.training, settings))
        except (SourceError, UsageError) as error:
            log.warning("%s, as it is, is not tried: %s", found.name, error)
            return found

    def describe(
        self, setup: TrainSetup, result: TrainResult, data: TrainingData, workspace: Workspace
    ) -> TrainedModel:
        """Return the card, with the terms of the chosen frontend, texts, and the verdict."""
        return super().describe(setup, result, data, replace(workspace, base=self._chosen.base))

    def _features(self, data: TrainingData, settings: TrainSettings) -> list[ClipFeatures]:
        """Return the features by each frontend, and of several; copies are in one group.

        A frontend that not all examples fit is left out with a warning, unless it is the only one
        or ``--frontend`` names it.
        """
        found: list[ClipFeatures] = []
        failed: dict[str, list[str]] = {}  # the frontends of each reason
        for frontend in self._frontends:
            setup = self.setup(frontend.base, data.labels, settings)
            self._on_device(setup, settings)
            try:
                reason = self._too_long(frontend, setup, data, settings, found)
                if reason:
                    log.warning("%s is not tried: %s", frontend.name, reason)
                    continue
                clips = clips_by(data.training, setup, settings, self._joints)
            except (SourceError, UsageError) as error:
                if settings.frontend is not None:
                    raise
                failed.setdefault(str(error), []).append(frontend.name)
                if sum(map(len, failed.values())) == len(self._frontends) and len(failed) == 1:
                    raise
                continue
            extra = silence(setup, settings) if frontend.name == SOUND else ()
            features = ClipFeatures(frontend.name, clips, frontend.parts, extra=extra)
            first = JOINTS_HEAD if frontend.name == JOINTS else features.first
            found.append(replace(features, rank=self._rank(frontend), first=first))
        for reason, names in failed.items():
            log.warning("not tried: %s, as %s", ", ".join(names), reason)
        if not found:
            raise UsageError("no frontend fits all examples", where=settings.data)
        _warn_of_nobody(data.training, found)
        found = _without_copies(found)
        wanted = settings.frontend
        if wanted is not None and len(found) > 1:
            return [joined(wanted, found, scales=_scales([features.name for features in found]))]
        return [*found, *_joined_ones(found)]

    def _too_long(
        self,
        frontend: FrontendChoice,
        setup: TrainSetup,
        data: TrainingData,
        settings: TrainSettings,
        found: Sequence[ClipFeatures],
    ) -> str:
        """Return why joints are not looked for in video; '' if they are, or it is not asked."""
        if not self._seen(frontend) or settings.frontend is not None:
            return ""
        rate_hz = self._frontends[0].base.card.rate_hz
        length_s = sum(len(c.steps) for f in found[:1] for c in f.clips) / rate_hz
        if length_s > LONGEST_S:
            return f"{length_s:.0f} s of video take long (--frontend {frontend.name} does)"
        if not shows_people(data.training, setup, settings, self._joints):
            return "hardly anybody is seen in a few of the examples"
        return ""

    def _seen(self, frontend: FrontendChoice) -> bool:
        """Return whether a frontend's joints are found in video."""
        return frontend.name in PEOPLE and all(f.name != JOINTS for f in self._frontends)

    def _rank(self, frontend: FrontendChoice) -> int:
        """Return the place in the order: a network with its joints, where people are, others."""
        if JOINED in frontend.name:
            return 0
        return 1 if self._seen(frontend) else 2

    def _frontend(self, name: str) -> FrontendChoice:
        by_name = {frontend.name: frontend for frontend in self._frontends}
        found = by_name.get(name) or joined_frontend(name.split(JOINED))
        assert found is not None
        return found

    @staticmethod
    def _on_device(setup: TrainSetup, settings: TrainSettings) -> None:
        setup.frontend.to(settings.device).eval().requires_grad_(False)


def _named(name: str, found: Sequence[FrontendChoice]) -> list[FrontendChoice]:
    """Return the frontends of a name, which may be several joined by "+". Raises UsageError."""
    by_name, parts = {frontend.name: frontend for frontend in found}, name.split(JOINED)
    if name in by_name:
        return [by_name[name]]
    for part in parts:
        if part not in by_name:
            hint = f"frontends for these examples: {', '.join(by_name)}"
            raise UsageError(f"{part!r} is not one of them", where="--frontend", hint=hint)
    if len(parts) > 1 and joined_frontend(parts) is None:
        raise UsageError(f"no weight file can hold {name}", where="--frontend")
    return [by_name[part] for part in parts]


def _joined_ones(found: Sequence[ClipFeatures]) -> list[ClipFeatures]:
    """Return the features of several frontends to try."""
    by_name = {features.name: features for features in found}
    out = []
    for parts in JOINTLY:
        if all(part in by_name for part in parts):
            runs = joined_frontend(parts) is not None
            several = [by_name[part] for part in parts]
            both = joined(JOINED.join(parts), several, scales=_scales(parts), runs=runs)
            is_one = parts[0] in NETWORKS.values()  # of joints that were found already
            out.append(replace(both, rank=0) if is_one else both)
    return out


def _scales(parts: Sequence[str]) -> list[float]:
    """Return what the features of each part are multiplied by where they are joined."""
    beside = parts[0] in NETWORKS.values()
    return [JOINTS_SCALE if beside and part in NETWORKS else 1.0 for part in parts]


def _warn_of_nobody(examples: Sequence[Example], found: Sequence[ClipFeatures]) -> None:
    """Name the examples in which joints were looked for and nobody was seen."""
    for features in [f for f in found if f.name in PEOPLE][:1]:
        empty = [
            example.where
            for example, clip in zip(examples, features.clips, strict=True)
            if not clip.tokens.any()
        ]
        if empty:
            log.warning("nobody is seen in %s: do they show the class?", abbreviate(empty))


def _without_copies(found: Sequence[ClipFeatures]) -> list[ClipFeatures]:
    """Return the features with one group for all copies of a clip; a warning names them.

    If that would leave a single group, of which none can be held out, groups stay as they are.
    """
    clips = found[0].clips
    pairs = near_copies(found[0])
    if not pairs:
        return list(found)
    groups = join_groups([clips[a].group, clips[b].group] for a, b in pairs)
    named = sorted({f"{clips[a].group} = {clips[b].group}" for a, b in pairs})
    if len({groups.get(clip.group, clip.group) for clip in clips}) < 2:
        what = "nearly the same in all groups, so that the figures are too good: %s"
        log.warning(what, abbreviate(named))
        return list(found)
    log.warning("nearly the same, held out together: %s", abbreviate(named))
    return [
        replace(f, clips=[replace(c, group=groups.get(c.group, c.group)) for c in f.clips])
        for f in found
    ]


@dataclass(frozen=True)
class _Known:
    """How many of the events a model knows by name, and its answers [N, K], if it was asked.

    ``use``: what its licence allows, in words.
    """

    name: str
    use: str
    known: int
    events: int
    answers: npt.NDArray[np.float64] | None = None

    def __str__(self) -> str:
        known = f"{self.name} ({self.use}) knows {self.known} of {counted(self.events, 'label')}"
        line = f"{known}: costream train {self.name} starts from it"
        if self.answers is not None:
            line += "; the clips may be among what it has learnt from, which its card names"
        return line


def _table(
    every: Sequence[ClipFeatures],
    found: Nested,
    chosen: Choice,
    labels: npt.NDArray[np.int64],
    known: _Known | None,
) -> list[str]:
    """Return lines that say what was tried, with how many clips of other groups were right."""

    def right(answers: npt.NDArray[np.float64]) -> str:
        return share_text(int((answers.argmax(1) == labels).sum()), len(labels))

    rows = [("frontend", "right", "class mean")]
    for features in every:
        name = features.name if features.runs else f"{features.name} (no file can hold it)"
        rows.append((name, right(found.each[features.name]), right(found.means[features.name])))
    if known is not None and known.answers is not None:
        rows.append((f"{known.name}, as it is", right(known.answers), ""))
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = ["tried, on clips of groups that were held out:"]
    lines += [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.append(f"chosen: {chosen.features.name}, {chosen.kind}")
    return [*lines, str(known)] if known is not None else lines
