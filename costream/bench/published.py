"""Benchmark of the published networks that are fetched: a step and the published way."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from costream.bench.timing import Contender, measure, quiet_torch, state_size, step_row
from costream.core.errors import ModelError, UsageError
from costream.core.tables import Table
from costream.models.audio.efficientat import BANDS, EfficientAt
from costream.models.audio.windows import SpectrogramWindows
from costream.models.audio.yamnet import YamNet
from costream.models.eventful.backbone import BackboneState
from costream.models.eventful.rf_detr import RfDetr
from costream.models.eventful.yolos import Yolos
from costream.models.objects.nanodet import NanoDetPlus
from costream.models.onnx_step import onnx_session
from costream.models.pose.blazepose import LITE, SIDE, BlazePose
from costream.models.pose.movenet import MoveNet
from costream.models.spec import model_spec
from costream.models.video.movinet.network import MoViNet
from costream.nn import fast
from costream.nn.eventful.changed_places import MARGIN
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from costream.nn.state import State

COLUMNS = ("way", "median us", "p10 us", "x costream", "MACs", "state bytes")
# Height and width of frames.
PICTURES = {
    "yolos": (480, 848),
    "rf": (384, 384),
    "nanodet": (416, 416),
    "blazepose": (SIDE, SIDE),
    "movenet": (256, 320),
}
# What the published file of a network takes: ONNX, of blazepose and movenet TFLite.
ORIGINALS = {
    "efficientat": (1, 1, BANDS, 200),
    "nanodet": (1, 3, 416, 416),
    "blazepose": (1, SIDE, SIDE, 3),
    "movenet": (1, *PICTURES["movenet"], 3),
}
_SHARES = (("a quarter", 4), ("a tenth", 10))
_CHANGED = (120, 200)  # height and width of what is new in each frame


def published_steps_table(
    model: str, rounds: int = 10, threads: int = 1, original: Path | None = None
) -> Table:
    """Return the timings of a step of a network, random weights, and of the published way.

    ``rounds``: number of turns of each. Microseconds are of one step of one stream. ``original``:
    published ONNX or TFLite file of the network, which takes turns in its runtime.

    Raises UsageError for an ``original`` that is not of this network, ModelError without runtime.
    """
    with quiet_torch(threads), torch.inference_mode():
        torch.manual_seed(0)
        kind = model.partition("-")[0]
        ways, inputs, note = _ways(kind, model_spec(model).arguments or {})
        if original is not None:
            ways.append(_original(original, kind, ways[0].macs, threads))
        times = measure(ways, inputs, rounds)
    base = statistics.median(times[ways[0].name])
    rows = tuple(step_row(way, times, base)[:-1] for way in ways)
    setting = f"{threads} thread(s), float32, one stream, {rounds} rounds in turns, random weights"
    return Table(model, COLUMNS, rows, (setting, note))


Ways = tuple[list[Contender], Sequence[Tensor], str]


def _ways(kind: str, arguments: Mapping[str, Any]) -> Ways:
    """Return the ways of a kind of network, their inputs and a note."""
    if kind in ("yamnet", "efficientat"):
        listener = YamNet if kind == "yamnet" else EfficientAt
        return sound_ways(listener(**arguments).eval())
    if kind == "movinet":
        return action_ways(MoViNet(**arguments).eval())
    if kind == "nanodet":
        return picture_ways(NanoDetPlus(**arguments).eval(), PICTURES[kind])
    if kind == "blazepose":
        return picture_ways(BlazePose(**LITE).eval(), PICTURES[kind])
    if kind == "movenet":
        return crowd_ways(MoveNet().eval(), PICTURES[kind])
    net = Yolos(**arguments) if kind == "yolos" else RfDetr(**arguments)
    return object_ways(net.eval(), *PICTURES[kind])


def picture_ways(net: NanoDetPlus | BlazePose, size: tuple[int, int]) -> Ways:
    """Return a picture, or a crop, alone and four of them at once; of objects also by place."""
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    four, macs = torch.rand(4, 3, *size), FlopCounterMode(display=False)
    pictures = [torch.rand(1, 3, *size)] * 2
    pictures[1] = pictures[1].clone()
    pictures[1][..., : size[0] // 3, : size[1] // 3] = torch.rand(size[0] // 3, size[1] // 3)
    with fast.use_kernels(False), macs:  # operators of oneDNN are not counted
        net(pictures[0])
    count = macs.get_total_flops() // 2
    ways = [
        _contender("costream", net, count, None),
        _contender("four at once", lambda _: net(four), 4 * count, None),
    ]
    if isinstance(net, NanoDetPlus):
        ways += [_by_place(net, pictures[:1], "nothing"), _by_place(net, pictures, "a ninth")]
    return ways, pictures, f"{size[1]} x {size[0]} pixels, of a picture or of a person's crop."


def crowd_ways(net: MoveNet, size: tuple[int, int]) -> Ways:
    """Return a picture with its persons, alone and four of them at once."""
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pictures = [torch.randint(0, 256, (n, *size, 3), dtype=torch.uint8) for n in (1, 4)]
    one, four = (rows.permute(0, 3, 1, 2) for rows in pictures)
    macs = net.macs(*size)
    ways = [
        _contender("costream", lambda x: net.find(x)[0].score, macs, None),
        _contender("four at once", lambda _: net.find(four)[0].score, 4 * macs, None),
    ]
    return ways, [one], f"{size[1]} x {size[0]} pixels, and the joints of six persons in it."


def _by_place(net: NanoDetPlus, pictures: Sequence[Tensor], part: str) -> Contender:
    """Return steps through the pictures that compute the places near ``part``, which changes."""
    from costream.nn.eventful.convolutional import EventfulConvolutions

    eventful = EventfulConvolutions(net, pictures[0], margin=MARGIN)
    state, turns = eventful.init_state(), itertools.cycle(pictures)

    def step(_: Tensor) -> Tensor:
        out: Tensor = eventful.forward_step(next(turns), state)
        return out

    for _ in range(3):
        step(pictures[0])
    name = f"costream, {part} of the picture changed"
    return _contender(name, step, eventful.operations.total, state)


def _original(path: Path, kind: str, macs: int, threads: int) -> Contender:
    """Return the published file of a network in its runtime."""
    if kind not in ORIGINALS:
        known = ", ".join(ORIGINALS)
        raise UsageError(f"is for {known}, not for {kind}", where="--original")
    example = np.random.default_rng(0).random(ORIGINALS[kind], np.float32)
    try:
        if path.suffix == ".tflite":
            name, run = "TFLite", _tflite(path, example, threads)
        else:
            name, run = "ONNX Runtime", _onnx(path, example, threads)
        run()
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=path) from error
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"does not take {[*ORIGINALS[kind]]}", where=path) from error
    return _contender(f"{name}, {path.name}", lambda _: run(), macs, None)


def _onnx(path: Path, example: npt.NDArray[np.float32], threads: int) -> Callable[[], Any]:
    session = onnx_session(path.read_bytes(), threads)
    inputs = {session.get_inputs()[0].name: example}

    def run() -> Any:
        try:
            return session.run(None, inputs)
        except Exception as error:  # the classes of ONNX Runtime have no other base
            raise ValueError(str(error)) from error

    return run


def _tflite(path: Path, example: npt.NDArray[np.float32], threads: int) -> Callable[[], Any]:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        what = "timing a TFLite file needs the package ai-edge-litert"
        raise ModelError(what, where=path, hint="pip install ai-edge-litert") from error
    interpreter = Interpreter(model_content=path.read_bytes(), num_threads=threads)
    about = interpreter.get_input_details()[0]
    if any(n < 0 for n in about["shape_signature"]):
        interpreter.resize_tensor_input(about["index"], example.shape, strict=True)
    interpreter.allocate_tensors()
    given = example if about["dtype"] is np.float32 else (255 * example).astype(about["dtype"])

    def run() -> Any:
        interpreter.set_tensor(about["index"], given)
        interpreter.invoke()

    return run


def sound_ways(net: SpectrogramWindows) -> Ways:
    """Return a hop alone, and hops of a file, sixteen at a time: both are the published windows."""
    fast.compile_chains()  # as a stream of many hops does by itself
    state, many = net.init_state(), net.init_state()
    hops = [torch.randn(1, net.hop_frames, net.bands) for _ in range(4)]
    chunk = torch.randn(1, 16, net.hop_frames, net.bands)
    for k in range(net.window):  # the windows before the first full one are shorter
        net.forward_step(hops[k % len(hops)], state)
    ways = [
        _contender(
            "costream", lambda x: net.forward_step(x, state).logits, net.count_macs(), state
        ),
        _contender(
            "16 hops at once",
            lambda x: net.forward_steps(chunk, many)[0],
            16 * net.count_macs(),
            many,
        ),
    ]
    return ways, hops, f"A hop computes its window of {net.window_frames} frames, as published."


def action_ways(net: MoViNet) -> Ways:
    """Return a frame, and the clip of the last frames recomputed."""
    state = net.init_state()
    frames = [torch.rand(1, 3, net.size, net.size) for _ in range(2)]
    clip = torch.rand(1, net.window, 3, net.size, net.size)
    ways = [
        _contender(
            "costream", lambda x: net.forward_step(x, state).logits, net.count_macs(), state
        ),
        _contender("the clip recomputed", lambda x: net(clip), net.dense_macs, None),
    ]
    return ways, frames, f"A clip has {net.window} frames of {net.size} x {net.size} pixels."


def object_ways(net: Yolos | RfDetr, height: int, width: int) -> Ways:
    """Return a frame with some of its patches, and the frame alone as published."""
    frames, size, rest = [torch.randn(1, 3, height, width)], (height, width), Operations()
    rows, columns = min(_CHANGED[0], height), min(_CHANGED[1], width)
    for top, left in itertools.product((0, height - rows), (0, width - columns)):
        frames.append(frames[-1].clone())
        frames[-1][:, :, top : top + rows, left : left + columns] = torch.randn(3, rows, columns)
    grid = (height // net.patch, width // net.patch)
    patches = [net.embed(frame) for frame in frames]

    def found(view: Any) -> Tensor:
        return net.detect(view, size, rest)[0].boxes

    found(net.encode(patches[0]))
    after, ways = rest.total, []
    for name, parts in _SHARES:
        state, count = net.init_state(1, height, width), grid[0] * grid[1] // parts

        def step(x: Tensor, state: BackboneState = state, count: int = count) -> Tensor:
            return found(net.view_step(x, state, TopTokens(count), Operations()))

        title = f"costream, {name} of the patches"
        ways.append(_contender(title, step, after + net.count_macs(*grid, count), state))
    macs = after + net.count_macs(*grid)
    ways.append(_contender("the frame alone", lambda x: found(net.encode(x)), macs, None))
    note = f"Frames of {width} x {height} pixels, of which {columns} x {rows} are new, from patches"
    return ways, patches, f"{note} to boxes."


def _contender(
    name: str, step: Callable[[Tensor], Tensor], macs: int, state: State | None
) -> Contender:
    held = 0 if state is None else state_size(state.tensors().values())
    return Contender(name, step, macs, lambda: held)
