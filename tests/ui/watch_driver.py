"""Plays a made-up watch into its views, as a process with its own terminal.

    python watch_driver.py [--feeds N] [--shows N] [--sleep S] [--every S] [--die]

``--every``: seconds from plain line to plain line. ``--die``: end by an exception.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from costream.ui.console import live_allowed, stderr_console
from costream.ui.watch.dashboard import Dashboard
from costream.ui.watch.lines import WatchLines
from kit.watched import many


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--feeds", type=int, default=4)
    parser.add_argument("--shows", type=int, default=400)
    parser.add_argument("--sleep", type=float, default=0.1)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--die", action="store_true")
    args = parser.parse_args()

    console = stderr_console()
    live = live_allowed(sys.stderr)
    view = Dashboard(console) if live else WatchLines(console, every_s=args.every)
    for k in range(args.shows):
        view.show(many(args.feeds, k=k // 4))
        if not sys.stdout.isatty():
            print(k)
        time.sleep(args.sleep)
    if args.die:
        raise RuntimeError("died on purpose")
    view.close()


if __name__ == "__main__":
    main()
