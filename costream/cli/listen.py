"""``costream listen``: music genres and sound events in files and from the microphone."""

from __future__ import annotations

from dataclasses import replace

from costream.cli.run_command import run_command
from costream.core.errors import ExitCode
from costream.core.settings import AUTO
from costream.models.auto import SOUND
from costream.options.options import Options


@run_command(
    "listen",
    "[SOURCE...]",
    model={
        "default": SOUND,
        "metavar": "LIST",
        "help": "One model, or several with the same frontend.",
    },
)
def command(options: Options, effective: list[str]) -> ExitCode:
    """Recognise sounds, speech and music, in steps of half a second or less.

    SOURCE is a sound file, a video with sound, the http URL of either, features of the frontend, or
    '-' for stdin. Without SOURCE, --mic listens to the microphone until Ctrl-C or for --duration.

    Without -o a readable timeline is printed. With -o results go to files, or all segments to one
    table (-o all.csv). -f jsonl prints records for other programs.

    \b
    costream listen --mic
    costream listen album/*.flac -o out -f csv,audacity
    arecord -t raw -f S16_LE -r 16000 | costream listen - --raw s16le:16000
    ffmpeg -v error -f avfoundation -i :0 -f wav - | costream listen -
    costream listen talk.mp4 -m cosounds --threshold 0.6
    costream listen night/*.wav -o dogs.csv --only 'dog bark'
    """
    from costream.runtime.detect import detect

    if options.model == AUTO:
        options = replace(options, model=SOUND)
    return detect(options, effective)
