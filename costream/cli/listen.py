"""``costream listen``: music genres and sound events in files and from the microphone."""

from __future__ import annotations

from costream.cli.options import run_command
from costream.errors import ExitCode
from costream.options import Options


@run_command(
    "listen",
    "[SOURCE...]",
    model={
        "default": "cotrans,cosounds",
        "metavar": "LIST",
        "help": "Models on the same frontend.",
    },
)
def command(options: Options, effective: list[str]) -> ExitCode:
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
    from costream.runtime.detect import detect

    return detect(options, effective)
