"""Alert rules over files and pipes, one after the other."""

from __future__ import annotations

from functools import partial

from costream.core.errors import UsageError
from costream.core.formatting import clean
from costream.models.base import Model
from costream.options.options import Options
from costream.runtime.alerts.alerts import AlertOptions, Alerts, read_options
from costream.runtime.alerts.rules import RuleLabels
from costream.runtime.persons import PersonScores
from costream.runtime.pipeline import StepListener
from costream.runtime.recorder import StreamRecorder
from costream.ui.console import print_line, stderr_console


class AlertRules:
    """The rules of ``--on``, evaluated separately for each source."""

    def __init__(self, options: Options, alerts: AlertOptions, classes: RuleLabels) -> None:
        self._options, self._alert_options, self._classes = options, alerts, classes
        self._alerts = Alerts()

    @classmethod
    def of(cls, options: Options, model: Model) -> AlertRules:
        """Return the rules of the options. Raises UsageError if one does not fit the model."""
        alerts = read_options(
            {key: getattr(options, key) for key in ("on", "run", "post", "append", "notify")}
        )
        for rule in alerts.on:
            if rule.kind != "label":
                what = f"{rule.text!r}: only rules about labels apply here"
                raise UsageError(what, where="--on", hint="as in 'error>=0.8 for 3s'")
            if rule.times is not None:
                what = f"{rule.text!r}: data of files have no times of day"
                raise UsageError(what, where="--on", hint="omit 'between', 'on' and 'not on'")
        heads = model.info.heads
        classes = RuleLabels.of((head.card, options.timeline(head.card)) for head in heads)
        rules = cls(options, alerts, classes)
        rules._alerts.add("", alerts, classes)  # checks the labels before anything is read
        return rules

    def listener(self, name: str, recorder: StreamRecorder) -> StepListener:
        """Return the function to call after each step of a source.

        It evaluates the rules, records and prints alerts, and starts their actions.
        """
        self._alerts.add(name, self._alert_options, self._classes)
        return partial(self._step, name, recorder)

    def close(self) -> None:
        """Finish the actions."""
        self._alerts.close()

    def _step(
        self, name: str, recorder: StreamRecorder, time_s: float, scores: PersonScores
    ) -> None:
        for alert in self._alerts.push(name, time_s, scores):
            recorder.write(alert)
            if self._options.verbosity >= 0:
                line = f"{name}: alert at {time_s:g} s: {alert.label} {alert.score:.2f}"
                console = stderr_console(self._options.color)
                print_line(console, clean(f"{line} ({alert.rule})"), "bold yellow")
