"""Frontends that ``costream train auto`` tries, and the features of clips by them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from costream.core.errors import ModelError, UsageError
from costream.core.records import SourceInfo
from costream.labels.examples import Example
from costream.labels.formats.label_headings import split_columns
from costream.labels.recording import BACKGROUND, SILENCE
from costream.models.base import SHIPPED
from costream.models.build import build
from costream.models.catalogue import read_whole
from costream.models.frontend import load_frontend
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.skeleton_features import network_of
from costream.sources.base import SourceOptions
from costream.sources.features.feature_arrays import split_video
from costream.sources.media.streams import media_streams
from costream.sources.uris import open_source, sniff
from costream.training.audio.audio_reader import AudioReader
from costream.training.audio.audio_trainer import QUIET, QUIET_STEPS
from costream.training.audio.audio_trainer import clips_of as clips_of_sounds
from costream.training.base import TrainSettings, TrainSetup
from costream.training.feature_cache import FeatureCache, example_key
from costream.training.open_examples import check_examples, of_each
from costream.training.skeleton.motion_reader import read_motions
from costream.training.skeleton.motions import Joints, batch
from costream.training.tokens.linear_head import SPREAD, Clip, HeadKind
from costream.training.video.video_reader import VideoReader, options_of
from costream.training.video.video_trainer import clips_of
from costream.weights_io.card import Card, Timeline
from costream.weights_io.file import Weights
from costream.weights_io.licences import is_allowed, licence_class, narrowest

PICTURE, MOTION, SOUND, POSE, JOINTS, TDN = "encoder", "motion", "mn04", "pose", "joints", "tdn"
PAIR = "pair"  # as POSE, of two persons
CHANGES = "changes"  # how the part changes that MOTION shows
# The networks whose features are tried besides joints alone, by what these are.
NETWORKS = {POSE: "costgcn-2d", PAIR: "costgcn-pairs"}
PEOPLE = (*NETWORKS, *NETWORKS.values())
_IN_FILES = {2: "costgcn-2d", 3: "costgcn"}  # the same for files of joints, by their axes
JOINED = "+"
# Features of several that are tried, besides each alone.
JOINTLY = (
    (PICTURE, MOTION),
    (PICTURE, SOUND),
    (MOTION, SOUND),
    (PICTURE, MOTION, SOUND),
    (PICTURE, POSE),
    (MOTION, POSE),
    *((network, joints) for joints, network in NETWORKS.items()),
)
_JOINT_RATE_HZ = 15.0
_CHANGES_RATE_HZ = 10.0  # at half of it, differences of pictures tell less
_BODY = "body-15"  # joints that all layouts have
_STREAMS = ("joint", "bone", "joint_motion")
_IN_VIDEO = ("joint", "joint_motion")
# Of joints beside a network's features, to which they are added in cosines of class means.
JOINTS_SCALE = 0.3
# Of files of joints: class means of places, bones and movements are far behind in all sets tried.
JOINTS_HEAD = HeadKind(SPREAD, 0.0)
_MEMORY_S = 2.0  # of origin and heading of a body
_SAMPLED = 8  # clips that are searched for people
_PEOPLE = 0.5  # share of their steps with somebody, from which on joints are tried
_TASKS = {
    "video": "online action detection",
    "audio": "sound classification",
    "skeleton": "skeleton action recognition",
}

log = logging.getLogger("costream")


@dataclass(frozen=True)
class FrontendChoice:
    """A frontend with its weights and a linear network without any.

    ``parts``: widths of the features of the frontends that it is made of.
    """

    name: str
    base: Weights
    parts: tuple[int, ...]


_Makers = dict[str, Callable[[], FrontendChoice]]


def first_source(uri: str, settings: TrainSettings) -> SourceInfo:
    """Return what a recording is. Raises SourceError, and UsageError for features and text."""
    options = _options(settings)
    if sniff(uri, options) == "video":
        hears, shows = media_streams(split_video(uri)[0])
        if hears and not shows:
            return SourceInfo(uri, uri, "audio", None, None)
        if shows:
            return SourceInfo(uri, uri, "video", None, None, extra_audio=hears)
    source = open_source(uri, options)
    try:
        info = source.open()
    finally:
        source.close()
    if info.kind in ("features", "text"):
        hint = "train miniroad, or another network of features" if info.kind == "features" else None
        what = f"auto takes video, sound and skeletons, not {info.kind}"
        raise UsageError(what, where=uri, hint=hint)
    return info


def frontends_for(info: SourceInfo, settings: TrainSettings) -> list[FrontendChoice]:
    """Return the frontends to try for sources like this one, each alone.

    Those whose licence ``--licence`` does not allow are left out; its default here is free.
    """
    if info.kind == "audio":
        return _allowed([_sound()], settings)
    if info.kind == "skeleton":
        joints = _joints(JOINTS, info, settings)
        name = _IN_FILES[joints.base.card.frontend_arguments["axes"]]
        files: _Makers = {name: partial(_network, name, is_video=False)}
        files[f"{name}{JOINED}{JOINTS}"] = partial(_network, name, JOINTS, is_video=False)
        return [joints, *_for_research(files, settings)]
    found = [_picture(), _motion(picture=False), _changes()]
    if info.extra_audio:
        found.append(_sound())
    found += [_joints(name, info, settings) for name in NETWORKS]
    films: _Makers = {name: partial(_network, name) for name in NETWORKS.values()}
    return [*_allowed(found, settings), *_for_research({TDN: _differences, **films}, settings)]


def _for_research(makers: _Makers, settings: TrainSettings) -> list[FrontendChoice]:
    """Return those with weights for research only; a line says which are not tried, and why."""
    wanted = settings.frontend
    if wanted is not None:
        makers = {k: m for k, m in makers.items() if k == wanted or k in wanted.split(JOINED)}
    if settings.licence in (None, "free"):
        if makers:
            what = "not tried, as their weights are for research only: %s (--licence any does)"
            log.warning(what, ", ".join(makers))
        return []
    found, missing = [], dict[str, None]()
    for make in makers.values():
        try:
            found.append(make())
        except ModelError as error:  # it names them, and how to get them
            missing[str(error)] = None
    for reason in missing:
        log.warning("not tried: %s", reason)
    return _allowed(found, settings)


def joined_frontend(parts: Sequence[str]) -> FrontendChoice | None:
    """Return a frontend that outputs the features of several; None if there is none."""
    if len(parts) == 2 and NETWORKS.get(parts[1]) == parts[0]:
        return _network(*parts)
    videos = [part for part in parts if part in (PICTURE, MOTION)]
    others = [part for part in parts if part not in (PICTURE, MOTION)]
    if others not in ([], [SOUND]) or not videos:
        return None
    video = _motion(picture=True) if len(videos) == 2 else _motion(picture=False)
    if videos == [PICTURE]:
        video = _picture()
    if not others:
        return replace(video, name=JOINED.join(parts))
    return _with_sound(JOINED.join(parts), video, _sound())


@dataclass
class FoundJoints:
    """Joints that were looked for in examples: those of several frontends are the same."""

    found: dict[str, Joints] = field(default_factory=dict)

    def of(self, example: Example, setup: TrainSetup, settings: TrainSettings) -> Joints:
        """Return joints [T, S, V, A + 1] of an example. Raises as ``read_motions``."""
        card, module = setup.card, setup.frontend
        key = repr((example, module.layout.name, module.axes, module.persons, card.rate_hz))
        if key not in self.found:
            read = read_motions([example], card, module, _options(settings), empty=True)
            self.found[key] = read[0].joints
        return self.found[key]


def clips_by(
    examples: Sequence[Example],
    setup: TrainSetup,
    settings: TrainSettings,
    joints: FoundJoints,
) -> list[Clip]:
    """Return the examples as features by the frontend of a setup.

    ``joints``: those found so far. Raises SourceError, and UsageError for what cannot be used.
    """
    card, module = setup.card, setup.frontend
    cache = FeatureCache(settings.cache, card, module, settings.device)
    if module.takes == "video":
        check_examples(examples, card, module, options_of(module))
        return clips_of(
            VideoReader(card, module, 0, settings.seed, cache).read(examples), card.labels
        )
    if module.takes == "audio":
        reader = AudioReader(card, module, 0, settings.seed, cache)
        reader.check(examples)
        tokens = [sound.tokens[0] for sound in reader.read(examples)]
    else:
        check_examples(examples, card, module, _options(settings))
        found = _joint_tokens(
            examples, setup, cache, partial(joints.of, setup=setup, settings=settings)
        )
        twins, tokens = [rows[1:] for rows in found], [rows[0] for rows in found]
        return [
            Clip(rows, np.arange(len(rows)), card.labels.index(e.label), e.group, tuple(others))
            for rows, others, e in zip(tokens, twins, examples, strict=True)
        ]
    return [
        Clip(rows, np.arange(len(rows)), card.labels.index(e.label), e.group)
        for rows, e in zip(tokens, examples, strict=True)
    ]


def silence(setup: TrainSetup, settings: TrainSettings) -> list[Clip]:
    """Return stretches of silence, as examples of the background of sound."""
    cache = FeatureCache(None, setup.card, setup.frontend)
    reader = AudioReader(setup.card, setup.frontend, 0, settings.seed, cache)
    quiet = reader.silence(setup.card.labels[0], QUIET, QUIET_STEPS)
    return clips_of_sounds(quiet, [], setup.card.labels)


def shows_people(
    examples: Sequence[Example], setup: TrainSetup, settings: TrainSettings, joints: FoundJoints
) -> bool:
    """Return whether somebody is seen in most steps of a few of the examples."""
    places = np.linspace(0, len(examples) - 1, min(_SAMPLED, len(examples))).astype(int)
    few = [examples[k] for k in dict.fromkeys(places.tolist())]
    seen = [joints.of(e, setup, settings)[..., -1].any((1, 2)).mean() for e in few]
    return bool(np.mean(seen) >= _PEOPLE)


@torch.no_grad()
def _joint_tokens(
    examples: Sequence[Example],
    setup: TrainSetup,
    cache: FeatureCache,
    joints_of: Callable[[Example], Joints],
) -> list[list[Tensor]]:
    """Return the tokens [T, C] of each example, and in a picture then those of its twins."""
    module = setup.frontend

    def tokens(example: Example) -> list[Tensor]:
        joints = joints_of(example)
        every = [joints, *twins_of(joints, module)] if module.axes == 2 else [joints]
        return [module(batch([each]))[0].flatten(1) for each in every]

    bar = tqdm(examples, "reading", file=sys.stderr, disable=None, leave=False)
    return of_each(bar, lambda e: cache.make(example_key(e), partial(tokens, e)))


def twins_of(joints: Joints, frontend: JointStreams) -> list[Joints]:
    """Return what joints [T, S, V, 3] of persons in pictures may as well be.

    They are mirrored; of two persons, the other one is also the first.
    """
    mirrored = joints[:, :, list(frontend.layout.mirrored)] * (-1, 1, 1)
    twins = [mirrored.astype(np.float32)]
    if frontend.persons == 2 and joints.shape[1] == 2:
        twins += [each[:, ::-1] for each in (joints, twins[0])]
    return twins


def _options(settings: TrainSettings) -> SourceOptions:
    _, columns = split_columns(settings.columns)
    return SourceOptions(layout=settings.layout, columns=columns, frame_rate_hz=settings.rate_hz)


def _allowed(found: Sequence[FrontendChoice], settings: TrainSettings) -> list[FrontendChoice]:
    allowed = settings.licence or "free"
    return [f for f in found if is_allowed(licence_class(f.base.card), allowed)]


def _picture() -> FrontendChoice:
    return _of(PICTURE, read_whole(PICTURE))


def _motion(*, picture: bool) -> FrontendChoice:
    stored = read_whole(PICTURE)
    arguments = {**stored.card.frontend_arguments, "picture": picture}
    card = replace(stored.card, frontend="moving-part", frontend_arguments=arguments)
    found = _of(MOTION, replace(stored, card=card))
    width = found.parts[0]
    return replace(found, parts=(width // 2,) * 2) if picture else found


def _changes() -> FrontendChoice:
    stored = read_whole(PICTURE)
    card = replace(stored.card, frontend="moving-changes", rate_hz=_CHANGES_RATE_HZ)
    return _of(CHANGES, replace(stored, card=card))


def _differences() -> FrontendChoice:
    return _of(TDN, read_whole(SHIPPED["video"]))


def _sound() -> FrontendChoice:
    stored = read_whole(SOUND)
    network: Any = build(stored.card, stored.tensors)[0]
    name, module = network.as_frontend()
    card = replace(stored.card, frontend=name, frontend_arguments=module.arguments)
    tensors = {f"frontend.{key}": value for key, value in module.state_dict().items()}
    return _of(SOUND, replace(stored, card=card, tensors=tensors))


def _joints(name: str, info: SourceInfo, settings: TrainSettings) -> FrontendChoice:
    """Return joints without a network; in video, those of the pose estimator in the picture.

    PAIR has those of two persons, one after the other, the origin at the first one's hips.
    """
    is_video = info.kind == "video"
    layout = _BODY if is_video else settings.layout or info.layout or _BODY
    axes = 2 if is_video else info.axes or 3
    steps = round(_MEMORY_S * _JOINT_RATE_HZ)
    arguments = {
        "layout": layout,
        "axes": axes,
        "persons": 2 if name == PAIR else 1,
        "streams": list(_IN_VIDEO if is_video else _STREAMS),
        "origin": steps,
        "heading": 0 if axes == 2 else steps,
        "min_score": 0.3,
    }
    pose = read_whole(POSE).card if is_video else None
    card = Card(
        name=name,
        task=_TASKS["skeleton"],
        architecture="linear",
        arguments={},
        labels=(),
        rate_hz=_JOINT_RATE_HZ,
        frontend="joints",
        frontend_arguments=arguments,
        licence="" if pose is None else pose.licence,
        licence_class="free",
    )
    module: Any = load_frontend("joints", **arguments)
    return _of(name, Weights(card, "", {}), module.persons * module.joints * module.channels)


def _network(name: str, joints: str = "", *, is_video: bool = True) -> FrontendChoice:
    """Return the features of a skeleton network, and its ``joints`` beside them, if named.

    ``is_video``: whether they are found in video, and not read from files.
    """
    stored = read_whole(name)
    card, streams = stored.card, _IN_VIDEO if is_video else _STREAMS
    arguments = {
        **card.frontend_arguments,
        "network": network_of(card.arguments),
        "also": list(streams) if joints else [],
        "scale": JOINTS_SCALE if joints else 1.0,
    }
    module: Any = load_frontend("skeleton-features", **arguments)
    tensors = {  # with the identity in place of the classes
        f"frontend.{key}": value if ".fc." in key else stored.tensors[key]
        for key, value in module.state_dict().items()
    }
    licences = _licences(card, read_whole(POSE).card) if is_video else {}
    card = replace(card, frontend="skeleton-features", frontend_arguments=arguments, **licences)
    found = _of(name, replace(stored, card=card, tensors=tensors))
    if not joints:
        return found
    parts = module.features, module.token_width - module.features
    return replace(found, name=f"{name}{JOINED}{joints}", parts=parts)


def _licences(first: Card, second: Card) -> dict[str, Any]:
    """Return the licence of what uses both."""
    return {
        "licence": "; ".join(filter(None, (first.licence, second.licence))),
        "licence_class": narrowest((first.licence_class, second.licence_class)),
    }


def _with_sound(name: str, video: FrontendChoice, sound: FrontendChoice) -> FrontendChoice:
    first, second = video.base.card, sound.base.card
    arguments = {
        "video": first.frontend,
        "audio": second.frontend,
        "video_arguments": first.frontend_arguments,
        "audio_arguments": second.frontend_arguments,
        "rate_hz": first.rate_hz,
    }
    card = replace(
        first,
        frontend="audiovisual",
        frontend_arguments=arguments,
        **_licences(first, second),
    )
    tensors = {
        f"frontend.{part}.{key.removeprefix('frontend.')}": value
        for part, each in (("video", video), ("audio", sound))
        for key, value in each.base.tensors.items()
    }
    found = _of(
        name, replace(video.base, card=card, tensors=tensors), sum(video.parts + sound.parts)
    )
    return replace(found, parts=video.parts + sound.parts)


def _of(name: str, stored: Weights, width: int | None = None) -> FrontendChoice:
    """Return a frontend with a linear network; ``width``: of its tokens, None: as it says."""
    card = stored.card
    module: Any = load_frontend(str(card.frontend), **card.frontend_arguments)
    width = width or int(module.token_width)
    background = SILENCE if module.takes == "audio" else BACKGROUND
    card = replace(
        card,
        name=name,
        task=_TASKS[module.takes],
        architecture="linear",
        arguments={"input_width": width, "num_classes": 2},
        labels=(background, "other"),
        background=background,
        timeline=Timeline(),
        delay_s=0.0,
        familiarity=None,
        temperature=1.0,
        paper="" if module.takes == "skeleton" else card.paper,
    )
    tensors = {k: v for k, v in stored.tensors.items() if k.startswith("frontend.")}
    return FrontendChoice(name, replace(stored, card=card, tensors=tensors), (width,))
