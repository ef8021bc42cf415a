"""The live view as lines of text that fit a given width and height."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from costream.sinks.figure import Figure
from costream.ui.state import STAGES, RunState
from costream.ui.stick import stick_lines
from costream.ui.text import clean, counted, saving, short_time, si, times

# Black letters on these can be read on dark and light terminals alike.
_COLORS = ("green", "yellow", "cyan", "magenta", "blue", "red", "bright_green", "bright_cyan")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MOST_WIDTH = 100  # longer bars say nothing more
_GUTTER = 8  # columns of the names at the left

# The view from top to bottom, and which lines come in while there is room, first to last. Every
# group has one line to begin with, except blanks, finished segments and losses.
_ORDER = (
    *("title", "progress", "blank 1", "scores", "blank 2", "now", "before"),
    *("blank 3", "timeline", "blank 4", "speed", "cost", "lost"),
)
_FIRST = ("title", "progress", "scores", "now", "timeline", "speed", "cost")
_WISHES = (
    *("lost", "timeline", "scores", "speed", "before", "scores", "before", "blank 3", "blank 1"),
    *("before", "blank 2", "blank 4", "scores", "before", "scores", "before"),
)

# A small figure of the persons stands to the right of these, which come one after the other.
_BESIDE = ("blank 1", "scores", "blank 2", "now", "before", "blank 3")
_FIGURE_ROWS = 10
_FIGURE_WIDTH = 2 + 2 * _FIGURE_ROWS


@dataclass(frozen=True)
class Look:
    """What the terminal can show."""

    width: int
    height: int
    unicode: bool = True


def frame(state: RunState, name: str, look: Look, now_s: float) -> Text:
    """Give the view of ``state``: at most ``look.height`` lines, none wider than ``look.width``."""
    look = Look(min(look.width, _MOST_WIDTH), look.height, look.unicode)
    groups = _Groups(state, clean(name), look, now_s).make()
    figure = state.figure if _has_room(look) else None
    narrow = Look(look.width - _FIGURE_WIDTH, look.height, look.unicode)
    if figure is not None:
        beside = _Groups(state, clean(name), narrow, now_s).make()
        groups |= {key: beside[key] for key in _BESIDE}
    count = {key: int(key in _FIRST) for key in groups}
    for key in _WISHES:
        if count[key] < len(groups[key]) and sum(count.values()) < look.height:
            count[key] += 1
    lines = {key: groups[key][: count[key]] for key in _ORDER}
    if figure is not None:
        _put_beside(lines, figure, narrow.width, look.height - sum(count.values()))
    shown = [line for key in _ORDER for line in lines[key]][: look.height]
    for line in shown:
        line.truncate(look.width, overflow="ellipsis" if look.unicode else "crop")
    return Text("\n", no_wrap=True, end="").join(shown)


def _has_room(look: Look) -> bool:
    return look.unicode and look.width >= 60 and look.height >= 16


def _put_beside(lines: dict[str, list[Text]], figure: Figure, width: int, spare: int) -> None:
    """Append the figure to the lines of the groups ``_BESIDE``, which are ``width`` wide.

    ``spare``: lines that may be added to make room for it.
    """
    own = [line.copy() for key in _BESIDE for line in lines[key]]
    own += [Text("") for _ in range(min(spare, _FIGURE_ROWS - len(own)))]
    rows = min(len(own), _FIGURE_ROWS)
    for line, dots in zip(own, stick_lines(figure, rows), strict=False):
        line.truncate(width, pad=True)
        line.append("  ").append(dots, "cyan")
    for key in _BESIDE:
        lines[key] = []
    lines[_BESIDE[0]] = own


class _Groups:
    """Makes the lines of each group."""

    def __init__(self, state: RunState, name: str, look: Look, now_s: float) -> None:
        self.state, self.name, self.look, self.now_s = state, name, look, now_s
        events = [label for label in state.header.labels if label != state.header.background]
        self.color = {label: _COLORS[k % len(_COLORS)] for k, label in enumerate(events)}
        self.letter = _letters(events)
        self.dash = "–" if look.unicode else "-"

    def make(self) -> dict[str, list[Text]]:
        blank = [Text("")]
        return {
            **{f"blank {k}": blank for k in range(1, 5)},
            "title": [self._title()],
            "progress": [self._progress()],
            "scores": self._scores(),
            "now": [self._now()],
            "before": self._before(),
            "timeline": self._timeline(),
            "speed": self._speed(),
            "cost": [self._cost()],
            "lost": [self._lost()],
        }

    def _title(self) -> Text:
        header = self.state.header
        late = f", {header.delay_s:g} s behind" if header.delay_s else ""
        model = clean(header.model)
        about = ("", f"  {model}", f"  {model}, {header.rate_hz:g} steps a second{late}")
        return self._longest(*(Text.assemble((self.name, "bold"), (a, "dim")) for a in about))

    def _progress(self) -> Text:
        state = self.state
        length_s = state.header.duration_s
        if not length_s:
            lag = f", {state.lag_s:.2f} s late" if state.lag_s else ""
            return Text(f"{short_time(state.media_s, 0)} so far{lag}")
        share = min(1.0, state.media_s / length_s)
        eta_s = state.eta_s(self.now_s)
        text = f" {100 * share:3.0f} %"
        if self.look.width >= 50:
            text += f"  {short_time(state.media_s, 0)} / {short_time(length_s, 0)}"
        text += "" if eta_s is None else f"  {short_time(eta_s, 0)} left"
        width = max(4, self.look.width - len(text))
        full = round(share * width)
        on, off = ("━", "─") if self.look.unicode else ("=", "-")
        return Text.assemble((on * full, "green"), (off * (width - full), "dim"), text)

    def _scores(self) -> list[Text]:
        state, top = self.state, self.state.top
        if not top:
            what = "output" if state.steps else "step"
            return [Text(f"waiting for the first {what}", "dim")]
        longest = max(cell_len(clean(label)) for label in state.header.labels)
        width = max(_GUTTER - 1, min(longest, self.look.width // 3))
        lines = []
        for label, score in top:
            name = clean(label)
            bar = self._bar(score, self.look.width - width - 7)
            quiet = label == state.header.background
            style = "dim" if quiet else self.color.get(label, "")
            line = Text.assemble((set_cell_size(name, width), "dim" if quiet else ""), " ")
            lines.append(line.append(bar, style).append(f" {score:5.2f}"))
        return lines

    def _bar(self, share: float, width: int) -> str:
        width = max(1, width)
        eighths = round(max(0.0, min(1.0, share)) * width * 8)
        if not self.look.unicode:
            return ("#" * round(eighths / 8)).ljust(width)
        return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(width)

    def _now(self) -> Text:
        current, time_s = self.state.current, self.state.time_s
        if current is None or time_s is None:
            return _named("now").append("nothing" if self.state.top else "", "dim")
        length_s = max(0.0, time_s - self.state.header.delay_s - current.since_s)
        short = f"  for {length_s:.1f} s"
        ends = ("", short, f"{short}, since {short_time(current.since_s)}")
        line = _named("now").append(clean(current.label), "bold")
        return self._longest(*(line.copy().append(end) for end in ends))

    def _before(self) -> list[Text]:
        segments = list(reversed(self.state.segments))
        spans = [f"{short_time(s.start_s)} {self.dash} {short_time(s.end_s)}" for s in segments]
        labels = [clean(s.label) for s in segments]
        span_width = max(map(len, spans), default=0)
        label_width = max(map(cell_len, labels), default=0)
        lines = []
        for k, (span, label) in enumerate(zip(spans, labels, strict=True)):
            line = _named("before" if k == 0 else "").append(f"{span:<{span_width}}  ", "dim")
            line.append(set_cell_size(label, label_width))
            lines.append(line.append(f"  {segments[k].score:.2f}", "dim"))
        return lines

    def _timeline(self) -> list[Text]:
        if self.state.strip is None:
            return [Text("")]
        cells = self.state.strip.cells(self.look.width, self.state.header.duration_s)
        strip = Text()
        for cell, run in groupby(cells):
            strip.append_text(self._run(*cell, len(list(run))))
        legend = Text()
        for label in self.state.seen:
            legend.append(f" {self.letter[label]} ", self._style(label))
            legend.append(f" {clean(label)}  ")
        return [strip, legend] if legend else [strip]

    def _run(self, label: str | None, seen: bool, width: int) -> Text:
        """Give one stretch of the strip: the label's name where it fits, else its letter."""
        if label is None:
            dot = "·" if self.look.unicode else "."
            return Text((dot if seen else " ") * width, "dim")
        name = clean(label)
        text = name if cell_len(name) <= width else self.letter[label]
        return Text(set_cell_size(text, width), self._style(label))

    def _style(self, label: str) -> str:
        return f"black on {self.color[label]}"

    def _speed(self) -> list[Text]:
        state = self.state
        if not state.steps:
            return [_named("speed")]
        speed = _named("speed").append(times(state.x_realtime(self.now_s)), "bold")
        speed.append(f" real time, {sum(state.ms.values()):.1f} ms a step")
        stages = "  ".join(f"{name} {state.ms[name]:.2f}" for name in STAGES)
        return [speed, _named("").append(f"{stages} ms", "dim")]

    def _cost(self) -> Text:
        state = self.state
        if not state.steps:
            return _named("cost")
        spent, dense = state.macs / state.steps, state.dense_macs / state.steps
        less = saving(spent, dense)
        if not less:
            return _named("cost").append(si(spent, "MAC"), "bold").append(" a step")
        both = f"{si(spent)} of {si(dense)}"
        lines = (_named("cost").append(f"{both}{unit} a step: ") for unit in ("", " MAC"))
        return self._longest(*(line.append(less, "bold") for line in lines))

    def _lost(self) -> Text:
        state = self.state
        style = "red" if state.dropped or state.errors else "dim"
        errors = counted(state.errors, "error")
        return _named("lost").append(f"{state.dropped} dropped, {errors}", style)

    def _longest(self, *lines: Text) -> Text:
        """Give the last of ``lines`` that fits, or the first."""
        fitting = [line for line in lines if line.cell_len <= self.look.width]
        return fitting[-1] if fitting else lines[0]


def _named(name: str) -> Text:
    return Text.assemble((name.ljust(_GUTTER), "dim"))


def _letters(labels: list[str]) -> dict[str, str]:
    """Give each label a letter of its own: one of its name if any is free."""
    spare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    out: dict[str, str] = {}
    for label in labels:
        own = [c for c in label.lower() + label.upper() if c in spare]
        free = (c for c in [*own, *spare] if c not in out.values())
        out[label] = next(free, "+")
    return out
