"""``costream doctor``: check what works on this machine, and what to install for the rest."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from costream.cli.click_command import Command
from costream.cli.printing import print_json
from costream.core.commit import code_version
from costream.core.energy import READABLE, EnergyMeter
from costream.core.errors import ExitCode, SourceError, display_name, printable
from costream.core.formatting import counted
from costream.core.settings import PROJECT_FILE, user_config_path
from costream.options.click_options import json_option, shared
from costream.options.completers import file_names

# extra -> (package on PyPI, module to import, purpose)
EXTRAS = {
    "mqtt": ("paho-mqtt", "paho", "messages to an MQTT broker"),
    "notify": ("apprise", "apprise", "alerts to services for messages"),
    "mic": ("sounddevice", "sounddevice", "microphone"),
    "flow": ("opencv-python-headless", "cv2", "optical flow"),
    "report": ("matplotlib", "matplotlib", "plots as PNG"),
    "parquet": ("pyarrow", "pyarrow", "Parquet tables"),
    "ray": ("ray", "ray", "batches and watches on several machines"),
    "torchaudio": ("torchaudio", "torchaudio", "audio transforms on a GPU"),
    "text": ("tokenizers", "tokenizers", "tokenizer.json files"),
    "h5": ("h5py", "h5py", "joints of SLEAP and DeepLabCut, Keras checkpoints (HDF5)"),
    "c3d": ("c3d", "c3d", "markers of motion capture (C3D)"),
    "mcp": ("mcp", "mcp", "answers to assistants (Model Context Protocol)"),
    "hub": ("huggingface_hub", "huggingface_hub", "weights of the Hugging Face hub"),
    "onnx": ("onnxruntime", "onnxruntime", "steps in ONNX: export, and faster video"),
}
# hint for an extra whose module is installed but cannot be imported
BROKEN = {"mic": "on Debian and Ubuntu: apt install libportaudio2"}

_MODEL = "model "  # how the names of findings on models begin
_ABSENT = " (not found)"  # how the detail of a file ends that does not exist


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``ok`` is None if it is optional and missing."""

    name: str
    ok: bool | None
    detail: str
    hint: str = ""


@click.command(cls=Command)
@click.argument("files", nargs=-1, shell_complete=file_names)
@shared("rate_hz", "input_hz", "layout", "columns")
@click.option("--tune", is_flag=True, help="Measure what is faster here again.")
@json_option
def command(files: tuple[str, ...], tune: bool, as_json: bool, **values: Any) -> int:
    """Check what works on this machine, or what FILES are taken for.

    Without FILES: what works, and what to install for the rest. What is missing and optional is
    listed at the end; --json also has every model without weights. Exit code 5 if a required
    component is broken.

    With FILES (recordings, joints, labels, lists of feeds, folders of frames, or addresses of live
    feeds, which are connected): the format each is taken for, its
    rate, length, persons, joints and labels, what was assumed, and the command to use it. Exit
    code 3 if some cannot be read, 4 if none can.

    With --tune: which of several ways to compute something was faster on this machine. That is
    measured once, when a model first needs it, and kept in the user's cache. Products of
    matrices are measured again now, the rest when a model next needs it. Steps of long streams are
    compiled, which a first stream on a machine otherwise does beside its work.

    \b
    costream doctor
    costream doctor --tune
    costream doctor poses.csv labels.txt clip.mp4
    """
    if files:
        return _report(files, as_json, values)
    if tune:
        return _tune(as_json)
    findings = [
        *(*_core(), *_devices(), *_protocols(), *_weights(), *_extras()),
        *(*microphones(), *_surroundings()),
    ]
    if as_json:
        click.echo(json.dumps([asdict(f) for f in findings], indent=2, ensure_ascii=False))
    else:
        _print(findings)
    broken = any(f.ok is False for f in findings)
    return int(ExitCode.MODEL if broken else ExitCode.OK)


def _tune(as_json: bool) -> int:
    """Measure again what is faster, print the times, load compiled steps; return the exit code."""
    from costream.core.tables import Table
    from costream.models.tuning import tune
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch(1)
    path, problem, works, compiled_s = tune()
    rows = tuple(
        (work.name, _in_words(work.times), work.taken, "yes" if work.again else "when next needed")
        for work in works
    )
    kept = f"{path}: work is added when a model first needs it."
    if problem:
        kept = f"{problem}: what is faster is measured in each run"
    notes = (
        kept,
        f"Compiled steps: loaded in {compiled_s:.1f} s. They are compiled once on a machine.",
    )
    table = Table("what is faster", ("work", "us", "taken", "measured again"), rows, notes)
    if as_json:
        print_json(table.to_json())
    else:
        click.echo(table.to_text() if rows else "\n".join(("Nothing was timed yet.", *notes)))
    return int(ExitCode.OK)


def _in_words(times: Mapping[str, float]) -> str:
    return ", ".join(f"{way} {us:.4g}" for way, us in times.items())


def _report(files: Sequence[str], as_json: bool, values: Mapping[str, Any]) -> int:
    """Print what files are taken for; return the exit code."""
    from costream.cli.file_report import report_files
    from costream.sources.base import SourceOptions

    rate_hz = values["input_hz"] or values["rate_hz"]
    options = SourceOptions(
        frame_rate_hz=rate_hz,
        input_hz=rate_hz,
        layout=values["layout"],
        columns=values["columns"],
    )
    reports = list(report_files(files, options))
    if as_json:
        print_json([asdict(report) for report in reports])
    else:
        for report in reports:
            width = max(map(len, report.rows))
            lines = [f"  {name:<{width}}  {text}" for name, text in report.rows.items()]
            click.echo(printable("\n".join([display_name(report.file), *lines])))
    readable = [report.readable for report in reports]
    if all(readable):
        return int(ExitCode.OK)
    return int(ExitCode.PARTIAL if any(readable) else ExitCode.INPUT)


def _print(findings: Sequence[Finding]) -> None:
    """Print what is there or broken, the models on one line, and then what is optional."""
    names = [f.name.removeprefix(_MODEL) for f in findings if f.name.startswith(_MODEL) and f.ok]
    others = [f for f in findings if not f.name.startswith(_MODEL)]
    shown = [f for f in others if f.ok is not None and not f.detail.endswith(_ABSENT)]
    models = Finding("models", True, ", ".join(names) or "none: costream models fetch NAME")
    missing = [f for f in others if f.ok is None and f.hint]
    width = max(len(f.name) for f in (*shown, *missing))
    for f in (*shown, models):
        hint = f"  -> {f.hint}" if f.hint else ""
        line = f"{'ok  ' if f.ok else 'FAIL'} {f.name:<{width}}  {f.detail}{hint}"
        click.echo(printable(line))
    if missing:
        click.echo("\nOptional, and not here:")
    for f in missing:
        click.echo(printable(f"     {f.name:<{width}}  {f.detail}  -> {f.hint}"))


def _core() -> list[Finding]:
    python = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    findings = [Finding("costream", True, code_version()), Finding("python", True, python)]
    for package in ("torch", "av", "librosa", "numba", "safetensors"):
        module = "safetensors.torch" if package == "safetensors" else package
        findings.append(_import(package, package, module, required=True))
    return findings


def _import(
    name: str, package: str, module: str, *, required: bool, hint: str = "", broken: str = ""
) -> Finding:
    """Import a module. ``hint``: if it is not installed; ``broken``: if the import fails."""
    bad = False if required else None
    try:
        installed = version(package)
    except PackageNotFoundError:
        return Finding(name, bad, "not installed", hint or f"pip install {package}")
    try:
        import_module(module)
    except Exception as error:  # a broken installation may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        hint = broken or hint or f"pip install --force-reinstall {package}"
        return Finding(name, bad, f"{installed}, but its import fails: {reason}", hint)
    return Finding(name, True, installed)


def _devices() -> list[Finding]:
    try:
        import torch
    except Exception:  # reported above
        return []
    from costream.models.devices import convolution_library

    cuda = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    threads = counted(torch.get_num_threads(), "torch thread")
    findings = [
        Finding("cpu", True, f"{counted(os.cpu_count() or 1, 'core')}, {threads}"),
        Finding("cuda", cuda or None, ", ".join(names) or "none; everything runs on the CPU"),
    ]
    findings.append(Finding("convolutions", True, convolution_library()))
    energy = EnergyMeter()
    hint = (
        READABLE if "powercap" in energy.missing else "results have no joules" * (not energy.parts)
    )
    detail = ", ".join(energy.parts) or f"not measured: {energy.missing}"
    findings.append(Finding("energy", bool(energy.parts) or None, detail, hint))
    if sys.platform == "darwin":
        mps = torch.backends.mps.is_available()
        findings.append(Finding("mps", mps or None, "available" if mps else "none"))
    return findings


def _protocols() -> list[Finding]:
    """Return the protocols of feeds that FFmpeg has, and those that it has not."""
    try:
        from costream.sources.live.servers import PIPE, PROTOCOLS, speaks
    except Exception:  # without PyAV, which is reported above
        return []
    there = {name: speaks(name) for name in PROTOCOLS}
    spoken = ", ".join(name for name, found in there.items() if found)
    missing = [
        Finding(name, None, f"feeds over {name}: not in this FFmpeg", PIPE.format(name))
        for name, found in there.items()
        if not found
    ]
    return [Finding("feeds", True, spoken), *missing]


def _weights() -> list[Finding]:
    from costream.models.catalogue import list_models
    from costream.weights_io.store import INSTALL_RESEARCH

    findings = []
    for model in list_models():
        name = f"{_MODEL}{model.name}"
        if model.path is not None:
            findings.append(Finding(name, True, str(model.path)))
            continue
        fetched = model.origin == "published"
        hint = f"costream models fetch {model.name}" if fetched else "costream models import FILE"
        hint = INSTALL_RESEARCH if model.origin == "research" else hint
        findings.append(Finding(name, None, "no weights installed", hint))
    return findings


def _extras() -> list[Finding]:
    findings = []
    for extra, (package, module, purpose) in EXTRAS.items():
        hint = f"pip install 'costream[{extra}]'"
        broken = BROKEN.get(extra, "")
        imported = _import(extra, package, module, required=False, hint=hint, broken=broken)
        findings.append(
            Finding(imported.name, imported.ok, f"{purpose}: {imported.detail}", imported.hint)
        )
    return findings


def microphones() -> list[Finding]:
    """Return a finding for each microphone, named as a source; nothing without PortAudio."""
    from costream.sources.live.devices import input_devices, portaudio

    try:
        portaudio()
    except SourceError:  # reported above
        return []
    try:
        devices = input_devices()
    except SourceError as error:
        return [Finding("microphones", None, str(error))]
    findings = [
        Finding(
            f"mic:{device.index}",
            True,
            f"{device.name}, {device.api}, up to {device.channels} channels, {device.rate_hz} Hz"
            + (", the default" if device.default else ""),
        )
        for device in devices
    ]
    none = Finding("microphones", None, "none", "plug one in, or start the sound server")
    return findings or [none]


def _surroundings() -> list[Finding]:
    files = {"user settings": user_config_path(), "project settings": Path(PROJECT_FILE).resolve()}
    findings = [
        Finding(name, True, f"{path}{'' if os.path.exists(path) else _ABSENT}")
        for name, path in files.items()
    ]
    size = os.get_terminal_size(2) if os.isatty(2) else None
    where = f"{size.columns}x{size.lines}" if size else "stderr is not a terminal: plain lines"
    about = f"TERM={os.environ.get('TERM', 'unset')}, encoding {sys.stdout.encoding}"
    return [*findings, Finding("terminal", True, f"{where}, {about}")]
