"""Line groups of the live view, each with its most important lines first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from costream.core.formatting import (
    clean,
    counted,
    named,
    saving,
    short_time,
    si,
    times,
)
from costream.core.records import STAGES, Scored
from costream.draw.palette import BACKGROUND
from costream.ui.run.glyphs import level_line
from costream.ui.run.state import RunState
from costream.ui.run.tracks import HeadState
from costream.ui.screen import Viewport

_EIGHTHS = " ▏▎▍▌▋▊▉"
_GUTTER = 8  # width of the names at the left
MOST_GUTTER = 14
_SPECTRUM_ROWS = 6  # at most


class LineGroups:
    """Builder of the line groups. The groups of a head have its number in their names."""

    def __init__(self, state: RunState, name: str) -> None:
        self._state, self._name = state, name
        self._viewport, self._now_s = Viewport(0, 0), 0.0
        longest = max((cell_len(clean(head)) + 1 for head in state.head_states if head), default=0)
        if state.header.persons is not None:
            longest = len("person 1 ")
        self._gutter = min(max(_GUTTER, longest), MOST_GUTTER)

    def make(self, viewport: Viewport, now_s: float) -> dict[str, list[Text]]:
        """Return the lines of all groups. Those of the spectrogram are only placeholders."""
        self._viewport, self._now_s = viewport, now_s
        blank = [Text("")]
        groups = {
            "title": [self._title()],
            "progress": [self._progress()],
            "before": self._before(),
            "speed": self._speed(),
            "cost": [self._cost()],
            "lost": [self._lost()],
        }
        groups |= {f"blank {k}": blank for k in range(1, 5)}
        for k, (head, head_state) in enumerate(self._state.head_states.items()):
            groups[f"scores {k}"] = self._scores(head, head_state)
            groups[f"now {k}"] = [self._now(head, head_state)]
            groups[f"timeline {k}"] = self._timeline(head, head_state)
        meter = self._state.audio_meter
        if meter is not None:
            width, unicode = viewport.width, viewport.unicode
            level = self._named("level")
            groups["level"] = [
                level.append("unknown", "dim")
                if self._state.lost
                else level_line(meter, level, width, unicode=unicode)
            ]
            groups["spectrum"] = blank * (_SPECTRUM_ROWS if meter.has_spectrum else 0)
        return groups

    def _title(self) -> Text:
        header = self._state.header
        late = f", {header.delay_s:g} s behind" if header.delay_s else ""
        late += ", no sound" if self._state.is_silent else ""
        model = clean(header.model)
        about = ("", f"  {model}", f"  {model}, {header.rate_hz:g} steps a second{late}")
        return self._longest(*(Text.assemble((self._name, "bold"), (a, "dim")) for a in about))

    def _progress(self) -> Text:
        state = self._state
        if state.lost:
            return Text(clean(state.lost), "bold yellow")
        length_s = state.header.duration_s
        if not length_s:
            lag = f", {state.lag_s:.2f} s late" if state.lag_s else ""
            return Text(f"{short_time(state.media_s, 0)} so far{lag}")
        share = min(1.0, state.media_s / length_s)
        eta_s = state.eta_s(self._now_s)
        text = f" {100 * share:3.0f} %"
        if self._viewport.width >= 50:
            text += f"  {short_time(state.media_s, 0)} / {short_time(length_s, 0)}"
        text += "" if eta_s is None else f"  {short_time(eta_s, 0)} left"
        width = max(4, self._viewport.width - len(text))
        full = round(share * width)
        on, off = ("━", "─") if self._viewport.unicode else ("=", "-")
        return Text.assemble((on * full, "green"), (off * (width - full), "dim"), text)

    def _scores(self, head: str | None, head_state: HeadState) -> list[Text]:
        """Return the best labels; with several heads, next to the name of the head."""
        title = Text() if head is None else self._named(self._head_name(head))
        if self._state.lost:
            return [title.append("unknown", "dim")]
        if not head_state.top:
            what = "output" if self._state.steps else "step"
            return [title.append(f"waiting for the first {what}", "dim")]
        return self._bars(title, head_state, head_state.top)

    def _bars(self, title: Text, head_state: HeadState, top: Iterable[Scored]) -> list[Text]:
        """Return a line with a bar for each label, the first after ``title``."""
        indent = title.cell_len
        room = self._viewport.width - indent
        width = max(_GUTTER - 1, min(self._state.label_width, self._viewport.width // 3))
        lines = []
        for label, score in top:
            line, name = title, set_cell_size(clean(label), width)
            title = Text(" " * indent)
            if label == head_state.head.background:  # says little, so it is a thin line
                style, bar = BACKGROUND.style, self._bar(score, room - width - 7, quiet=True)
            else:
                style, bar = self._state.legend.color(label), self._bar(score, room - width - 7)
            is_dim = label == head_state.head.background or not head_state.familiar
            quiet = "dim" if is_dim else ""
            line.append(name, quiet).append(" ").append(bar, style)
            lines.append(line.append(f" {score:5.2f}", quiet))
        return lines

    @property
    def _mark(self) -> str:
        return "● " if self._viewport.unicode else "* "

    @property
    def _times(self) -> str:
        return "×" if self._viewport.unicode else "x"

    def _bar(self, share: float, width: int, *, quiet: bool = False) -> str:
        width = max(1, width)
        eighths = round(max(0.0, min(1.0, share)) * width * 8)
        if quiet:
            return (("─" if self._viewport.unicode else "-") * round(eighths / 8)).ljust(width)
        if not self._viewport.unicode:
            return ("#" * round(eighths / 8)).ljust(width)
        return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(width)

    def _now(self, head: str | None, head_state: HeadState) -> Text:
        current, time_s = head_state.current, self._state.time_s
        name = "now" if head is None else self._head_name(head)
        if self._state.lost:
            return self._named(name).append("unknown", "dim")
        if current is None or time_s is None:
            return self._named(name).append("nothing" if head_state.top else "", "dim")
        length_s = max(0.0, time_s - head_state.head.delay_s - current.since_s)
        short = f"  for {length_s:.1f} s"
        ends = ("", short, f"{short}, since {short_time(current.since_s)}")
        style = self._state.legend.block(current.label)
        if not head_state.familiar:
            hint = clean(str(self._state.header.options.get("unfamiliar", "unfamiliar")))
            ends, style = ("", f"{short}, unfamiliar", f"{short}, {hint}"), "dim"
        line = self._named(name).append(f" {clean(current.label)} ", style)
        return self._longest(*(line.copy().append(end) for end in ends))

    def _before(self) -> list[Text]:
        segments = list(reversed(self._state.segments))
        dash = "–" if self._viewport.unicode else "-"
        spans = [f"{short_time(s.start_s)} {dash} {short_time(s.end_s)}" for s in segments]
        several = [f" {self._times}{s.count}" if s.count and s.count > 1 else "" for s in segments]
        labels = [clean(named(s)) + more for s, more in zip(segments, several, strict=True)]
        span_width = max(map(len, spans), default=0)
        label_width = max(map(cell_len, labels), default=0)
        lines = []
        for k, (span, label) in enumerate(zip(spans, labels, strict=True)):
            line = self._named("before" if k == 0 else "").append(f"{span:<{span_width}}  ", "dim")
            line.append(
                self._mark,
                self._state.legend.color(segments[k].label),
            )
            line.append(set_cell_size(label, label_width))
            lines.append(line.append(f"  {segments[k].score:.2f}", "dim"))
        return lines

    def _timeline(self, head: str | None, head_state: HeadState) -> list[Text]:
        if head_state.strip is None:
            return [Text("")]
        legend, unicode = self._state.legend, self._viewport.unicode
        strip, words = Text(), Text()
        if len(self._state.head_states) > 1:  # one below the other
            strip, words = self._named(self._head_name(head or "")), self._named("")
        room = max(1, self._viewport.width - strip.cell_len)
        cells = head_state.strip.cells(room, self._state.header.duration_s)
        names = dict.fromkeys(label for label, _ in cells if label is not None)
        for (label, seen), run in groupby(cells):
            width = len(list(run))
            if label is None:
                strip.append((("·" if unicode else ".") if seen else " ") * width, "dim")
            else:
                strip.append(legend.cells(label, width, unicode=unicode), legend.block(label))
        for label in names:
            words.append(*legend.mark(label)).append(f" {clean(label)}  ")
        return [strip, words] if names else [strip]

    def _speed(self) -> list[Text]:
        state = self._state
        if not state.steps:
            return [self._named("speed")]
        speed = self._named("speed").append(times(state.x_realtime(self._now_s)), "bold")
        speed.append(f" real time, {sum(state.ms.values()):.1f} ms a step")
        stages = "  ".join(f"{name} {state.ms[name]:.2f}" for name in STAGES)
        return [speed, self._named("").append(f"{stages} ms", "dim")]

    def _cost(self) -> Text:
        state = self._state
        if not state.steps:
            return self._named("cost")
        spent, dense = state.macs / state.steps, state.dense_macs / state.steps
        less = saving(spent, dense)
        if not less:
            return self._named("cost").append(si(spent, "MAC"), "bold").append(" a step")
        both = f"{si(spent)} of {si(dense)}"
        lines = (self._named("cost").append(f"{both}{unit} a step: ") for unit in ("", " MAC"))
        return self._longest(*(line.append(less, "bold") for line in lines))

    def _lost(self) -> Text:
        state = self._state
        style = "red" if state.dropped or state.errors else "dim"
        errors = counted(state.errors, "error")
        line = self._named("lost").append(f"{state.dropped} dropped, {errors}", style)
        if state.lag_s and state.header.duration_s:  # otherwise part of the progress line
            line.append(f", {state.lag_s:.2f} s late", "dim")
        return line

    def _head_name(self, head: str) -> str:
        return clean(head)

    def _named(self, name: str) -> Text:
        return Text.assemble((set_cell_size(name, self._gutter - 1), "dim"), (" ", "dim"))

    def _longest(self, *lines: Text) -> Text:
        """Return the last of ``lines`` that fits, or the first."""
        fitting = [line for line in lines if line.cell_len <= self._viewport.width]
        return fitting[-1] if fitting else lines[0]
