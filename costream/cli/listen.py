"""``costream listen``: music genres and sound events in files and from the microphone."""

from __future__ import annotations

import copy
import re
from typing import Any

import click

from costream.cli import detect
from costream.cli.options import config_option, option
from costream.errors import UsageError
from costream.records import RawAudioFormat

MODELS = "cotrans,cosounds"
# Options of detect that apply only to video and skeletons.
_NOT_SHARED = {
    *("sources", "model", "fps", "layout", "columns", "config"),
    *("tokens", "budget", "track"),
}
_RAW = re.compile(r"([a-z][a-z0-9]+):([0-9]+)(?::([0-9]+))?")


def _raw(ctx: click.Context, param: click.Parameter, value: str | None) -> RawAudioFormat | None:
    """Parse FORMAT:RATE[:CHANNELS]."""
    if value is None:
        return None
    found = _RAW.fullmatch(value)
    if found is None or not int(found[2]) or found[3] == "0":
        raise click.BadParameter(f"{value!r} is not FORMAT:RATE[:CHANNELS]", ctx, param)
    return RawAudioFormat(found[1], int(found[2]), int(found[3] or 1))


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@click.option(
    "--mic",
    is_flag=False,
    flag_value="",
    metavar="[NAME|INDEX]",
    help="Use the default microphone, or this one; 'costream doctor' lists them.",
)
@option("-m", "--model", default=MODELS, metavar="LIST", help="Models on the same frontend.")
@option(
    "--raw",
    callback=_raw,
    metavar="FORMAT:RATE[:CHANNELS]",
    help="Format of raw samples on stdin and pipes: s16le:48000:2.",
)
@config_option()
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> int:
    """Recognise music genres and sounds, in steps of a quarter of a second.

    SOURCE is a sound file, a video with sound, '-' for stdin, or features of the frontend; without
    one, --mic listens to the microphone until Ctrl-C or for --duration.

    Results go to files with -o, as JSONL to a pipe, and as a readable timeline to a terminal.

    \b
    costream listen --mic
    costream listen album/*.flac -o out -f csv,audacity
    arecord -t raw -f S16_LE -r 16000 | costream listen - --raw s16le:16000
    costream listen talk.mp4 -m cosounds --threshold 0.6
    """
    mic = values.pop("mic")
    if mic is None and not values["sources"]:
        raise UsageError("nothing to listen to", hint="name a file, or give --mic")
    if mic is not None:
        if values["sources"]:
            raise UsageError(
                "--mic and files exclude each other",
                hint="a name after --mic is the name of a microphone",
            )
        values["sources"] = (f"mic:{mic}" if mic else "mic",)
    from costream.runtime.detect import detect as run

    told = {"fps": None, "layout": None, "columns": None, **values}
    return int(run(detect.settings_of(told), detect.effective(ctx)))


# Options keep their order: sources and models first, then those of detect.
command.params[3:3] = [copy.copy(p) for p in detect.command.params if p.name not in _NOT_SHARED]
