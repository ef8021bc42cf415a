"""The ``--columns`` option that reads other axes as x, y and z."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costream.sources.numbering import beginning
from costream.sources.skeletons.columns import AXES, Columns
from costream.sources.skeletons.table_schema import TableSchema


@dataclass(frozen=True)
class AxesOption:
    """How ``--columns`` names the axes of a recording."""

    headings: tuple[str, ...] = ()  # of x, y, z in the file; empty: named by their order
    more: tuple[str, ...] = ()  # further columns: "score", or "joint=Joint"
    oriented: bool = True  # the signs of ``orientation`` are applied too

    def text(self, order: Sequence[int], signs: Sequence[float], base: Sequence[float]) -> str:
        """Return the option that takes other axes as x, y, z.

        ``order``, ``signs``: which axis is x, y, z, of those that are read now: the file's with the
        signs ``base``.
        """
        if self.oriented:
            signs = [
                int(base[k] * base[o] * sign)
                for k, (o, sign) in enumerate(zip(order, signs, strict=True))
            ]
        else:
            signs = [int(base[o] * sign) for o, sign in zip(order, signs, strict=True)]
        minus = ["-" if sign < 0 else "" for sign in signs]
        if not self.headings:
            role = {o: f"{minus[k]}{AXES[k]}" for k, o in enumerate(order)}
            return "--columns " + ",".join([*(role[o] for o in range(len(order))), *self.more])
        parts = [f"{AXES[k]}={minus[k]}{self.headings[o]}" for k, o in enumerate(order)]
        return "--columns '" + ",".join([*parts, *self.more]) + "'"


def axes_option(
    plan: TableSchema, cells: Sequence[str], columns: Columns | None
) -> AxesOption | None:
    """Return how ``--columns`` names the axes of a table with these headings; None: it cannot.

    ``columns``: the present option.
    """
    axes = [[cells[k].strip() for k in column if k >= 0] for column in plan.places.T]
    if columns is not None and columns.by_order:
        return None
    headings = tuple(map(_pattern, axes)) if plan.joint < 0 else tuple(names[0] for names in axes)
    if not all(headings):
        return None
    more = [] if plan.joint < 0 else [f"joint={cells[plan.joint].strip()}"]
    if plan.scores is not None:
        scores = [cells[k].strip() for k in plan.scores if k >= 0]
        more += [f"score={_pattern(scores) if plan.joint < 0 else scores[0]}"]
    return AxesOption(headings, tuple(more))


def _pattern(names: Sequence[str]) -> str:
    """Return what headings have in common, with ``{}`` where they differ; "" if they do not."""
    first = beginning(names)
    last = beginning([name[::-1] for name in names])
    if len(names) < 2 or any(len(first) + len(last) >= len(name) for name in names):
        return ""
    return first + "{}" + last[::-1]
