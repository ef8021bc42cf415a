"""What became of an input; it crosses from workers to the command and goes into the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# done: read to its end; partial: damage ended it early, what was read is there; failed: nothing
# is there; skipped: it is not for this model; interrupted: the run was stopped meanwhile.
Status = Literal["done", "partial", "failed", "skipped", "interrupted"]


@dataclass(frozen=True)
class Refusal:
    """Why an input is not tried."""

    status: Literal["failed", "skipped"]
    reason: str
    exit: int = 0  # of ExitCode, as if it were the only input


@dataclass(frozen=True)
class Outcome:
    """What became of one input."""

    name: str
    status: Status
    reason: str = ""  # also the damage in an input that is done
    exit: int = 0  # of ExitCode, as if it were the only input
    kind: str | None = None  # "video", ...; None when it was not opened
    summary: dict[str, Any] = field(default_factory=dict)  # the summary record
    files: dict[str, int] = field(default_factory=dict)  # path below the output folder: bytes
    fatal: bool = False  # not the input's fault: the whole run must end (model, full disk)
