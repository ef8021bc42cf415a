"""``costream demo``: run the shipped samples, show their timelines and write a report."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from costream.cli.click_command import Command
from costream.core.errors import ExitCode, UsageError, say
from costream.core.settings import AUTO, ColorMode
from costream.models.auto import SOUND, expanded
from costream.options.click_options import shared
from costream.weights_io.store import INSTALL_RESEARCH, samples_folder, shipped_file

if TYPE_CHECKING:
    from costream.options.options import Options
    from costream.runtime.stop import StopHandler
    from costream.sinks.base import Sink


@dataclass(frozen=True)
class DemoSample:
    """A shipped sample, a shipped model for it, and what that model can be expected to know."""

    command: str
    file: str
    model: str
    knows: str
    knows_not: str

    @property
    def weights(self) -> list[Path] | None:
        """The weight files, in the order of the models; None if one is not installed."""
        names = expanded(self.model).split(",")
        files = [shipped_file(f"{name}.safetensors") for name in names]
        return None if None in files else [file for file in files if file is not None]

    @property
    def results(self) -> str:
        """The name of the file of results."""
        return f"{self.file}.jsonl"


DEMO_SAMPLES = (
    DemoSample(
        "detect",
        "room.mp4",
        AUTO,
        "80 kinds of people, animals, vehicles and things, and 527 sounds, where there is sound",
        "what people do (-m cooadtr for a room like this one); small and crowded things",
    ),
    DemoSample(
        "listen",
        "street.ogg",
        SOUND,
        "527 sounds, several at once, speech and music among them",
        "quiet sounds behind others, and very short ones",
    ),
    DemoSample(
        "detect",
        "moves.csv",
        "costgcn",
        "68 actions of each person, from the joints in space",
        "everyday life (it learnt from actors); joints in pictures: costgcn-2d",
    ),
)
_REPORT = "report.html"


@click.command(cls=Command)
@shared(
    "output",
    default="costream-demo",
    metavar="FOLDER",
    help="Write the results and the report to this folder.",
)
@shared("live", "color", "quiet")
def command(output: str, live: bool, color: ColorMode, quiet: bool) -> int:
    """Run shipped samples (video, sound, skeletons), and write a report of them.

    It takes half a minute and needs no network. The sample of skeletons needs the weights for
    research. Each timeline is printed; the last line is the path of the report, a page for the
    browser. Files of an earlier demo are replaced, no others.

    \b
    costream demo
    costream demo -o /tmp/demo --no-live
    """
    if output == "-":
        raise UsageError("must be a folder, not stdout", where="-o -")
    from costream.report.command import ReportOptions, make_report
    from costream.runtime.stop import StopHandler

    folder, samples = Path(output), _installed()
    results = [sample.results for sample in samples]
    with DemoFiles(folder, [*results, _REPORT]) as files, StopHandler() as stop:
        for sample in samples:
            code = _run(sample, folder, live, color, quiet, stop)
            files.save()  # a signal while the next model is loaded ends the program at once
            if code is not ExitCode.OK:
                return int(code)
        if not quiet:
            click.echo(f"The samples are in {samples_folder()}")
            click.echo("The report of all:")
        paths = tuple(folder / name for name in results)
        page = str(folder / _REPORT)
        return int(make_report(ReportOptions(paths, page, ("html",), True, True, True)))


def _installed() -> list[DemoSample]:
    """Return the samples with installed weights; say which sample has none."""
    for sample in DEMO_SAMPLES:
        if sample.weights is None:
            say(f"{sample.file} is left out: {sample.model} needs {INSTALL_RESEARCH}")
    return [sample for sample in DEMO_SAMPLES if sample.weights is not None]


class DemoFiles:
    """The files that a demo may write: new ones, and files of an earlier demo.

    A hidden file in the folder has their SHA-256; ``save`` and leaving the block write it.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        """Raise UsageError if the folder cannot be written, or a file in it is not the demo's."""
        from costream.sinks.registry import check_outputs

        self._list = folder / ".demo.json"
        self._paths = [folder / name for name in names]
        for sample in DEMO_SAMPLES:
            check_outputs(("jsonl",), folder, sample.file, overwrite=True)
        known = self._known()
        for path in self._paths:
            if path.exists() and (path.is_dir() or known.get(path.name) != _sha256(path)):
                hint = "name another folder with -o"
                raise UsageError("exists already and is not the demo's", where=path, hint=hint)

    def _known(self) -> dict[str, str]:
        try:
            known = json.loads(self._list.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def __enter__(self) -> DemoFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.save()

    def save(self) -> None:
        """Write the SHA-256 of the files that there are."""
        written = {path.name: _sha256(path) for path in self._paths if path.is_file()}
        with suppress(OSError):  # a full disk was reported for the results already
            if written:
                self._list.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(
    sample: DemoSample, folder: Path, live: bool, color: ColorMode, quiet: bool, stop: StopHandler
) -> ExitCode:
    """Run a sample with its shipped model; print what it is, and its timeline."""
    from rich.text import Text

    from costream.options.options import Options
    from costream.ui.console import stdout_console

    source = samples_folder() / sample.file
    options = Options(model=sample.model, live=live, color=color, quiet=quiet)
    files = sample.weights
    if files is not None and sample.model != AUTO:
        options = replace(options, model=str(files[0]))
    if not quiet:
        console = stdout_console(color)
        command = f"costream {sample.command} {shlex.quote(str(source))} -m {sample.model}"
        console.print(Text(command, "bold"), soft_wrap=True)
        console.print(f"  knows        {sample.knows}")
        console.print(f"  knows not    {sample.knows_not}")
    from costream.runtime.logs import logging_to
    from costream.runtime.model_loading import load
    from costream.runtime.options import source_options
    from costream.runtime.pipeline import run
    from costream.sinks.registry import make_sinks
    from costream.sources.uris import open_source

    with logging_to(options.verbosity, color, None):
        model = load(options)
        sinks = make_sinks(["jsonl"], folder, sample.file, overwrite=True)
        opened = open_source(str(source), source_options(options, model, ["jsonl"]))
        views = _views(options, sample.file)
        shown = [*sinks, *views]
        summary = run(opened, model, shown, options=options, stop=stop, follow_persons=True)
    if not quiet:
        click.echo()
    return ExitCode(summary.exit)


def _views(options: Options, name: str) -> list[Sink]:
    from costream.ui.console import live_allowed, stderr_console, stdout_console
    from costream.ui.run.view import LiveView
    from costream.ui.timeline import FinalTimeline

    if options.quiet:
        return []
    views: list[Sink] = [FinalTimeline(stdout_console(options.color), name)]
    if live_allowed(sys.stderr, no_live=not options.live, flag=options.color):
        views.insert(0, LiveView(stderr_console(options.color), name))
    return views
