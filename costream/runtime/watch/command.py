"""``costream watch``: check the options, load one network, watch every feed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from costream.core.errors import ExitCode
from costream.options.options import Options
from costream.runtime.logs import logging_to
from costream.runtime.memory import share_heap
from costream.runtime.model_loading import kind_of_feeds, load_checked
from costream.runtime.stop import StopHandler
from costream.runtime.watch.feed_list import read_feeds
from costream.runtime.watch.metrics_server import Metrics
from costream.runtime.watch.mqtt import MqttPublisher
from costream.runtime.watch.outputs import file_sinks
from costream.runtime.watch.ray_watch import RayWatch, check_for_ray
from costream.runtime.watch.status_file import StatusFile
from costream.runtime.watch.systemd import SystemdNotifier
from costream.runtime.watch.watch_run import WatchParts, WatchRun, WatchView
from costream.runtime.watch.web import WebPage
from costream.sinks.event_store import check_store
from costream.sinks.registry import check_outputs
from costream.sources.live.devices import silence_portaudio
from costream.ui.console import live_allowed, print_line, stderr_console
from costream.ui.watch.dashboard import Dashboard
from costream.ui.watch.lines import WatchLines

log = logging.getLogger("costream")


def watch(options: Options, effective: Sequence[str] = ()) -> ExitCode:
    """Watch every feed until all have ended or a signal arrives; return the exit code.

    Everything is checked before the model is loaded. ``effective`` holds lines that say which
    settings are in force, shown with -v.
    """
    share_heap()
    logged = logging_to(options.verbosity, options.color, options.log_file, effective)
    with StopHandler() as stop, logged:
        specs = read_feeds(options)
        if options.engine == "ray":
            check_for_ray(options, specs)
        elif options.jobs is not None:  # perhaps set for batch, in a file
            log.warning("a watch is one process: --jobs is for --engine ray")
        for folder in (options.output, options.snapshots):
            if folder not in (None, "-"):
                check_outputs((), Path(str(folder)), "", overwrite=True)
        if options.db is not None:
            check_store(Path(options.db))
        with ExitStack() as stack:
            stack.enter_context(silence_portaudio(spec.uri for spec in specs))
            views = _views(options, stack)
            model = load_checked(options, kind_of_feeds([s.uri for s in specs], options))
            run = watch_run(WatchParts(options, specs, model, views, stop, file_sinks))
            for _ in run.rounds():
                pass
            return run.exit_code


def watch_run(parts: WatchParts) -> WatchRun | RayWatch:
    """Return the watch, in this process or on a cluster."""
    return RayWatch(parts) if parts.options.engine == "ray" else WatchRun(parts)


def _views(options: Options, stack: ExitStack) -> list[WatchView]:
    """Return the views of the watch; ``stack`` will close them."""
    views: list[WatchView] = [SystemdNotifier(), *status_exports(options)]
    console = stderr_console(options.color)
    for view in views:
        if isinstance(view, WebPage) and options.verbosity >= 0:
            print_line(console, f"page: {view.url_with_token}")
    if live_allowed(
        sys.stderr,
        quiet=options.verbosity < 0,
        no_live=not options.live,
        flag=options.color,
        data_on_terminal=options.output == "-" and sys.stdout.isatty(),
    ):
        views.append(Dashboard(console))
    elif options.verbosity >= 0:
        views.append(WatchLines(console))
    for view in views:
        stack.callback(view.close)
    return views


def status_exports(options: Options) -> list[WatchView]:
    """Return what the options say the status is written to."""
    views: list[WatchView] = []
    if options.status_file is not None:
        views.append(StatusFile(Path(options.status_file)))
    if options.metrics is not None:
        views.append(Metrics(options.metrics))
    if options.mqtt is not None:
        views.append(MqttPublisher(options.mqtt))
    if options.web is not None:
        views.append(WebPage(options.web))
    return views
