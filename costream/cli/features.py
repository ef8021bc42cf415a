"""``costream features``: write feature files of video or audio."""

from __future__ import annotations

import click

from costream.cli.run_command import run_command
from costream.core.errors import ExitCode
from costream.options.options import Options


@run_command(
    "features",
    "SOURCE...",
    model={
        "default": "cooadtr",
        "help": "Model whose frontend computes the features; see 'costream models list'.",
    },
    output={
        "type": click.Path(),
        "required": True,
        "metavar": "FILE.npz|FOLDER",
        "help": "File to write; a folder for several sources.",
    },
    start_s={"help": "Start time."},
    duration_s={"help": "Length, instead of --end."},
    rate_hz={"help": "Rows per second.  [default: the model's]"},
    overwrite={"help": "Replace existing files."},
)
def command(options: Options, effective: list[str]) -> ExitCode:
    """Write the features that a model's frontend computes from video or audio; print the files.

    An .npz holds one row per step ('rgb' and 'flow' for TSN, else 'features'), the 'times' of the
    rows in seconds, and 'rate_hz'. It can be used instead of the recording everywhere, with any
    model whose rows have the same width.

    \b
    costream features clip.mp4 -o clip.npz
    costream detect clip.npz -m cooadtr
    costream models import tsn_rgb.pth tsn_flow.pth --name tsn-kinetics
    costream features videos/*.mp4 -m tsn-kinetics -o features/
    """
    from costream.runtime.features import features

    return features(options)
