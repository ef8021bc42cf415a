"""``costream report``: show results as a page or an image, and compare two runs."""

from __future__ import annotations

from pathlib import Path

import click

from costream.cli.click_command import Command
from costream.core.errors import UsageError
from costream.options.completers import file_names, in_list
from costream.report.command import FORMATS, ReportOptions, parse_formats


@click.command(cls=Command, no_args_is_help=True)
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE|-",
    shell_complete=file_names,
    help="Output file; '-': stdout.  [default: next to the results]",
)
@click.option(
    "-f",
    "--format",
    "formats",
    multiple=True,
    metavar="LIST",
    shell_complete=lambda ctx, param, word: in_list(dict.fromkeys(FORMATS, ""), word),
    help=f"Formats, separated by commas: {', '.join(FORMATS)}."
    "  [default: by the suffix of -o, or html]",
)
@click.option(
    "--thumbnails/--no-thumbnails",
    default=True,
    show_default=True,
    help="Frames of the source at the starts of segments.",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace an existing report.")
@click.option("--diff", is_flag=True, help="List the differences between two runs, A and B.")
@click.option("--json", "as_json", is_flag=True, help="With --diff: print JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Only errors on stderr.")
def command(
    results: tuple[Path, ...],
    output: str | None,
    formats: tuple[str, ...],
    thumbnails: bool,
    overwrite: bool,
    diff: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Show results as one HTML page, or compare two runs.

    RESULTS are .jsonl or .json files written by 'detect' or 'batch', or folders of them. The page
    needs no network and no script: timeline, score curves, cost against the dense model, label
    statistics, and pictures if the source is still available. Prints the files written.

    \b
    costream report out/clip.mp4.jsonl             writes out/clip.mp4.html
    costream report out/ -f html,png               writes out/report.html and out/report.png
    costream report --diff monday/ tuesday/        exit code 0, also when they differ
    """
    if diff:
        if len(results) != 2:
            raise UsageError("--diff compares two files or two folders", where="--diff")
        if output is not None or formats:
            raise UsageError("--diff prints to stdout; it takes neither -o nor -f")
        from costream.report.diff import compare

        return int(compare(*results, as_json=as_json))
    if as_json:
        raise UsageError("--json needs --diff")
    from costream.report.command import make_report

    options = ReportOptions(
        results=results,
        output=output,
        formats=parse_formats(formats, output),
        thumbnails=thumbnails,
        overwrite=overwrite,
        quiet=quiet,
    )
    return int(make_report(options))
