"""Steps of networks for other runtimes, with the state as inputs and outputs.

The graph is one step of one stream: from a token and the state to the probabilities and the next
state. The initial state is zeros.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from costream.core.errors import ModelError, UsageError
from costream.models.audio.windows import SpectrogramWindows
from costream.models.build import build
from costream.models.catalogue import read_model
from costream.models.exporting.convolutional import (
    add_convolutional,
    convolutional_shape,
    why_not_convolutional,
)
from costream.models.exporting.frontends import add_frontend, why_not_frontend
from costream.models.exporting.graph import StepGraph, TorchStep, to_onnx
from costream.models.exporting.mobile import (
    add_linear,
    linear_shape,
    pose_graph,
    why_not_linear,
)
from costream.models.exporting.objects import detector_graph
from costream.models.exporting.skeletons import add_skeleton, skeleton_shape, why_not_skeleton
from costream.models.exporting.tokens import add_tokens, token_width, why_not_tokens
from costream.models.images import Pixels
from costream.models.int8 import without_int8
from costream.models.oad.linear import LinearClassifier
from costream.models.objects.nanodet import NanoDetPlus
from costream.models.pose.blazepose import BlazePose
from costream.models.spec import is_gated
from costream.models.video.movinet.network import MoViNet
from costream.models.video.video3d.network import VideoNet
from costream.weights_io.card import Card
from costream.weights_io.file import STEP_FORMAT, Weights, write_whole

PROGRAM = ".pt2"  # suffix of programs of torch.export


def export_step(name: str, output: str | os.PathLike[str], *, whole: bool = False) -> list[str]:
    """Write the step of a model as ONNX, or as a ``.pt2``; return the names of its inputs.

    ``name``: as for ``find_weights``. The first input, ``x``, is the output of the frontend: a
    token [1, D], joints [1, M, V, C], a picture or a spectrogram. With ``whole`` it is the input of
    the frontend, see ``add_frontend``. Further inputs are the state, each with an output
    ``next_...``. Outputs are ``logits`` and ``probabilities`` [1, K], of encoders of pictures
    also ``features``; see ``pose_graph`` and ``detector_graph`` for theirs.

    Raises ModelError for networks whose step is not exported, and for ONNX without the package
    onnx; UsageError for other names; OutputError.
    """
    output = Path(output)
    if output.suffix not in (PROGRAM, ".onnx"):
        raise UsageError(f"the name must end in .onnx or {PROGRAM}", where=f"-o {output}")
    stored = read_model(name)
    card = stored.card
    graph = step_graph(stored, whole=whole)
    facts = {"labels": "\n".join(card.labels), "rate_hz": f"{card.rate_hz:g}"}
    facts |= {"tensors_sha256": stored.sha256, "licence": card.licence}
    facts |= {"format": STEP_FORMAT, "card": card.to_json(), "step": json.dumps(graph.facts)}
    if output.suffix == PROGRAM:
        data = to_program(graph, facts)
    else:
        try:
            data = to_onnx(graph, card.name, facts)
        except ImportError as error:
            hint = f"pip install 'costream[onnx]', or write a {PROGRAM}"
            raise ModelError("exporting needs the package onnx", hint=hint) from error
    write_whole(output, [data])
    return list(graph.inputs)


def step_graph(stored: Weights, *, whole: bool = False) -> StepGraph:
    """Return the step of a model; see ``export_step``. ModelError for those that have none."""
    card = stored.card
    network: Any
    network, frontend = build(*without_int8(card, stored.tensors))
    network.eval()
    if isinstance(network, NanoDetPlus) and isinstance(frontend, Pixels):
        return detector_graph(network, frontend, whole)
    if isinstance(network, BlazePose):
        return pose_graph(network)
    why_not, shape, add = _family(network)
    reason = why_not(network)
    if is_gated(card.architecture):
        reason = "it computes what has changed, and a graph computes the same in each step"
    if reason:
        raise ModelError(f"the step of {card.architecture} is not exported: {reason}")
    if whole and (reason := why_not_frontend(frontend)):
        raise ModelError(f"{card.name} is not exported as a whole: {reason}")
    graph = StepGraph()
    graph.facts = _facts(network, frontend if whole else None)
    if whole and frontend is not None:
        x = add_frontend(graph, frontend.eval())
    else:
        x = graph.input("x", shape(network))
    _classify(graph, add(graph, network, x), card)
    return graph


def _family(network: Any) -> tuple[Callable[..., str], Callable[..., Any], Callable[..., str]]:
    """Return functions for the reason against an export, the shape of ``x`` and the step."""
    if isinstance(network, MoViNet | VideoNet | SpectrogramWindows):
        return why_not_convolutional, convolutional_shape, add_convolutional
    if isinstance(network, LinearClassifier):
        return why_not_linear, linear_shape, add_linear
    if hasattr(network, "joints"):
        return why_not_skeleton, skeleton_shape, add_skeleton
    return why_not_tokens, lambda net: (1, token_width(net)), add_tokens


def _facts(network: Any, frontend: Any) -> dict[str, Any]:
    """Return the properties of a step that ``models.onnx_step`` needs besides the card."""
    encoder = getattr(network, "encoder", network)
    parts = [part for part in (network, frontend) if part is not None]
    macs = [int(part.count_macs()) for part in parts]
    dense = [int(getattr(part, "dense_macs", None) or part.count_macs()) for part in parts]
    field = int(getattr(encoder, "receptive_field", network.window))
    exact = [bool(getattr(part, "exact", False)) for part in parts]
    costs = {"macs": macs, "dense_macs": dense, "exact": exact}
    return {"whole": frontend is not None, "field": field, **costs}


def _classify(graph: StepGraph, logits: str, card: Card) -> None:
    graph.output("logits", logits, (1, len(card.labels)))
    scaled = graph.add("Div", logits, graph.constant(card.temperature))
    if card.multilabel:
        scores = graph.add("Sigmoid", scaled)
    else:
        scores = graph.add("Softmax", scaled, axis=-1)
    graph.output("probabilities", scores, (1, len(card.labels)))


def to_program(graph: StepGraph, facts: dict[str, str]) -> bytes:
    """Return a graph as an ``ExportedProgram``, saved with these facts as JSON, ``facts.json``."""
    import io

    import torch

    step = TorchStep(graph)
    program = torch.export.export(step, (step.example(),), strict=False)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"facts.json": json.dumps(facts)})
    return buffer.getvalue()
