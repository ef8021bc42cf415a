"""``costream watch``: monitor one or many live feeds."""

from __future__ import annotations

from costream.cli.run_command import run_command
from costream.core.errors import ExitCode
from costream.options.options import Options


@run_command(
    "watch",
    "SOURCE...",
    output={
        "metavar": "FOLDER|-",
        "help": "Append records in this folder; '-' is stdout.",
    },
    rate_hz={"help": "Steps of the model per second."},
    budget={
        "metavar": "0.5x|40ms|20GMAC|50%|@FILE",
        "help": "Share of real time for the model, all feeds together; others are as in detect.",
    },
)
def command(options: Options, effective: list[str]) -> ExitCode:
    """Monitor live feeds with one network, for any length of time.

    SOURCE is a URL (rtsp, http, hls, rtmp, udp, ...), a camera (0, /dev/video0), mic or mic:NAME,
    a file with --realtime, a growing text file, or a TOML list of feeds (costream help watch).
    Lost feeds are reconnected, and the time without data is written as gap records. Ctrl-C
    finishes all files and ends the watch.

    With -o each feed is appended to FEED.jsonl in that folder; '-o -' prints records as JSONL.

    \b
    costream watch rtsp://cam1/live rtsp://cam2/live -o log
    costream watch feeds.toml -o log --rotate day --state-dir state --metrics 9100
    costream watch rtsp://cam1/live --on 'fall>=0.8 for 2s' --run 'alarm {feed}'
    costream watch mic -m cotrans,cosounds
    """
    from costream.runtime.watch.command import watch

    return watch(options, effective)
