"""``costream watch``: live monitoring of one or many feeds."""

from __future__ import annotations

import copy
from typing import Any

import click

from costream.cli import detect
from costream.cli.options import config_option, option, positive, seconds
from costream.errors import UsageError
from costream.settings import WatchSettings

# Options of detect that make no sense for feeds, or mean something else for them.
_NOT_SHARED = {
    *("sources", "formats", "start", "end", "duration", "layout", "columns", "raw"),
    *("overwrite", "skip_existing", "config", "fps", "output", "budget"),
}


@click.command(no_args_is_help=True)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@option("-o", "--output", metavar="FOLDER|-", help="Append records there; '-' is stdout.")
@option("--rtsp-transport", type=click.Choice(["tcp", "udp"]), default="tcp", help="For RTSP.")
@option(
    "--timeout",
    type=str,
    callback=seconds,
    default="10",
    metavar="TIME",
    help="Without data for so long, a feed is lost and connected anew.",
)
@option(
    "--reconnect",
    type=click.IntRange(-1),
    default=-1,
    metavar="N",
    help="Attempts in a row before a feed is given up; -1: for ever.",
)
@option(
    "--password-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The password of URLs that have a user and none.",
)
@option("--realtime/--no-realtime", default=False, help="Files are feeds too, at their own pace.")
@option(
    "--speed",
    type=float,
    callback=positive,
    default=1.0,
    help="Play files so many times as fast.",
)
@option("--fps", type=float, callback=positive, help="Steps a second the model sees.")
@option(
    "--on-late",
    type=click.Choice(["drop", "block"]),
    default="drop",
    help="Steps that come too fast: drop the oldest, or let the feed wait.",
)
@option(
    "--max-lag",
    type=str,
    callback=seconds,
    default="2",
    metavar="TIME",
    help="Drop steps that are later than this.",
)
@option(
    "--budget",
    metavar="0.5x",
    help="Share of real time the network may take, for all feeds together. Objects: as detect.",
)
@click.option(
    "--on",
    multiple=True,
    metavar="RULE",
    help="Alert: 'LABEL>=0.8 for 2s', 'gap>=10s', 'lost'. Repeatable.",
)
@click.option("--run", multiple=True, metavar="COMMAND", help="At an alert run this, no shell.")
@click.option("--post", multiple=True, metavar="URL", help="At an alert post it there as JSON.")
@click.option("--append", multiple=True, metavar="FILE", help="At an alert append a line of JSON.")
@click.option(
    "--clips",
    is_flag=False,
    flag_value="5,5",
    metavar="[BEFORE,AFTER]",
    help="Keep the seconds around an alert as video.  [5,5]",
)
@option("--rotate", metavar="hour|day|SIZE", help="Begin a new file so often, or at this size.")
@option("--keep", metavar="SIZE", help="Delete the oldest parts of a feed beyond this.")
@option(
    "--state-dir",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Keep what the network knows there, so that a restart goes on.",
)
@option("--status-file", type=click.Path(dir_okay=False), metavar="FILE", help="State as JSON.")
@option("--metrics", metavar="[HOST:]PORT", help="Prometheus: http://127.0.0.1:PORT/metrics.")
@config_option()
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> int:
    """Watch live feeds with one network, for as long as you like.

    SOURCE is a URL (rtsp, http, hls, udp, srt, ...), a camera (0, /dev/video0), mic or mic:NAME,
    a file with --realtime, or a TOML list of feeds. Lost feeds are connected to again; what is
    missing is written as gap records. Ctrl-C ends the watch with every file finished.

    With -o each feed has a FEED.jsonl there that is appended to; else JSONL goes to a pipe.

    \b
    costream watch rtsp://cam1/live rtsp://cam2/live -o log
    costream watch feeds.toml -o log --rotate day --state-dir state --metrics 9100
    costream watch rtsp://cam1/live --on 'falling>=0.8 for 2s' --run 'notify-send {feed} {label}'
    costream watch mic -m cotrans,cosounds
    """
    from costream.runtime.watch.watch import watch

    return int(watch(_settings(values), detect.effective(ctx)))


def _settings(values: dict[str, Any]) -> WatchSettings:
    """Check what the options say together, before anything is loaded."""
    told = dict.fromkeys(("duration", "end", "layout", "columns", "budget"))
    told = {**values, **told, "start": 0.0, "formats": (), "overwrite": False}
    common = detect.settings_of({**told, "skip_existing": False})
    if values["budget"] is not None:
        if values["tokens"] is not None:
            raise UsageError("--tokens and --budget exclude each other")
        from costream.runtime.budgetfile import parse_budget

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
