"""``costream watch``: monitor one or many live feeds."""

from __future__ import annotations

import copy
from typing import Any

import click

from costream.cli import detect
from costream.cli.options import config_option, option, positive, seconds
from costream.errors import UsageError
from costream.settings import WatchSettings

# Options of detect that do not apply to feeds, or have another meaning for them.
_NOT_SHARED = {
    *("sources", "formats", "start", "end", "duration", "layout", "columns", "raw"),
    *("overwrite", "skip_existing", "config", "fps", "output", "budget"),
}


@click.command(no_args_is_help=True)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@option("-o", "--output", metavar="FOLDER|-", help="Append records in this folder; '-' is stdout.")
@option(
    "--rtsp-transport", type=click.Choice(["tcp", "udp"]), default="tcp", help="Transport of RTSP."
)
@option(
    "--timeout",
    type=str,
    callback=seconds,
    default="10",
    metavar="TIME",
    help="A feed without data for this long is lost and reconnected.",
)
@option(
    "--reconnect",
    type=click.IntRange(-1),
    default=-1,
    metavar="N",
    help="Attempts in a row before a feed is given up; -1: unlimited.",
)
@option(
    "--password-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Password for URLs with a user name but no password.",
)
@option(
    "--realtime/--no-realtime", default=False, help="Accept files as feeds, played in real time."
)
@option(
    "--speed",
    type=float,
    callback=positive,
    default=1.0,
    help="Playback speed of files.",
)
@option("--fps", type=float, callback=positive, help="Steps per second of the model.")
@option(
    "--on-late",
    type=click.Choice(["drop", "block"]),
    default="drop",
    help="If steps arrive too fast: drop the oldest, or block the feed.",
)
@option(
    "--max-lag",
    type=str,
    callback=seconds,
    default="2",
    metavar="TIME",
    help="Drop steps with a higher lag.",
)
@option(
    "--budget",
    metavar="0.5x",
    help="Share of real time for the network, over all feeds together. Objects: as in detect.",
)
@click.option(
    "--on",
    multiple=True,
    metavar="RULE",
    help="Alert rule: 'LABEL>=0.8 for 2s', 'gap>=10s', 'lost'. Repeatable.",
)
@click.option(
    "--run", multiple=True, metavar="COMMAND", help="Run this command at an alert, without a shell."
)
@click.option("--post", multiple=True, metavar="URL", help="Post alerts to this URL as JSON.")
@click.option(
    "--append", multiple=True, metavar="FILE", help="Append alerts to this file as JSON lines."
)
@click.option(
    "--clips",
    is_flag=False,
    flag_value="5,5",
    metavar="[BEFORE,AFTER]",
    help="Save the seconds around an alert as video.  [5,5]",
)
@option("--rotate", metavar="hour|day|SIZE", help="Start a new file every period, or at this size.")
@option("--keep", metavar="SIZE", help="Delete the oldest parts of a feed beyond this total size.")
@option(
    "--state-dir",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Save the state of the network there, so that a restart continues from it.",
)
@option(
    "--status-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the status to this file as JSON.",
)
@option("--metrics", metavar="[HOST:]PORT", help="Prometheus: http://127.0.0.1:PORT/metrics.")
@config_option()
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> int:
    """Monitor live feeds with one network, for any length of time.

    SOURCE is a URL (rtsp, http, hls, udp, srt, ...), a camera (0, /dev/video0), mic or mic:NAME,
    a file with --realtime, or a TOML list of feeds. Lost feeds are reconnected; missing time is
    written as gap records. Ctrl-C ends the watch and finishes all files.

    With -o each feed is appended to FEED.jsonl in that folder; else JSONL is written to a pipe.

    \b
    costream watch rtsp://cam1/live rtsp://cam2/live -o log
    costream watch feeds.toml -o log --rotate day --state-dir state --metrics 9100
    costream watch rtsp://cam1/live --on 'falling>=0.8 for 2s' --run 'notify-send {feed} {label}'
    costream watch mic -m cotrans,cosounds
    """
    from costream.runtime.watch.command import watch

    return int(watch(_settings(values), detect.effective(ctx)))


def _settings(values: dict[str, Any]) -> WatchSettings:
    """Check the combination of options, before anything is loaded."""
    told = dict.fromkeys(("duration", "end", "layout", "columns", "budget"))
    told = {**values, **told, "start": 0.0, "formats": (), "overwrite": False}
    common = detect.settings_of({**told, "skip_existing": False})
    if values["budget"] is not None:
        if values["tokens"] is not None:
            raise UsageError("--tokens and --budget exclude each other")
        from costream.runtime.budget.budget import parse_budget

        parse_budget(values["budget"])
    if values["clips"] is not None and values["output"] in (None, "-"):
        raise UsageError("clips need a folder", where="--clips", hint="name one with -o")
    return WatchSettings(
        detect=common,
        arguments=tuple(values["sources"]),
        password_file=values["password_file"],
        transport=values["rtsp_transport"],
        timeout_s=values["timeout"],
        retries=values["reconnect"],
        realtime=values["realtime"],
        speed=values["speed"],
        on_late=values["on_late"],
        max_lag_s=values["max_lag"],
        budget=values["budget"],
        on=values["on"],
        run=values["run"],
        post=values["post"],
        append=values["append"],
        clips=values["clips"],
        rotate=values["rotate"],
        keep=values["keep"],
        state_dir=values["state_dir"],
        status_file=values["status_file"],
        metrics=values["metrics"],
    )


# Options keep their order: those of a watch after the output, then those of detect.
command.params[2:2] = [
    copy.copy(p) for p in detect.command.params if p.name in ("model", "weights")
]
command.params[-1:-1] = [
    copy.copy(p) for p in detect.command.params if p.name not in {*_NOT_SHARED, "model", "weights"}
]
