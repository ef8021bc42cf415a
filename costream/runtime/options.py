"""Source options of a run, and whether its options apply to the model."""

from __future__ import annotations

from collections.abc import Sequence

from costream.core.errors import UsageError
from costream.models.base import GatedModel, Model
from costream.models.persons import PersonsModel
from costream.options.options import Options
from costream.options.values import ALL_TOKENS
from costream.runtime.budget import check_budget
from costream.runtime.joints import MOST
from costream.sinks.registry import drawing_size, object_formats
from costream.sources.base import SourceOptions

CROPPED = (1280, 720)  # persons are cut out of pictures that are fitted into this


def source_options(
    options: Options, model: Model, formats: Sequence[str] = (), *, stepped: bool = False
) -> SourceOptions:
    """Return the source options that the model and the output formats require.

    ``stepped``: ``run`` steps the model over the source, so that video files decode ahead, and
    only what is shown.
    """
    rate_hz = options.rate_hz or model.info.card.rate_hz
    crops = isinstance(model, PersonsModel) and model.crops
    return SourceOptions(
        start_s=options.start_s,
        end_s=options.end_s,
        box=model.info.box,
        sound=model.info.sound,
        extra_audio=model.info.beside,
        channel=options.channel,
        sampled_hz=rate_hz * model.info.frames if stepped else None,
        prefetch=stepped,
        decoder=options.decoder,
        raw=options.raw,
        tls_verify=options.tls_verify,
        text=options.by,
        arrival=options.arrival,
        drawing=CROPPED if crops else drawing_size(formats),
        rate_hz=rate_hz,
        frame_rate_hz=options.input_hz or options.rate_hz,
        input_hz=options.input_hz,
        stream=options.stream,
        layout=options.layout,
        columns=options.columns,
        persons=MOST if model.info.persons == 1 else max(2, model.info.persons or 0),
    )


def check_model_options(options: Options, model: Model) -> None:
    """Raise UsageError for an option that does not apply to the model, see ``check_options``."""
    check_options(
        options,
        finds_objects=model.info.card.finds_objects,
        gated=isinstance(model, GatedModel),
        by_place=model.info.by_place,
        learned=model.info.learned,
    )
    if options.budget is not None:
        check_budget(model, options.budget)


def check_options(
    options: Options,
    *,
    finds_objects: bool,
    gated: bool,
    by_place: bool = False,
    learned: bool = False,
) -> None:
    """Raise UsageError for an option that does not apply to the model or this machine.

    ``finds_objects``: whether the model detects objects. ``gated``: whether it is token-gated.
    ``by_place``, ``learned``: see ``ModelInfo``.
    """
    unfit = _unfit_policy(options, gated=gated, learned=learned)
    _ = options.places  # raises if two have one name
    if options.decoder == "hardware":
        from costream.sources.media.hardware import check_decoder

        check_decoder()
    if not gated:
        if options.tokens is not None and not by_place:
            complete = "computes complete pictures with this device, precision or file"
            unfit["--tokens"] = complete if finds_objects else "is not token-gated"
        elif not (options.tokens in (None, ALL_TOKENS) or str(options.tokens).startswith(">")):
            unfit["--tokens"] = "takes a change of the picture ('>4'), or all"
    if not finds_objects:
        named = ["--track"] * options.track
        named += ["--zone"] * bool(options.zone) + ["--line"] * bool(options.line)
        named += [f"--format {name}" for name in object_formats(options.formats)]
        unfit |= dict.fromkeys(named, "does not detect objects")
    for where, why in unfit.items():
        hint = "leave it out, or use another model, such as eventful-vitdet"
        raise UsageError(f"{options.model} {why}", where=where, hint=hint)


def _unfit_policy(options: Options, *, gated: bool, learned: bool) -> dict[str, str]:
    """Return why ``--policy`` does not apply, by its name.

    Raises UsageError if it says nothing beside the other options.
    """
    if options.policy is None:
        return {}
    if not gated:
        return {"--policy": "is not token-gated"}
    if options.policy == "learned" and not learned:
        return {"--policy": "has no learned policy"}
    few = options.budget is not None or options.tokens not in (None, ALL_TOKENS)
    if not few or str(options.tokens).startswith(">"):
        hint = "give --tokens N, a share (25%), or --budget"
        raise UsageError(
            "says which of a number of tokens are computed", where="--policy", hint=hint
        )
    return {}
