"""Checks of combinations of options, before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from costream.core.errors import UsageError
from costream.core.urls import is_store_url, local_path
from costream.options.budget import Budget
from costream.options.click_options import check_quiet
from costream.options.options import Options

AnyOptions = TypeVar("AnyOptions", bound=Options)


def check_combinations(options: AnyOptions, command: str) -> AnyOptions:
    """Return a command's options, with --mic as a source and --duration as the end.

    The output of a batch becomes a path. Raises UsageError for options that exclude each other, or
    whose values do not fit together.
    """
    check_quiet(options.quiet, options.verbose)
    if command == "listen":
        options = replace(options, sources=_with_microphone(options))
    if command == "batch":
        options = replace(options, output=_batch_folder(options))
    options = replace(options, end_s=_end_s(options))
    _check_skeleton_options(options)
    _check_output(options, command)
    _check_budget(options, command)
    _check_workers(options)
    return options


def _with_microphone(options: Options) -> tuple[str, ...]:
    """Return the sources of ``listen``."""
    mic, sources = options.mic, options.sources
    if mic is None and not sources:
        raise UsageError("nothing to listen to", hint="name a file, or use --mic")
    if mic is None:
        return sources
    if sources:
        raise UsageError(
            "--mic and files exclude each other",
            hint="a name after --mic is the name of a microphone",
        )
    return (f"mic:{mic}" if mic else "mic",)


def _batch_folder(options: Options) -> str:
    """Return the output folder of a batch."""
    if options.output == "-":
        raise UsageError("must be a folder, not stdout", where="-o -")
    output = local_path(str(options.output))
    if is_store_url(output):
        raise UsageError(
            "must be a local or mounted folder, not a URL",
            where=f"-o {output}",
            hint="mount the store, or copy the folder there afterwards",
        )
    return output


def _check_workers(options: Options) -> None:
    if options.ray_address and options.engine != "ray":
        raise UsageError("--ray-address needs --engine ray")


def _end_s(options: Options) -> float | None:
    """Return where the range ends, in seconds; None: with the source."""
    end_s = options.end_s
    if options.duration_s is not None:
        if end_s is not None:
            raise UsageError("--end and --duration exclude each other")
        end_s = options.start_s + options.duration_s
    if end_s is not None and end_s <= options.start_s:
        raise UsageError(f"the end ({end_s:g} s) is not after the start ({options.start_s:g} s)")
    return end_s


def _check_skeleton_options(options: Options) -> None:
    if options.columns is not None:
        from costream.sources.skeletons.columns import parse_columns

        parse_columns(options.columns)
    if options.layout is not None:
        from costream.core.layouts import find_layout

        find_layout(options.layout)


def _check_output(options: Options, command: str) -> None:
    if options.overwrite and options.skip_existing and command != "batch":
        raise UsageError("--overwrite and --skip-existing exclude each other")
    if "coco" in options.formats and options.start_s > 0:
        hint = "omit --start"
        raise UsageError("needs all frames of the video", where="--format coco", hint=hint)
    if options.clips is not None and options.output in (None, "-"):
        raise UsageError("clips need a folder", where="--clips", hint="name one with -o")


def _check_budget(options: Options, command: str) -> None:
    budget = options.budget
    if budget is None:
        return
    if options.tokens is not None:
        raise UsageError("--tokens and --budget exclude each other")
    if command == "batch" and not (isinstance(budget, Budget) and budget.unit == "macs"):
        hint = "write it in operations (2GMAC, 50%), or use: costream detect"
        raise UsageError("is not reproducible", where="--budget", hint=hint)
