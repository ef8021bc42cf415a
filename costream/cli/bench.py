"""``costream bench``: measure steps and count operations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from costream.cli import SuggestingGroup
from costream.core.errors import UsageError
from costream.models.spec import model_benches
from costream.options.click_options import F, Option, json_option, option
from costream.options.completers import file_names, model_names
from costream.options.values import seconds, token_limits
from costream.sinks.atomic import write_file
from costream.sources.uris import sniff

if TYPE_CHECKING:
    from costream.core.tables import Table

_SIZE = click.IntRange(min=1)
_BENCHES = model_benches()
_ANYWHERE = ("costream.bench.video3d:", "costream.bench.vivit:")  # on any device
_OBJECT_MODEL = "eventful-vitdet"
_REPETITIONS = "Repetitions of each method."
_threads = click.option(
    "--threads", type=_SIZE, default=1, show_default=True, help="CPU threads of the network."
)
_dtype = click.option("--dtype", default="float32", show_default=True, help="Type of the numbers.")
_device = click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="cpu|cuda:N|mps",
    help="Where the network runs.",
)
_weights = click.option(
    "--weights", metavar="PATH", help="Weight file, or a folder with NAME.safetensors."
)


_of_encoder = partial(click.option, cls=Option, heading="Encoder", show_default=True)


_labels = click.option(
    "--labels",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Ground truth, in any format that 'evaluate' reads.",
)


def _model(default: str) -> Callable[[F], F]:
    return click.option(
        "-m",
        "--model",
        default=default,
        show_default=True,
        metavar="NAME|FILE",
        shell_complete=model_names,
    )


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Benchmark continual steps, operation counts and complete runs."""


@command.command()
@click.option(
    "-m",
    "--model",
    cls=Option,
    heading="Network",
    type=click.Choice(list(_BENCHES)),
    metavar="NAME",
    help=f"A network of its paper's size: {', '.join(_BENCHES)}.  [default: encoders]",
)
@_of_encoder("-d", "--embed-dim", "width", type=_SIZE, help="Width d of a single encoder.")
@_of_encoder("--heads", type=_SIZE, default=8, help="Attention heads.")
@_of_encoder("-n", "--window", type=_SIZE, default=64, help="Rows of the window.")
@_of_encoder("--feedforward", type=_SIZE, help="Hidden width.  [default: d]")
@_of_encoder("-L", "--depth", type=_SIZE, default=1, help="Number of blocks.")
@_of_encoder(
    "--activation", type=click.Choice(["gelu", "relu"]), default="gelu", help="Activation."
)
@_of_encoder("--streams", type=_SIZE, default=1, help="Streams that step together.")
@click.option(
    "--original",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Published ONNX or TFLite file of the network, timed in its runtime.",
)
@_dtype
@_device
@click.option("--rounds", type=_SIZE, default=60, show_default=True, help=_REPETITIONS)
@_threads
@json_option
def steps(
    model: str | None, width: int | None, original: Path | None, as_json: bool, **values: Any
) -> None:
    """Time a continual step against other methods with the same output.

    Without -d and -m, the encoders of the papers: 192 wide with 120 rows and 1024 wide with 64
    rows, one and two blocks each. --device and --dtype are for encoders and networks of video.
    """
    if original is not None:
        show([_beside_original(model, original, values)], as_json)
        return
    if model is None:
        show(_encoder_tables(width, **values), as_json)
        return
    if width is not None:
        raise UsageError("-d and --model exclude each other")
    if values["streams"] > 1:
        raise UsageError("--streams is for encoders, not for --model")
    device, dtype, rounds = values["device"], values["dtype"], values["rounds"]
    show(_network_tables(model, rounds, values["threads"], device, dtype), as_json)


def _beside_original(model: str | None, original: Path, values: dict[str, Any]) -> Table:
    """Return the timings of a network and of its published file."""
    name = "costream.bench.published:published_steps_table"
    if model is None or _BENCHES[model] != name:
        raise UsageError("--original is for published networks: -m nanodet")
    if (values["device"], values["dtype"], values["streams"]) != ("cpu", "float32", 1):
        raise UsageError("--original is timed on a CPU, in float32, with one stream")
    table: Table = resolve_name(name)(model, values["rounds"], values["threads"], original)
    return table


def _network_tables(model: str, rounds: int, threads: int, device: str, dtype: str) -> list[Table]:
    """Return the timings of a network."""
    name = _BENCHES[model]
    if (device, dtype) == ("cpu", "float32"):
        return [resolve_name(name)(model, rounds, threads)]
    if name.startswith("costream.bench.eventful:") and device.startswith("cuda"):
        from costream.bench.eventful import object_steps_tables

        return object_steps_tables(device, dtype, rounds)
    if name.startswith(_ANYWHERE):
        return [resolve_name(name)(model, rounds, threads, device, dtype)]
    raise UsageError(f"{model} is timed on a CPU, in float32", where="-m")


def _encoder_tables(
    width: int | None,
    *,
    rounds: int,
    threads: int,
    device: str,
    dtype: str,
    streams: int,
    **sizes: Any,
) -> list[Table]:
    """Return the timings of the encoders of the papers, or of one with these sizes."""
    from costream.bench.encoders import CONFIGS, steps_table

    configs = CONFIGS
    if width is not None:
        heads = sizes.pop("heads")
        if width % heads:
            what = f"{width} is not a multiple of {heads} heads"
            raise UsageError(what, where="-d", hint="change --heads")
        sizes["feedforward"] = sizes["feedforward"] or width
        configs = (CONFIGS[0].update({"embed_dim": width, "num_heads": heads, **sizes})[0],)
    return [steps_table(config, rounds, threads, device, dtype, streams) for config in configs]


@command.command()
@click.option("--rounds", type=_SIZE, default=5, show_default=True, help=_REPETITIONS)
@_threads
@json_option
def convert(rounds: int, threads: int, as_json: bool) -> None:
    """Time a step of networks converted by costream.nn.convert against their clips."""
    from costream.bench.conversion import conversion_table

    show([conversion_table(rounds, threads)], as_json)


@command.command()
@json_option
def ops(as_json: bool) -> None:
    """Count the operations of the networks, by the papers' and by costream's method."""
    from costream.bench import counts
    from costream.bench.adapter_counts import adapter_table
    from costream.bench.eventful_counts import object_ops_table, threshold_ops_table
    from costream.bench.nystrom_counts import SIZES, nystrom_ops_table
    from costream.bench.peak_memory import attention_memory_table
    from costream.bench.skeleton_counts import skeleton_ops_table
    from costream.bench.video_counts import video_ops_table
    from costream.bench.vivit import action_ops_table

    tables = [counts.ops_table(), counts.class_token_ops_table(), counts.parameter_table()]
    tables += [counts.memory_ops_table(), counts.ratio_ops_table(), skeleton_ops_table()]
    tables.append(counts.audio_ops_table())
    tables += [object_ops_table(), threshold_ops_table(), action_ops_table(), video_ops_table()]
    tables += map(nystrom_ops_table, SIZES)
    tables += [attention_memory_table(), adapter_table()]
    show(tables, as_json)


@command.command()
@click.argument("file", metavar="FILE", shell_complete=file_names)
@_model("cooadtr")
@_weights
@_device
@_dtype
@option(
    "--duration",
    parse=seconds,
    envvar=None,
    metavar="TIME",
    help="Part of the file to use.  [default: all]",
)
@click.option("--rounds", type=_SIZE, default=3, show_default=True, help=_REPETITIONS)
@_threads
@json_option
def stream(
    file: str, duration: float | None, rounds: int, threads: int, as_json: bool, **loading: Any
) -> None:
    """Compare a run over a video with decoding and resizing alone, and with runs in Python."""
    sniff(file)  # reports a wrong name before torch is imported
    from costream.bench.stream import frames_table, stream_table
    from costream.models.catalogue import load_model
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch(threads)
    loaded = load_model(loading.pop("model"), **loading)
    tables = [stream_table(file, loaded, rounds, duration), frames_table(file, loaded, rounds)]
    show(tables, as_json)


@command.command()
@click.option("--rounds", type=_SIZE, default=10, show_default=True, help=_REPETITIONS)
@_threads
@click.option("--share", is_flag=True, help="Print Markdown, to be pasted into an issue.")
@json_option
def card(rounds: int, threads: int, share: bool, as_json: bool) -> None:
    """Measure the rows of the manual's table of speed on this machine.

    It takes two to three minutes; each row that is finished is also printed to standard error.

    \b
    costream bench card --share
    """
    from costream.bench.card import card_table, to_markdown

    table = card_table(rounds, threads, partial(click.echo, err=True))
    if share:
        click.echo(to_markdown(table))
    else:
        show([table], as_json)


@command.command()
@_model("cooadtr")
@_weights
@_device
@click.option(
    "--streams",
    "counts",
    type=_SIZE,
    multiple=True,
    default=(1, 16, 64, 256),
    show_default=True,
    help="Number of streams that step together. Repeatable.",
)
@click.option("--rounds", type=_SIZE, default=10, show_default=True, help=_REPETITIONS)
@_threads
@json_option
def streams(
    model: str,
    weights: str | None,
    device: str,
    counts: tuple[int, ...],
    rounds: int,
    threads: int,
    as_json: bool,
) -> None:
    """Time steps of many streams together: the cost of one, and how many a core can process."""
    from costream.bench.streams import streams_table
    from costream.models.catalogue import load_model
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch(threads)
    loaded = load_model(model, weights=weights, device=device)
    show([streams_table(loaded, counts, rounds)], as_json)


@command.command()
@click.argument("file", metavar="FILE", shell_complete=file_names)
@_model("auto")
@click.option(
    "--feeds",
    "counts",
    type=_SIZE,
    multiple=True,
    default=(16, 64),
    show_default=True,
    help="Number of feeds. Repeatable.",
)
@click.option(
    "--processes",
    type=_SIZE,
    multiple=True,
    default=(1,),
    show_default=True,
    help="Number of watches that share the feeds. Repeatable.",
)
@option(
    "--duration",
    parse=seconds,
    envvar=None,
    default="10s",
    metavar="TIME",
    help="How long each is measured, less than the film.",
)
@json_option
def feeds(
    file: str,
    model: str,
    counts: tuple[int, ...],
    processes: tuple[int, ...],
    duration: float,
    as_json: bool,
) -> None:
    """Watch a film as many feeds at once: processor time, memory, lag, and what is left out."""
    sniff(file)
    from costream.bench.feeds import feeds_table

    show([feeds_table(file, model, counts, processes, duration)], as_json)


@command.command()
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    metavar="NAME|FILE",
    shell_complete=model_names,
    help="Repeatable.  [default: one of each family]",
)
@click.option(
    "--threads",
    "counts",
    type=_SIZE,
    multiple=True,
    default=(1, 2, 4),
    show_default=True,
    help="Number of threads. Repeatable.",
)
@click.option("--rounds", type=_SIZE, default=10, show_default=True, help=_REPETITIONS)
@json_option
def threads(models: tuple[str, ...], counts: tuple[int, ...], rounds: int, as_json: bool) -> None:
    """Time a step of each model with one thread and with more."""
    from costream.bench.threads import MODELS, threads_table
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch(None)
    show([threads_table(models or MODELS, counts, rounds)], as_json)


@command.command()
@click.argument("file", metavar="FILE", shell_complete=file_names)
@click.option("--budget", "text", default="60ms", show_default=True, metavar="40ms|2GMAC|0.5x")
@_model(_OBJECT_MODEL)
@_weights
@click.option("--steps", "count", type=click.IntRange(min=48), default=240, show_default=True)
@_threads
@click.option(
    "--png", type=click.Path(dir_okay=False), help="Plot the result to this file (extra 'report')."
)
@json_option
def budget(
    file: str,
    text: str,
    model: str,
    weights: str | None,
    count: int,
    threads: int,
    png: str | None,
    as_json: bool,
) -> None:
    """Show how well a budget is kept: FILE is paused, then played, each also with a busy core."""
    from costream.options.budget import Budget

    limit = Budget.parse(text)
    if png is not None and find_spec("matplotlib") is None:
        raise UsageError("needs matplotlib", where="--png", hint="pip install 'costream[report]'")
    sniff(file)
    from costream.bench.budget import budget_table, budget_trace, draw
    from costream.models.base import GatedModel
    from costream.models.catalogue import load_model
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch(threads)
    loaded = load_model(model, weights=weights, device="cpu")
    if isinstance(loaded, GatedModel) and not loaded.info.card.finds_objects:
        raise UsageError(f"{loaded.info.card.name} does not detect objects", where="--model")
    trace = budget_trace(file, loaded, limit, count)
    dense_macs = sum(step.dense_macs for step in trace) / max(1, len(trace))
    target = limit.target(loaded.info.card.rate_hz, dense_macs)
    show([budget_table(trace, limit, target, f"budget: {file}, {loaded.info.card.name}")], as_json)
    if png is not None:
        write_file(Path(png), draw(trace, limit, target))


@command.command()
@click.argument("files", nargs=-1, metavar="[FILE]...", shell_complete=file_names)
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    default=("nanodet", "rf-detr-nano"),
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=model_names,
    help="Detector: NanoDet, RF-DETR, YOLOS or ViTDet; pose; encoder, cooadtr. Repeatable.",
)
@option(
    "--tokens",
    parse=token_limits,
    default="25%",
    envvar=None,
    metavar="N|25%|'>T',...",
    help="Tokens that gates compute, of RF-DETR, YOLOS and ViTDet; '>T' also for NanoDet.",
)
@click.option(
    "--original",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Published checkpoint of RF-DETR (.pth), in costream and in the package rfdetr.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0.1, 60),
    default=5.0,
    show_default=True,
    metavar="HZ",
    help="Pictures a second of the film.",
)
@option(
    "--duration",
    parse=seconds,
    envvar=None,
    metavar="TIME",
    help="Part of each film to use.  [default: 10s]",
)
@json_option
def objects(
    files: tuple[str, ...],
    models: tuple[str, ...],
    tokens: tuple[int | str, ...],
    original: Path | None,
    rate: float,
    duration: float | None,
    as_json: bool,
) -> None:
    """Compare gated networks with the same networks in full, ONNX Runtime and rfdetr.

    For each way: processor time of a picture, operations, and how far it is alike: share of the
    boxes (IoU of at least 0.5, and 0.75), persons (OKS) or labels of the network in full. Without
    FILE, the shipped films. What is not installed is left out; without its weights, RF-DETR is
    timed with random ones.

    \b
    costream bench objects
    costream bench objects street.mp4 -m nanodet -m pose -m encoder -m cooadtr
    costream bench objects street.mp4 -m rf-detr-nano --original rf-detr-nano.pth --duration 1min
    """
    from costream.weights_io.store import samples_folder

    films = files or tuple(str(samples_folder() / name) for name in ("room.mp4", "corridor.mp4"))
    for film in films:
        sniff(film)  # reports a wrong name before torch is imported
    from costream.bench.detectors import objects_table
    from costream.bench.ways import Films

    show([objects_table(Films(films, rate, duration or 10.0), models, tokens, original)], as_json)


@command.command()
@click.argument("file", metavar="INPUT", shell_complete=file_names)
@_labels
@_model("cooadtr")
@click.option(
    "--window",
    type=click.FloatRange(0, min_open=True),
    default=16.0,
    show_default=True,
    metavar="SECONDS",
    help="Length of the window.",
)
@click.option(
    "--stride",
    "strides",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    default=(16.0, 4.0, 1.0),
    show_default=True,
    metavar="SECONDS",
    help="Time from one window to the next. Repeatable.",
)
@click.option("--rounds", type=_SIZE, default=3, show_default=True, help=_REPETITIONS)
@json_option
def latency(
    file: str,
    labels: Path | None,
    model: str,
    window: float,
    strides: tuple[float, ...],
    rounds: int,
    as_json: bool,
) -> None:
    """Compare labels step by step with a sliding window: time from an act's start to its label.

    The window is what hosted services classify: the last 16 s at each stride. Both ways have the
    same network. INPUT is a recording or a folder of them; for labels see 'costream help evaluate'.

    \b
    costream bench latency samples/room.mp4 --labels samples/room.json
    """
    from costream.bench.latency import latency_table

    show([latency_table(Path(file), labels, model, strides, window, rounds)], as_json)


@command.command()
@click.argument("file", metavar="INPUT", shell_complete=file_names)
@_labels
@click.option(
    "--weights",
    multiple=True,
    metavar="FILE",
    help="Weight file to add to the shipped and the cached ones. Repeatable.",
)
@option(
    "--duration",
    parse=seconds,
    envvar=None,
    metavar="TIME",
    help="Part of the input to use.  [default: all]",
)
@_device
@_threads
@click.option(
    "--png",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Also draw the table to this file.",
)
@json_option
def zoo(
    file: str,
    labels: Path | None,
    weights: tuple[str, ...],
    duration: float | None,
    device: str,
    threads: int,
    png: str | None,
    as_json: bool,
) -> int | None:
    """Run every network that fits INPUT, and compare accuracy and cost.

    \b
    costream bench zoo samples/room.mp4 --labels samples/room.json --png zoo.png
    costream models init miniroad --frontend cooadtr -o try.safetensors
    costream bench zoo clip.mp4 --weights try.safetensors
    """
    if png is not None and not Path(png).absolute().parent.is_dir():
        raise UsageError("there is no such folder", where=Path(png).parent)
    sniff(file)  # reports a wrong name before torch is imported
    from costream.bench.zoo import ZooSettings, zoo_table
    from costream.evaluation.metric_charts import draw_table
    from costream.runtime.stop import StopHandler
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch(threads)
    with StopHandler() as stop:
        table = zoo_table(ZooSettings(file, labels, weights, duration, device), stop)
    if stop.exit_code is not None:
        return int(stop.exit_code)
    show([table], as_json)
    if png is not None:
        write_file(Path(png), draw_table(table))
    return None


@command.command()
@click.argument("models", nargs=-1, required=True, metavar="NAME|FILE...")
@click.option("--rounds", type=_SIZE, default=20, show_default=True, help=_REPETITIONS)
@_threads
@json_option
def compress(models: tuple[str, ...], rounds: int, threads: int, as_json: bool) -> None:
    """Compare models and their int8 forms (size, step, time, scores), such as pruned ones.

    All are compared with the first; they must have the same labels.

    \b
    costream bench compress large.safetensors small.safetensors
    """
    from costream.bench.compression import compression_table
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch(threads)
    show([compression_table(models, rounds, threads)], as_json)


def show(tables: Sequence[Table], as_json: bool) -> None:
    """Print tables to stdout, as text or as one JSON list."""
    if as_json:
        click.echo(json.dumps([table.to_json() for table in tables], indent=2))
    else:
        click.echo("\n\n".join(table.to_text() for table in tables))
