"""``costream read``: labels of the lines or words of text."""

from __future__ import annotations

from costream.cli.run_command import run_command
from costream.core.errors import ExitCode
from costream.options.options import Options


@run_command(
    "read",
    "SOURCE...",
    model={"required": True, "help": "Model that 'costream train' made from your lines."},
)
def command(options: Options, effective: list[str]) -> ExitCode:
    """Label the lines or words of text as they arrive, with a model that you have trained.

    SOURCE is a text file in UTF-8, or '-' for stdin. The network reads each line once, with the
    words before it as context. A line counts as a second; with --arrival its time is that of its
    arrival.

    Each line is printed with its label. With -o results go to files; -f jsonl prints records for
    other programs. --on reports lines at once to a program, a web hook or a file.

    \b
    costream models init cotext -o base.safetensors
    costream train base.safetensors --data lines.csv -o levels.safetensors
    costream read app.log -m levels.safetensors -o all.csv
    tail -F app.log | costream read - -m levels.safetensors \\
        --on 'error>=0.9' --append alerts.jsonl
    nc -l 9000 | costream read - -m levels.safetensors -f lines --by word
    """
    from costream.runtime.detect import detect

    return detect(options, effective)
