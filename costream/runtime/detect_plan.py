"""What a run over several inputs reads, and where it writes: checked before a model is loaded."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from costream.core.errors import CostreamError, ExitCode, SourceError, UsageError
from costream.core.settings import AUTO
from costream.options.options import Options
from costream.sinks.atomic import exists_error
from costream.sinks.registry import FORMATS, check_outputs, is_complete
from costream.sources.base import SourceOptions
from costream.sources.uris import expand, is_pipe, name_of, open_source, sniff

log = logging.getLogger("costream")


@dataclass(frozen=True)
class OutputPlan:
    """The destination of the results, the same for all inputs."""

    formats: tuple[str, ...]
    directory: Path | None = None  # None: stdout, or ``table``
    report: bool = False  # print a readable timeline to stdout
    table: Path | None = None  # one table of all segments, instead of a folder

    @property
    def ends_with_totals(self) -> bool:
        """Whether the output on stdout ends with the totals of the run."""
        return self.report or (self.directory is None and "table" in self.formats)


def plan_outputs(options: Options) -> OutputPlan:
    """Return where the results go. Raises UsageError for formats that do not fit the output."""
    if options.output not in (None, "-"):
        return _plan_files(options, Path(str(options.output)))
    if options.formats or options.output == "-":
        formats = options.formats or ("jsonl",)
    else:  # readable, on a terminal or not
        formats = ("table",) if options.by is None else ("lines",)
    if formats == ("table",) and options.output is None and sys.stdout.isatty():
        return OutputPlan((), report=True)
    check_outputs(formats, None, "", overwrite=False)
    return OutputPlan(formats)


def _plan_files(options: Options, path: Path) -> OutputPlan:
    on_terminal = sys.stdout.isatty()
    ending = "" if path.is_dir() else path.suffix.lower()
    if ending == ".csv":
        if options.formats not in ((), ("csv",)):
            hint = "name a folder with -o"
            raise UsageError("a single file takes the format csv", where="-f", hint=hint)
        return OutputPlan((), report=on_terminal, table=path)
    if ending.lstrip(".") in FORMATS:
        hint = f"name a folder: -f {ending.lstrip('.')} -o FOLDER"
        raise UsageError("only a .csv of all segments is a file", where=f"-o {path}", hint=hint)
    return OutputPlan(options.formats or ("jsonl",), path, on_terminal)


def plan_inputs(options: Options, plan: OutputPlan) -> tuple[list[str], list[ExitCode]]:
    """Return the inputs to run, and the exit codes of the sources that cannot be read.

    The errors of these are logged. Raises UsageError for options that do not fit the inputs, and
    where results exist already.
    """
    _check_destination(options, plan)
    uris, failures, may_have_joints = _find(options)
    if (options.layout or options.columns) and not may_have_joints and not failures:
        where = "--layout" if options.layout else "--columns"
        raise UsageError("no input has joints", where=where, hint="leave it out")
    inputs = uris if plan.table is not None else _to_run(uris, options, plan)
    single = [] if plan.directory is not None else [f for f in plan.formats if not FORMATS[f].joins]
    if single and len(inputs) > 1:
        what = f"results of {len(inputs)} sources cannot be written as one file"
        hint = "name a folder with -o, or use -f jsonl"
        raise UsageError(what, where=f"-f {single[0]}", hint=hint)
    return inputs, failures


def _check_destination(options: Options, plan: OutputPlan) -> None:
    if options.skip_existing and not any(FORMATS[f].has_summary for f in plan.formats):
        hint = "name a folder, and jsonl too: -f csv,jsonl -o FOLDER"
        what = "these results do not say which of them are complete"
        raise UsageError(what, where="--skip-existing", hint=hint)
    if plan.table is not None:
        check_outputs((), plan.table.parent, "", overwrite=True)
        if plan.table.exists() and not options.overwrite:
            raise exists_error(plan.table)


def _find(options: Options) -> tuple[list[str], list[ExitCode], bool]:
    """Return all inputs, the exit codes of failures, and whether an input may have joints."""
    found: list[str] = []
    failures: list[ExitCode] = []
    may_have_joints = False
    rate_hz = options.input_hz or options.rate_hz
    reading = SourceOptions(
        text=options.by, layout=options.layout, columns=options.columns, frame_rate_hz=rate_hz
    )
    # What is refused as skeletons should be some: a table may be of anything.
    is_refused = options.model == AUTO and options.licence != "any"
    for argument in options.sources:
        try:
            uris = expand(argument)
            kinds = [sniff(uri, reading) for uri in uris]
            for uri, kind in zip(uris, kinds, strict=True):
                if is_refused and kind == "skeleton":
                    _check_opens(uri, reading)
        except SourceError as error:
            failures.append(log_failure(error, argument))
            continue
        # The shell's NAMES* of a folder with a file for each frame are one input.
        found += [uri for uri in uris if uri == argument or uri not in found]
        may_have_joints = may_have_joints or "skeleton" in kinds or any(map(is_pipe, uris))
    return found, failures, may_have_joints


def _check_opens(uri: str, reading: SourceOptions) -> None:
    """Raise SourceError, or UsageError for the options, if a source cannot be opened."""
    source = open_source(uri, reading)
    try:
        source.open()
    finally:
        source.close()


def _to_run(uris: Sequence[str], options: Options, plan: OutputPlan) -> list[str]:
    """Return the inputs whose results do not exist yet. UsageError if two have the same files."""
    inputs: list[str] = []
    named: dict[str, str] = {}
    for uri in uris:
        name = name_of(uri)
        if plan.directory is not None:
            if name in named:
                what = f"would write the same files as {named[name]}"
                raise UsageError(what, where=uri, hint="run them into different folders")
            named[name] = uri
            if options.skip_existing and is_complete(plan.formats, plan.directory, name):
                log.warning("%s: results exist already, skipped", uri)
                continue
        overwrite = options.overwrite or options.skip_existing
        check_outputs(plan.formats, plan.directory, name, overwrite=overwrite)
        inputs.append(uri)
    return inputs


def log_failure(error: Exception, uri: str, command: str | None = None) -> ExitCode:
    """Log why an input failed, and a ``command`` to try instead; return the exit code."""
    shown = error if isinstance(error, CostreamError) else SourceError(str(error), where=uri)
    log.error("%s%s", shown, f"; try: {command}" if command else "")
    return shown.exit_code
