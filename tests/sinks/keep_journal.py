"""Writes a journal until it is killed, or over a disk that is full for a while; see test_journal.

For each record that the journal has taken its number goes to standard output.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from costream.core.records import Compute, Header, Prediction, StageTimes, Summary
from costream.sinks.journal import Journal
from costream.sinks.rotation import Rotation

HEADER = Header("0", "m", "0" * 64, ("a",), None, 10.0, 0.0, "rtsp://x", "video", None, {})
MS = StageTimes(1.0, 1.0, 1.0, 1.0)


def write(journal: Journal, i: int) -> None:
    journal.write(Prediction(i, i / 10, i, None, (("a", 0.5),)))
    journal.write(Compute(i, i / 10, 1, 1, MS))
    os.write(1, b"%d\n" % i)


def for_ever(directory: str, size: str) -> None:
    journal = Journal(Path(directory), "cam", Rotation(size=int(size)))
    journal.open(HEADER)
    i = 0
    while True:
        write(journal, i)
        i += 1


def full_for_a_while(directory: str) -> None:
    import resource  # POSIX

    logging.basicConfig(format="%(message)s")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails with EFBIG instead
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = Journal(Path(directory), "cam")
    journal.open(HEADER)
    for i in range(300):
        if i == 100:
            resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 333, hard))
        if i == 200:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        write(journal, i)
    journal.close(Summary(300, 0, 0, 0, 30.0, 30.0, 1.0, 300, 300, True, 0))


if __name__ == "__main__":
    {"for-ever": for_ever, "full": full_for_a_while}[sys.argv[1]](*sys.argv[2:])
