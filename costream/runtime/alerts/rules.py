"""Alert rules: their syntax and meaning, a parser, and the match with a model's labels.

A rule is one line::

    LABEL [>= P | > P] [for TIME] [until P2] [every TIME]
    LABEL [not] in ZONE [for TIME] [every TIME]
    LABEL crosses LINE [in | out] [every TIME]
    count(LABEL [in ZONE]) >= N [for TIME] [every TIME]
    level >= N dB [for TIME] [every TIME]
    any sound [for TIME] [every TIME]
    gap >= TIME [every TIME]
    lost [for TIME] [every TIME]

and at the end of any of these::

    [between 22:00-06:00] [on Mon-Fri,Sun] [not on 2026-12-24..2026-12-26,2027-01-01]
    [at most N a minute|an hour|a day] [again after TIME]

* ``LABEL`` is a label of the model, quoted if it contains ``>`` or a keyword of the rule syntax, as
  ``ZONE`` and ``LINE`` are;
  ``*`` is any label but the background, as if the rule were written once for each.
* It fires once the label's probability, smoothed as for the timeline, has been at least ``P``
  (default: the label's segment threshold) at every step for ``TIME`` (default 0: at the first
  one) and, at one of them, presence has lasted for the card's ``presence_s`` (``LastingPresence``).
* It fires again only after the probability fell below ``P2`` (default: 0.6 of ``P``) or after a
  gap in the data, and at most once per ``every`` (default 30 s) on one feed. An alert suppressed
  by ``every`` fires when that time is over, if its condition still holds. Where persons are
  followed, all this applies to each person separately.
* ``in`` fires once an object of the label has been in the zone for ``TIME``, for each object once;
  ``not in`` once no such object has been there for ``TIME``, and again after one was; ``count``
  once so many are there at once. ``crosses`` fires for each object that crosses the line; there the
  default of ``every`` is 0.
* ``level`` fires once the sound was so loud (``dBA``: A-weighted) at every step for ``TIME``, and
  again after it was less; ``any sound`` once it was LOUD_DB above the ambient level.
* ``gap`` fires once the feed has delivered no data for ``TIME``; ``lost`` when its connection is
  lost or cannot be made, or has been down for ``TIME``. Either fires again only after data have
  arrived, and ``every`` applies to it too.
* Outside the times of ``between``, ``on`` and ``not on``, by the clock of this machine, the
  condition of a rule does not hold; a time such as ``for`` may begin before. ``at most`` limits the
  alerts of a rule on one feed, ``again after`` repeats one while its condition goes on holding.

A TIME is ``2s``, ``0.5``, ``1h30m`` or ``1:30``. The clauses after LABEL may come in any order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from costream.core.clock import parse_time
from costream.core.errors import UsageError
from costream.core.hysteresis import LastingPresence
from costream.core.records import LOW
from costream.core.spelling import composed, folded
from costream.runtime.alerts.daytimes import DayTimes, parse_dates, parse_days, parse_range
from costream.weights_io.card import Card, Timeline

EVERY_S = 30.0
_MOST = 1000  # objects that a rule counts to
_LOUDEST_DB = 200.0
ANY = "*"
_WORDS = ("for", "until", "every", "in", "crosses")
_FIRST_WORDS = {"at": "at most", "again": "again after", "not": "not on"}
_SPANS_S = {"minute": 60.0, "hour": 3600.0, "day": 86_400.0}
HEARD = ("level", "sound")
LOUD_DB = 12.0
_LEVEL = re.compile(r"(?P<number>[-+]?[0-9.]+)(?P<unit>dBA?)?", re.IGNORECASE)
PLACED = ("in", "crosses", "count")
_COUNT = re.compile(r"\s*count\s*\((?P<what>[^()]*)\)\s*(?=>)")
_TOKEN = re.compile(r"\s*(?:(\"[^\"]*\"|'[^']*')|(>=|>)|([^\s>\"'][^\s>]*))")


@dataclass(frozen=True)
class Rule:
    """A parsed rule."""

    text: str
    kind: Literal["label", "gap", "lost", "in", "crosses", "count", "level", "sound"]
    label: str = ""  # ANY: any but the background
    above: float | None = None  # probability; None: the label's segment threshold
    strict: bool = False  # "above" is exclusive (>, not >=)
    for_s: float = 0.0
    until: float | None = None  # probability; None: LOW times the threshold
    every_s: float = EVERY_S
    place: str = ""  # zone or line; "" for a count in the picture
    absent: bool = False  # "not in"
    direction: str | None = None  # of "crosses": in or out; None: either
    number: int = 0  # of "count"
    level: float = 0.0  # of "level"
    unit: Literal["dB", "dBA"] = "dB"
    times: DayTimes | None = None  # when it may fire; None: always
    most: int | None = None  # alerts in ``most_s``; None: no limit
    most_s: float = 0.0
    again_s: float | None = None  # it fires again after this time if its condition still holds
    where: str = field(default="--on", compare=False)  # the option or file it is in, for messages

    @property
    def needs(self) -> str:
        """What the recorder has to measure for it: "places", "dB" or "dBA"; "" if nothing."""
        if self.kind in PLACED:
            return "places"
        return self.unit if self.kind in HEARD else ""


@dataclass(frozen=True)
class LastingHead:
    """A head whose labels count once presence has lasted for ``presence_s``."""

    begin: int  # of its columns in the probabilities of a step
    labels: tuple[str, ...]
    background: str
    timeline: Timeline

    @property
    def columns(self) -> slice:
        """Its columns in the probabilities of a step."""
        return slice(self.begin, self.begin + len(self.labels))

    def waits(self, index: int) -> bool:
        """Return whether the label of this column is one of its events."""
        number = index - self.begin
        return 0 <= number < len(self.labels) and self.labels[number] != self.background

    def presence(self) -> LastingPresence:
        """Return the presence of a stream before its first step."""
        return LastingPresence(self.timeline, self.labels, self.background)


@dataclass(frozen=True)
class RuleLabels:
    """The labels of a model's heads, concatenated in the order of a step's probabilities."""

    labels: tuple[str, ...]
    thresholds: tuple[float, ...]  # segment threshold of each label
    background: frozenset[int]  # indices of the background labels
    lasting: tuple[LastingHead, ...] = ()  # heads with ``presence_s``

    @classmethod
    def of(cls, heads: Iterable[tuple[Card, Timeline]]) -> RuleLabels:
        """Return the labels of heads, each a card with its timeline in this run."""
        labels: list[str] = []
        thresholds: list[float] = []
        background: set[int] = set()
        lasting: list[LastingHead] = []
        for card, timeline in heads:
            if card.background is not None:
                background.add(len(labels) + card.labels.index(card.background))
                if timeline.presence_s > 0:
                    lasting.append(LastingHead(len(labels), card.labels, card.background, timeline))
            labels += card.labels
            thresholds += map(timeline.threshold_of, card.labels)
        return cls(tuple(labels), tuple(thresholds), frozenset(background), tuple(lasting))


@dataclass(frozen=True)
class RuleTarget:
    """One class that a rule tests, with its bounds."""

    index: int  # in the probabilities of a step
    label: str
    above: float
    until: float


def parse_rule(text: str, where: str = "--on") -> Rule:
    """Parse a rule. Raises UsageError, which names ``where`` the rule is and the column."""
    return replace(_Parser(text, where).rule(), where=where)


def targets(rule: Rule, classes: RuleLabels) -> tuple[RuleTarget, ...]:
    """Return the classes that a rule of kind "label" tests.

    A label of several heads is tested in each. UsageError when the model has no such label, or
    when the rule's ``until`` is above the threshold.
    """
    wanted = [k for k, label in enumerate(classes.labels) if folded(label) == folded(rule.label)]
    exact = [k for k in wanted if composed(classes.labels[k]) == rule.label]
    indices = exact or wanted
    if rule.label == ANY:
        indices = [k for k in range(len(classes.labels)) if k not in classes.background]
    where = f"{rule.where} {rule.text!r}"
    if not indices:
        known = ", ".join(sorted(set(classes.labels)))
        raise UsageError(
            f"the model has no label {rule.label!r}", where=where, hint=f"it has {known}"
        )
    chosen = []
    for k in indices:
        above = classes.thresholds[k] if rule.above is None else rule.above
        until = LOW * above if rule.until is None else rule.until
        if until > above:
            raise UsageError(f"'until' is above the firing probability ({above:g})", where=where)
        chosen.append(RuleTarget(k, classes.labels[k], above, until))
    return tuple(chosen)


@dataclass(frozen=True)
class _Token:
    kind: Literal["quoted", "operator", "word", "end"]
    text: str
    at: int  # place in the rule, from 0


def _alternatives(words: Sequence[str]) -> str:
    """Return the clauses that may follow, by their first words, for a message."""
    *names, last = (f"'{_FIRST_WORDS.get(word, word)}'" for word in words)
    return f"{', '.join(names)} or {last}" if names else last


class _Parser:
    """Reads one rule from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = composed(text), where
        self._tokens = list(self._split())
        self._next = 0

    def rule(self) -> Rule:
        first = self._tokens[0]
        if match := _COUNT.match(self._text):
            return self._counted(match)
        label = self._label()
        if label.endswith(" not") and self._peek.text == "in":
            label, absent = label.removesuffix(" not"), True
        else:
            absent = False
        if self._peek.kind == "word" and self._peek.text in PLACED:
            return self._placed(label, absent)
        if first.kind == "word" and label == "gap":
            self._take("operator", ">=", "'>=' and a time: gap>=10s")
            at = self._peek
            for_s = self._time()
            if for_s <= 0:
                raise self._error(at, "a time above 0")
            return self._ended(Rule(self._text, "gap", for_s=for_s))
        if first.kind == "word" and label == "lost":
            return self._ended(Rule(self._text, "lost"), "for")
        if first.kind == "word" and label == "level" and self._peek.kind == "operator":
            return self._level()
        if first.kind == "word" and label == "any sound":
            return self._ended(Rule(self._text, "sound", "any sound"), "for")
        above, strict = None, False
        if self._peek.kind == "operator":
            strict = self._advance().text == ">"
            above = self._probability()
        rule = Rule(self._text, "label", label, above, strict)
        return self._ended(rule, "for", "until")

    def _placed(self, label: str, absent: bool) -> Rule:
        """Return the rest of "LABEL in ..." and "LABEL crosses ..."."""
        if self._advance().text == "in":
            return self._ended(
                Rule(self._text, "in", label, place=self._name(), absent=absent), "for"
            )
        rule = Rule(self._text, "crosses", label, place=self._name(), every_s=0.0)
        word = self._peek.text
        if self._peek.kind == "word" and (word == "in" or word == "out"):
            self._advance()
            rule = replace(rule, direction=word)
        return self._ended(rule)

    def _level(self) -> Rule:
        """Return the rest of "level >= 70dB"."""
        self._take("operator", ">=", "'>=' and a level: level>=70dB")
        token = self._take("word", None, "a level, as in 70dB")
        text = token.text
        if self._peek.text.lower() in ("db", "dba"):
            text += self._advance().text
        match = _LEVEL.fullmatch(text)
        try:
            level = float(match["number"]) if match is not None else math.nan
        except ValueError:
            level = math.nan
        if match is None or not abs(level) <= _LOUDEST_DB:
            raise self._error(token, "a level, as in 70dB or -30dBA")
        unit: Literal["dB", "dBA"] = "dBA" if (match["unit"] or "").lower() == "dba" else "dB"
        return self._ended(Rule(self._text, "level", "level", level=level, unit=unit), "for")

    def _counted(self, match: re.Match[str]) -> Rule:
        """Return the rule whose count(...) was matched."""
        inner = _Parser(match["what"], self._where)
        label = inner._label()
        zone = ""
        if inner._peek.kind == "word" and inner._peek.text == "in":
            inner._advance()
            zone = inner._name()
        if inner._peek.kind != "end":
            raise inner._error(inner._peek, "'in' and a zone, or ')'")
        self._next = next(k for k, token in enumerate(self._tokens) if token.at >= match.end())
        strict = self._advance().text == ">"
        token = self._take("word", None, "a number, as in 10")
        if not token.text.isdecimal() or not 0 < int(token.text) + strict <= _MOST:
            raise self._error(token, "an integer of at least 1")
        rule = Rule(self._text, "count", label, place=zone, number=int(token.text) + strict)
        return self._ended(rule, "for")

    def _ended(self, rule: Rule, *allowed: str) -> Rule:
        """Return ``rule`` with the clauses up to its end: ``allowed`` ones and "every"."""
        left = [
            *allowed,
            "every",
            "between",
            "on",
            "not",
            "at",
            *([] if rule.kind == "crosses" else ["again"]),
        ]
        found: dict[str, Any] = {}
        while self._peek.kind != "end":
            word = self._advance()
            if word.kind != "word" or word.text not in left:
                raise self._error(word, _alternatives(left))
            left.remove(word.text)
            found |= self._clause(word.text)
        names = ("begin", "end", "days", "without")
        days = {name: found.pop(name) for name in names if name in found}
        if days:
            found["times"] = DayTimes(**days)
        if found.get("again_s") is not None:
            found.setdefault("every_s", min(rule.every_s, found["again_s"]))
        return replace(rule, **found)

    def _clause(self, word: str) -> dict[str, Any]:
        """Return the fields of the clause that begins with a word, and takes the rest of it."""
        if word == "until":
            return {"until": self._probability()}
        if word in ("for", "every"):
            return {f"{word}_s": self._time()}
        if word == "between":
            token = self._take("word", None, "times of day, as in 22:00-06:00")
            span = parse_range(token.text)
            if span is None:
                raise self._error(token, "times of day, as in 22:00-06:00")
            return {"begin": span[0], "end": span[1]}
        if word == "on":
            token = self._take("word", None, "days, as in Mon-Fri or Sat,Sun")
            days = parse_days(token.text)
            if days is None:
                raise self._error(token, "days, as in Mon-Fri or Sat,Sun")
            return {"days": days}
        if word == "not":
            return self._dates()
        if word == "at":
            return self._limit()
        self._take("word", "after", "'after' and a time: again after 10min")
        return {"again_s": self._time()}

    def _dates(self) -> dict[str, Any]:
        """Return the fields of "not on 2026-12-24..2026-12-26"."""
        self._take("word", "on", "'on' and dates: not on 2026-12-24..2026-12-26")
        token = self._take("word", None, "dates, as in 2026-12-24 or 2026-12-24..2026-12-26")
        dates = parse_dates(token.text)
        if dates is None:
            raise self._error(token, "dates, as in 2026-12-24 or 2026-12-24..2026-12-26")
        return {"without": dates}

    def _limit(self) -> dict[str, Any]:
        """Return the fields of "most N an hour"."""
        wanted = "'most', a number and a time: at most 3 an hour"
        self._take("word", "most", wanted)
        number = self._take("word", None, "a number, as in: at most 3 an hour")
        if not number.text.isdecimal() or not 0 < int(number.text) <= _MOST:
            raise self._error(number, "an integer of at least 1")
        for word in ("a", "an", "per"):
            if self._peek.text == word:
                self._advance()
                break
        token = self._take("word", None, "'a minute', 'an hour' or 'a day'")
        if token.text not in _SPANS_S:
            raise self._error(token, "'a minute', 'an hour' or 'a day'")
        return {"most": int(number.text), "most_s": _SPANS_S[token.text]}

    @property
    def _begins_clause(self) -> bool:
        """Whether a clause begins here. Labels may have the first words of some: put on jacket."""
        after = self._tokens[min(self._next + 1, len(self._tokens) - 1)].text
        return {
            "between": after[:1].isdigit(),
            "on": parse_days(after) is not None,
            "not": after == "on",
            "at": after == "most",
            "again": after == "after",
        }.get(self._peek.text, self._peek.text in _WORDS)

    def _name(self) -> str:
        """Return the name of a zone or line."""
        return self._label("the name of a zone or line", ("out",))

    def _label(self, wanted: str = "a label, 'gap' or 'lost'", ends: Sequence[str] = ()) -> str:
        if self._peek.kind == "quoted":
            label = self._advance().text
        else:
            words = []
            while self._peek.kind == "word" and not (
                self._begins_clause or self._peek.text in ends
            ):
                words.append(self._advance().text)
            label = " ".join(words)
        if not label:
            raise self._error(self._peek, wanted)
        return label

    def _probability(self) -> float:
        token = self._take("word", None, "a probability, as in 0.8")
        try:
            value = float(token.text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise self._error(token, "a probability from 0 to 1")
        return value

    def _time(self) -> float:
        token = self._take("word", None, "a time, as in 2s")
        try:
            return parse_time(token.text)
        except UsageError:
            raise self._error(token, "a time, as in 2s or 1h30m") from None

    def _take(self, kind: str, text: str | None, wanted: str) -> _Token:
        token = self._advance()
        if token.kind != kind or text not in (None, token.text):
            raise self._error(token, wanted)
        return token

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at, end = 0, len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._error(_Token("end", "", at), "a closing quote")
            quoted, operator, word = match.groups()
            begin = match.end() - len(quoted or operator or word)
            if quoted:
                tokens.append(_Token("quoted", quoted[1:-1], begin))
            elif operator:
                tokens.append(_Token("operator", operator, begin))
            else:
                tokens.append(_Token("word", word, begin))
            at = match.end()
        return [*tokens, _Token("end", "", end)]

    def _error(self, token: _Token, wanted: str) -> UsageError:
        instead = f", not {self._text[token.at :].split()[0]!r}" if token.kind != "end" else ""
        return UsageError(
            f"expected {wanted}{instead}",
            where=f"{self._where} {self._text!r}, column {token.at + 1}",
            hint="as in: fall>=0.8 for 2s",
        )
