"""``costream batch``: process all files below a folder, resumable."""

from __future__ import annotations

from costream.cli.run_command import run_command
from costream.core.errors import ExitCode
from costream.options.options import Options


@run_command(
    "batch",
    "INPUT...",
    output={
        "required": True,
        "metavar": "FOLDER",
        "help": "Write results to this local or mounted folder.",
    },
    overwrite={"help": "Process everything again."},
    skip_existing={"default": True},
)
def command(options: Options, effective: list[str]) -> ExitCode:
    """Run a model over many files; repeat the command to resume.

    INPUT is a file, a folder (searched recursively), the URL of either in a store supported by
    fsspec (s3://, gs://, http://, zip://, ...), @LIST (a file of paths and URLs, one per line) or
    '-' (such a list on stdin). Files that are not media, or that the model cannot read, are
    skipped. The folders of the results mirror those of the inputs. Tables of all inputs are
    written next to them: predictions.csv, timeline.csv, compute.csv, failures.csv, summary.json.

    \b
    costream batch recordings/ -o out
    costream batch recordings/ -o out -f json,csv --jobs 2 --exclude 'raw/*'
    costream batch s3://bucket/x -o out --engine ray --ray-address FIRST:6379
    find /data -name '*.mp4' -newer last | costream batch - -o out
    """
    from costream.runtime.batch.command import batch

    return batch(options, effective)
