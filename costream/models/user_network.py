"""Networks built by a function of a user's file, converted when they are loaded.

A weight file names the file and the function; the file is run only if the user asks for it
(``costream --code FILE.py``). The shape of the example determines the input of the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.label_sets import custom_labels, read_labels
from costream.core.user_code import function_of, run_code
from costream.models.build import build
from costream.models.converted import ContinualClassifier
from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.nn.continual import Continual
from costream.nn.conversion import convert
from costream.nn.network import PartGraphState
from costream.nn.operation import ConversionError
from costream.weights_io.card import Card
from costream.weights_io.foreign import read_foreign
from costream.weights_io.import_settings import CARD_KEYS, ImportSettings

MEL_BANDS, MEL_RATE_HZ, MEL_HOP = 64, 100, 25  # of the frontend "logmel": frames a second, a step
RATE_HZ = 10.0
# Layout of skeletons by their number of joints.
_LAYOUTS = {15: "body-15", 17: "coco-17", 18: "openpose-18", 25: "ntu-25", 33: "mediapipe-33"}
_OF_PLAN = ("time_axis", "frontend", "frontend_arguments")  # options that are not of ``convert``
_OPTIONS = {"approximate", "window", *_OF_PLAN}
SHAPES = (
    "[1, T, D] (rows; with time_axis 2: [1, D, T]), [1, 3, T, H, H] (pictures), [1, 1, 64, T]"
    " (mel), [1, 2 or 3, T, V] or [1, 2 or 3, T, V, M] (M skeletons of"
    f" {', '.join(map(str, _LAYOUTS))} joints)"
)


@dataclass(frozen=True)
class UserPlan:
    """The result of a user's function, and the input that the shape of its example implies."""

    module: nn.Module
    example: Tensor
    time_axis: int
    input: str  # "rows", "pictures", "mel", "skeleton" or "skeletons"
    frontend: str | None
    frontend_arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of ``convert``

    @property
    def frames(self) -> int:
        """Frames of its clips."""
        return int(self.options.get("window") or self.example.shape[self.time_axis])

    def converted(self) -> Continual:
        """Return the continual form. Raises ModelError for a network that cannot be converted."""
        try:
            return convert(self.module.eval(), self.example, self.time_axis, **self.options)
        except (ConversionError, ValueError) as error:
            raise ModelError(f"the network cannot be made continual: {error}") from error


def user_plan(file: str, function: str) -> UserPlan:
    """Return the plan of a function that returns a module, an example clip and maybe options.

    Options are ``approximate`` and ``window`` of ``convert``, and ``time_axis``, ``frontend`` and
    ``frontend_arguments``, which otherwise follow from the example.

    Raises ModelError for a file that was not run, and for other results.
    """
    where = f"{file}:{function}"
    try:
        result = function_of(file, function)()
    except ConversionError as error:
        raise ModelError(str(error), where=where) from error
    module, example, *more = result if isinstance(result, tuple) else (result, None)
    options = dict(more[0]) if more and isinstance(more[0], Mapping) else {}
    if not isinstance(module, nn.Module) or not isinstance(example, Tensor) or len(more) > 1:
        raise ModelError("does not return a module and an example clip", where=where)
    if unknown := options.keys() - _OPTIONS:
        raise ModelError(f"unknown options: {', '.join(sorted(unknown))}", where=where)
    plan = _planned(module, example, where)
    chosen = {name: options.pop(name) for name in _OF_PLAN if name in options}
    return replace(plan, **chosen, options=options)


def _planned(module: nn.Module, example: Tensor, where: str) -> UserPlan:
    """Return the plan for an example of this shape. ModelError for a shape without a plan."""
    match tuple(example.shape[1:]):
        case (_, _):
            return UserPlan(module, example, 1, "rows", None)
        case (1, bands, _) if bands == MEL_BANDS:
            return UserPlan(module, example, 3, "mel", "logmel", {"hop_frames": MEL_HOP})
        case (2 | 3 as axes, _, joints) if joints in _LAYOUTS:
            return UserPlan(module, example, 2, "skeleton", "joints", _joints(axes, joints, 1))
        case (2 | 3 as axes, _, joints, persons) if joints in _LAYOUTS and persons < joints:
            arguments = _joints(axes, joints, persons)
            return UserPlan(module, example, 2, "skeletons", "joints", arguments)
        case (3, _, height, width) if height == width:
            arguments = {"size": height, "short_side": round(height * 8 / 7)}
            return UserPlan(module, example, 2, "pictures", "crop", arguments)
    shape = list(example.shape)
    raise ModelError(f"an example {shape}: not one of {SHAPES}", where=where)


def _joints(axes: int, joints: int, persons: int) -> dict[str, Any]:
    return {"layout": _LAYOUTS[joints], "axes": axes, "persons": persons}


@register_model("user-network")
class UserNetwork(ContinualClassifier):
    """The converted network of a user's function.

    ``num_classes``: of its outputs. ``frame_macs``: multiply-accumulates of a frame, stored because
    counting takes seconds. ``input_width``: of its rows, if it takes rows.
    """

    def __init__(
        self,
        file: str,
        function: str,
        num_classes: int,
        frame_macs: int,
        input_width: int | None = None,
    ) -> None:
        plan = user_plan(file, function)
        network = plan.converted()
        super().__init__(network)
        changed = network.report().change is not None
        self.recomputed = min(self.window, plan.frames) if changed else self.window
        self.input, self.num_classes, self.frame_macs = plan.input, num_classes, frame_macs
        if plan.input == "mel":
            self.hop = int(plan.frontend_arguments["hop_frames"])
            if self.hop % self.stride:
                what = f"its stride of {self.stride} frames does not divide {self.hop}, of a step"
                hint = 'another "hop_frames" among its "frontend_arguments"'
                raise ModelError(what, hint=hint)
            self.stride = 1  # from the last output of a step to that of the next

    def forward_step(self, x: Tensor, state: PartGraphState) -> OadOutput | None:
        """Take a token of every stream, return logits [B, K], or None where there is none yet.

        Of sound, a token is the frames of a step [B, F, 64]; while there is no output, its logits
        are zeros.
        """
        if self.input == "mel":
            out = self.forward_steps(x[:, None], state)
            return OadOutput(out.logits[:, 0], None)
        if self.input == "skeleton":
            x = x[:, 0].transpose(1, 2)  # [B, P, V, C] -> [B, C, V]
        elif self.input == "skeletons":
            x = x.permute(0, 3, 2, 1)
        return super().forward_step(x, state)

    def forward_steps(self, x: Tensor, state: PartGraphState) -> OadOutput:
        """Take T tokens of sound [B, T, F, 64] of every stream, return logits [B, T, K]."""
        axis, rows = self.network.out_axis, []
        for token in x.unbind(1):
            out = self.network.forward_steps(token.transpose(1, 2)[:, None], state)
            count = out.shape[axis]
            rows.append(
                out.select(axis, count - 1) if count else x.new_zeros(len(x), self.num_classes)
            )
        return OadOutput(torch.stack(rows, 1), None)

    def warmup(self, state: PartGraphState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether it has fewer frames than an output depends on."""
        return super().warmup(state, ago * self.hop if self.input == "mel" else ago)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream."""
        return self.frame_macs * (self.hop if self.input == "mel" else 1)

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of all frames that an output depends on; of a clip, if fewer.

        For a strided network, with outputs at every ``stride``-th step only, the mean over steps.
        """
        return self.recomputed * self.frame_macs // self.stride


TASKS = {"mel": "sound classification", "skeleton": "skeleton action recognition"}


def import_user_network(
    file: Path, function: str, weights: Path | None, name: str, config: Mapping[str, str]
) -> tuple[Card, dict[str, Tensor], str]:
    """Run a file, and return card, tensors (``network.*``) and the report of the conversion.

    ``weights``: a checkpoint with the names of the module's ``state_dict``; None: those that the
    function sets. Raises UsageError for a file that fails, ModelError for a network that cannot be
    continual and for weights that do not fit it.
    """
    settings = ImportSettings(config, CARD_KEYS)
    if not file.is_file():
        raise ModelError("there is no such file", where=file)
    run_code(file)
    plan = user_plan(file.name, function)
    if weights is not None:
        _fill(plan, weights)
    net = plan.converted()
    with torch.no_grad():
        clip = plan.example[:1]
        out = net.forward_steps(torch.cat([clip, clip], plan.time_axis), net.init_state(1))
    if out.dim() != 3 or not out.shape[net.out_axis]:
        what = f"an output {list(out.shape)}, not [1, K] for K classes"
        raise ModelError(what, where=f"{file}:{function}")
    classes = out.shape[3 - net.out_axis]
    arguments: dict[str, Any] = {"file": file.name, "function": function, "num_classes": classes}
    arguments["frame_macs"] = net.count_macs()
    if plan.input == "rows":
        arguments["input_width"] = plan.example.shape[3 - plan.time_axis]
    hop = plan.frontend_arguments["hop_frames"] if plan.input == "mel" else None
    labels = settings.get("labels")
    named = custom_labels(tuple(f"class {k}" for k in range(classes)), file)
    named = named if labels is None else read_labels(labels)
    if len(named.names) != classes:
        what = f"{len(named.names)} labels, but the network has {classes} outputs"
        raise ModelError(what, where=f"labels={labels}")
    rate_hz = MEL_RATE_HZ / hop if hop else settings.get("rate_hz") or RATE_HZ
    card = Card(
        name=name,
        task=TASKS.get(plan.input.removesuffix("s"), "online action detection"),
        architecture="user-network",
        arguments=arguments,
        labels=named.names,
        rate_hz=rate_hz,
        delay_s=net.delay / (MEL_RATE_HZ if hop else rate_hz),
        background=settings.get("background") or named.background,
        frontend=plan.frontend,
        frontend_arguments=dict(plan.frontend_arguments),
        description=f"The network of {function} in {file.name}, made continual.",
        **settings.terms,
    )
    tensors = {f"network.network.{k}": v for k, v in plan.module.state_dict().items()}
    try:
        build(card, tensors)  # as it is when it runs
    except ModelError as error:
        raise ModelError(str(error), where=f"{file}:{function}") from error
    return card, tensors, str(net.report())


def _fill(plan: UserPlan, weights: Path) -> None:
    """Load weights into the module. ModelError if they do not fit."""
    tensors = read_foreign(weights).tensors
    try:
        plan.module.load_state_dict(tensors)
    except RuntimeError as error:
        lines = " ".join(str(error).split())
        raise ModelError(f"do not fit the network: {lines:.300}", where=weights) from error
