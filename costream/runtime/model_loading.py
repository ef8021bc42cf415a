"""Loading of the model of a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from costream.core.errors import CostreamError
from costream.core.records import SourceKind
from costream.core.settings import AUTO
from costream.models.auto import model_for
from costream.models.base import Model
from costream.options.options import Options
from costream.runtime.memory import settling
from costream.runtime.options import check_model_options
from costream.runtime.stop import loading
from costream.runtime.torch_setup import prepare_torch
from costream.sources.base import SourceOptions
from costream.sources.features.feature_arrays import split_video
from costream.sources.media.streams import media_streams
from costream.sources.uris import sniff

log = logging.getLogger("costream")


def kind_of(uri: str, options: Options) -> SourceKind | None:
    """Return the kind of a source, for ``load``; None unless the model depends on it.

    Media have pictures, unless only sound is found in them. Raises SourceError if it is unreadable.
    """
    if options.model != AUTO:
        return None
    kind = sniff(uri, SourceOptions(text=options.by, layout=options.layout))
    if kind != "video":
        return kind
    hears, shows = media_streams(split_video(uri)[0])
    return "audio" if hears and not shows else "video"


def kind_of_feeds(uris: Sequence[str], options: Options) -> SourceKind:
    """Return the kind of the feeds of a watch: audio if all are microphones or sound files."""
    return "audio" if all(_is_sound(uri, options) for uri in uris) else "video"


def _is_sound(uri: str, options: Options) -> bool:
    try:
        return kind_of(uri, options) == "audio"
    except CostreamError:  # the address of a camera, for example
        return False


def load(options: Options, kind: SourceKind | None = None) -> Model:
    """Prepare torch and return the model of the options; ``kind``: of the source, for ``auto``.

    Raises ModelError as ``load_model``, UsageError if ``auto`` has none for the kind.
    """
    name = model_for(options.model, kind, options.licence)
    with loading():
        from costream.models.catalogue import check_licence, find_weights, load_model

        if name != AUTO:  # refused before the seconds of importing torch
            check_licence(name, options.weights, options.licence)
            for part in filter(None, map(str.strip, name.split(","))):
                find_weights(part, options.weights)
        prepare_torch(options.threads)
        model = load_model(
            name,
            weights=options.weights,
            device=options.device,
            dtype=options.dtype or "float32",
            licence=options.licence,
            provider=options.provider,
        )
        if options.pose is not None:
            from costream.models.pose.choice import find_joints_with

            find_joints_with(model, options.pose)
        if options.threads > 1:
            from costream.runtime.threads import set_threads

            set_threads(model, options.threads)
        if options.tokens is not None:
            from costream.runtime.threads import set_tokens

            set_tokens(model, options.tokens)
        return model


def load_checked(options: Options, kind: SourceKind | None = None) -> Model:
    """Load the model of a run, and check that its options apply to the model.

    ``kind``: as for ``load``. Raises ModelError as ``load_model``, UsageError for an option that
    does not apply.
    """
    with settling():
        model = load(options, kind)
        check_model_options(options, model)
    log.info("%s: weights %s", model.info.card.name, model.info.weights_sha256[:12])
    return model
