"""Loading of the model of a run."""

from __future__ import annotations

import logging

from costream.models.base import Model
from costream.options.options import Options
from costream.runtime.memory import settling
from costream.runtime.options import check_model_options
from costream.runtime.stop import loading
from costream.runtime.torch_setup import prepare_torch

log = logging.getLogger("costream")


def load(options: Options) -> Model:
    """Prepare torch and return the model of the options. Raises ModelError as ``load_model``."""
    with loading():
        from costream.models.catalogue import load_model

        prepare_torch(options.threads)
        model = load_model(
            options.model,
            weights=options.weights,
            device=options.device,
            dtype=options.dtype or "float32",
            licence=options.licence,
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


def load_checked(options: Options, *, shares: bool = False) -> Model:
    """Load the model of a run, and check that its options apply to the model.

    ``shares``: see ``check_options``. Raises ModelError as ``load_model``, UsageError for an option
    that does not apply.
    """
    with settling():
        model = load(options)
        check_model_options(options, model, shares=shares)
    log.info("%s: weights %s", model.info.card.name, model.info.weights_sha256[:12])
    return model
