"""Outcomes of inputs, sent from workers to the command and stored in the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# done: read to its end; partial: a fatal error ended it early, the results so far are there;
# failed: no results; skipped: not for this model; interrupted: the run was stopped meanwhile.
Status = Literal["done", "partial", "failed", "skipped", "interrupted"]


@dataclass(frozen=True)
class Refusal:
    """The reason why an input is not run."""

    status: Literal["failed", "skipped"]
    reason: str
    exit: int = 0  # of ExitCode, as if it were the only input


@dataclass(frozen=True)
class Outcome:
    """The outcome of one input."""

    name: str
    status: Status
    reason: str = ""  # also decode errors of an input that is done
    exit: int = 0  # of ExitCode, as if it were the only input
    kind: str | None = None  # "video", ...; None when not opened
    summary: dict[str, Any] = field(default_factory=dict)  # the summary record
    files: dict[str, int] = field(default_factory=dict)  # path below the output folder: bytes
    fatal: bool = False  # would hit every input (model, full disk): the whole run must end
