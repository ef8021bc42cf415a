"""``costream batch``: plan, run, keep the journal, write the tables, return the exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from costream.core.errors import CostreamError, ExitCode, SourceError
from costream.core.formatting import clean, counted, listed
from costream.core.hysteresis import match_labels
from costream.core.settings import AUTO
from costream.core.urls import is_store_url
from costream.core.user_code import code_files
from costream.models.catalogue import check_licence
from costream.models.identity import identify
from costream.options.options import Options
from costream.runtime.batch.folders import Outcome, failure
from costream.runtime.batch.inputs import Inputs, collect
from costream.runtime.batch.job import BatchJob, discard, record_path, remove_copies
from costream.runtime.batch.journal import BatchJournal, JournalEntry
from costream.runtime.batch.plan import BatchPlan, check_folder, identity, make_plan, remove_results
from costream.runtime.batch.pool import Pool, Progress, auto_jobs
from costream.runtime.batch.ray_engine import RayEngine
from costream.runtime.batch.run_input import preview
from costream.runtime.batch.stores import fingerprint
from costream.runtime.batch.tables import TABLES, MergedInput, MergedTables
from costream.runtime.budget import check_budget
from costream.runtime.logs import logging_to
from costream.runtime.model_loading import load
from costream.runtime.options import check_options
from costream.runtime.ray_cluster import require_ray
from costream.runtime.stop import StopHandler
from costream.sinks.parquet import require_parquet
from costream.sinks.registry import check_outputs
from costream.sources.features.feature_arrays import split_video
from costream.ui.console import live_allowed, print_line, stderr_console
from costream.ui.progress import BatchProgress, BatchState

log = logging.getLogger("costream")
_MOST_REASONS = 4  # for skipping inputs, shown at the end


def _check_any_exists(inputs: Inputs) -> None:
    """Raise SourceError if no input exists, before a folder is created."""
    uris = [item.uri for item in inputs.items]
    if uris and not any(is_store_url(uri) or os.path.lexists(split_video(uri)[0]) for uri in uris):
        where = listed([item.name for item in inputs.items])
        raise SourceError("no such file or folder", where=where)


def batch(options: Options, effective: Sequence[str] = ()) -> ExitCode:
    """Run the model over every input that has no results yet, and return the exit code.

    Everything is checked before the first worker starts. ``effective`` holds lines that say which
    settings are in force, shown with -v.
    """
    logged = logging_to(options.verbosity, options.color, options.log_file, effective)
    with StopHandler() as stop, logged:
        return _Batch(options, stop).go()


class _Batch:
    def __init__(self, options: Options, stop: StopHandler) -> None:
        self.options, self.stop = options, stop
        check_licence(options.model, options.weights, options.licence)
        self.weights = identify(options.model, options.weights, options.licence)
        found = self.weights
        check_options(
            options,
            finds_objects=found.finds_objects,
            gated=found.gated,
            by_place=found.by_place,
            learned=found.learned,
        )
        if options.budget is not None and not (found.gated or found.looks):
            check_budget(load(options), options.budget)
        if options.only:
            match_labels(options.only, self.weights.events)
        self.work = BatchJob(_absolute(options), self.weights.weights_sha256, code_files())
        self.output = self.work.folder
        self.journal = BatchJournal(self.output)
        self.fatal: CostreamError | None = None
        self.failed = False

    def go(self) -> ExitCode:
        options = self.options
        if options.engine == "ray":
            require_ray()
        if options.predictions == "parquet":
            require_parquet()
        check_outputs((), self.output, "", overwrite=True)
        include, exclude = options.include, options.exclude
        stdin = None if sys.stdin is None else sys.stdin.buffer
        inputs = collect(
            options.sources, self.output, include=include, exclude=exclude, stdin=stdin
        )
        inputs = Inputs(inputs.root, inputs.items[: options.limit])
        _check_any_exists(inputs)
        mark = identity(self.work, self.weights, inputs.root, content=options.hash)
        self.journal.read()
        if not options.overwrite:
            check_folder(self.journal, mark, inputs.items, self.work, keep=options.skip_existing)
        if options.dry_run:
            _list(self._plan(inputs), self.work)
            return ExitCode.OK
        self.journal.lock()
        try:
            self.journal.read()  # again: another batch may just have ended
            old = list(self.journal.entries.values()) if options.overwrite else []
            plan = self._plan(inputs)
            remove_results(self.output, old)
            return self._run(plan, mark)
        finally:
            remove_copies(self.work)
            self.journal.close()

    def _plan(self, inputs: Inputs) -> BatchPlan:
        if self.options.overwrite:
            self.journal.entries.clear()
        return make_plan(inputs.items, self.journal, self.output, content=self.options.hash)

    def _run(self, plan: BatchPlan, mark: dict[str, Any]) -> ExitCode:
        for task in plan.tasks:
            self.journal.entries.pop(task.name, None)
        self.journal.open(mark)
        sizes = {name: print_.size for name, print_ in plan.prints.items()}
        files = len(plan.tasks) + len(plan.settled)
        state = BatchState(files=files, size=sum(sizes.values()))
        color, quiet = self.options.color, self.options.quiet
        live = live_allowed(sys.stderr, quiet=quiet, no_live=not self.options.live, flag=color)
        progress = BatchProgress(stderr_console(color), state, live=live, quiet=quiet)
        with self.stop.while_running(lambda: None):
            for entry in plan.settled:
                state.count(entry.outcome.status)
                self._settle(entry)
            try:
                self._work(plan, state, progress)
            except CostreamError as error:
                self.fatal = error
            complete = all(item.name in self.journal.entries for item in plan.inputs)
            code = self._verdict(plan, complete)
            self._tables(plan, {**mark, "complete": complete, "exit": int(code)})
        kept = f"  {plan.kept} kept" if plan.kept else ""
        if not quiet:
            self._explain(plan)
        progress.close(f"{state.line()}{kept}{'' if complete else '  incomplete'}")
        if self.fatal is not None:
            raise self.fatal
        return code

    def _work(self, plan: BatchPlan, state: BatchState, progress: BatchProgress) -> None:
        """Run the tasks and record their outcomes."""
        if not plan.tasks or self._stopped():
            return
        with closing(self._engine().run(plan.tasks, self._stopped)) as events:
            for event in events:
                if isinstance(event, Progress):
                    state.running[event.name] = event.media_s
                elif isinstance(event, Outcome):
                    outcome = self._checked(event, plan)
                    self._count(outcome, plan, state)
                    if outcome.fatal:
                        discard(self.work, outcome.name)
                        raise FatalError(outcome)
                    if outcome.status != "interrupted":
                        self._settle(JournalEntry(outcome, plan.prints[outcome.name]))
                progress.show()

    def _engine(self) -> Pool | RayEngine:
        options = self.options
        if options.engine == "ray":
            return RayEngine(self.work, options.jobs, options.file_timeout_s, options.ray_address)
        jobs = options.jobs or auto_jobs(options.threads)
        return Pool(self.work, jobs, options.file_timeout_s, self.journal.descriptor)

    def _stopped(self) -> bool:
        return self.stop.requested or (self.options.fail_fast and self.failed)

    def _checked(self, outcome: Outcome, plan: BatchPlan) -> Outcome:
        """Turn the outcome into a failure if the file changed while it was read."""
        if outcome.status not in ("done", "partial"):
            return outcome
        uri, before = plan.uris[outcome.name], plan.prints[outcome.name]
        try:
            same = fingerprint(uri, content=self.options.hash, fresh=True) == before
        except OSError:
            same = False
        if same:
            return outcome
        discard(self.work, outcome.name)
        return failure(outcome.name, "the file changed while it was read")

    def _count(self, outcome: Outcome, plan: BatchPlan, state: BatchState) -> None:
        state.running.pop(outcome.name, None)
        state.done_size += plan.prints[outcome.name].size
        state.media_s += outcome.summary.get("media_s", 0.0)
        state.count(outcome.status)

    def _settle(self, entry: JournalEntry) -> None:
        """Add an entry to the journal, and log it unless the input is done."""
        outcome = entry.outcome
        self.journal.add(entry)
        if outcome.status in ("failed", "partial"):
            self.failed = True
            log.error("%s: %s", clean(outcome.name), outcome.reason)
        elif outcome.status == "skipped":
            log.info("%s: skipped: %s", clean(outcome.name), outcome.reason)

    def _explain(self, plan: BatchPlan) -> None:
        """Print why inputs were skipped, the most frequent reasons first, and the tables."""
        entries = (self.journal.entries.get(item.name) for item in plan.inputs)
        outcomes = [entry.outcome for entry in entries if entry is not None]
        reasons = Counter(o.reason for o in outcomes if o.status == "skipped").most_common()
        console = stderr_console(self.options.color)
        for reason, count in reasons[:_MOST_REASONS]:
            print_line(console, clean(f"{count} skipped: {reason}"))
        if len(reasons) > _MOST_REASONS:
            rest = sum(count for _, count in reasons[_MOST_REASONS:])
            print_line(console, f"{rest} skipped for other reasons, see summary.json")
        unfamiliar = [s for o in outcomes if (s := o.summary.get("unfamiliar_s"))]
        if unfamiliar:
            inputs = counted(len(unfamiliar), "input")
            print_line(console, f"unfamiliar for {sum(unfamiliar):.1f} s of {inputs}: compute.csv")
        written = [name for name in TABLES if (self.output / name).is_file()]
        print_line(console, clean(f"wrote {', '.join(written)} in {self.output}"))

    def _verdict(self, plan: BatchPlan, complete: bool) -> ExitCode:
        """Return the overall exit code: that of the failures if all failed alike, else PARTIAL."""
        if self.fatal is not None:
            return self.fatal.exit_code
        if self.stop.exit_code is not None:
            return self.stop.exit_code
        entries = self.journal.entries
        outcomes = [entries[i.name].outcome for i in plan.inputs if i.name in entries]
        codes = {o.exit for o in outcomes if o.status in ("failed", "partial")}
        done = any(o.status == "done" for o in outcomes)
        if not codes and not done and complete:
            log.error("no input fits this model" if plan.inputs else "no files found")
            return ExitCode.INPUT
        if not codes:
            return ExitCode.OK
        return ExitCode(codes.pop()) if not done and len(codes) == 1 else ExitCode.PARTIAL

    def _tables(self, plan: BatchPlan, head: dict[str, Any]) -> None:
        """Write the tables over all inputs, in their order."""
        tables = MergedTables(
            self.output,
            self.options.predictions,
            objects=self.weights.finds_objects,
            classes=self.weights.classifies,
            several=self.options.model == AUTO,
        )
        tables.open()
        for item in plan.inputs:
            entry = self.journal.entries.get(item.name)
            if entry is None:
                tables.add(MergedInput(item.name, "not reached"))
                continue
            it = entry.outcome
            records = record_path(self.work, it.name) if it.files else None
            tables.add(
                MergedInput(it.name, it.status, it.reason, it.exit, it.kind, it.summary, records)
            )
        tables.close(head)


class FatalError(CostreamError):
    """An error that concerns every input: a full disk, a model without classes."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.exit_code = ExitCode(outcome.exit)


def _absolute(options: Options) -> Options:
    """Return the options with absolute paths, valid in every process and on every run."""
    model, layout = options.model, options.layout
    return replace(
        options,
        model=os.path.abspath(model) if os.path.isfile(model) else model,
        weights=None if options.weights is None else os.path.abspath(options.weights),
        layout=os.path.abspath(layout) if layout and os.path.isfile(layout) else layout,
        output=os.path.abspath(str(options.output)),
    )


def _list(plan: BatchPlan, work: BatchJob) -> None:
    """Print the planned action for each input: a keyword, its name, and the reason."""
    tasks = {task.name: task for task in plan.tasks}
    settled = {entry.outcome.name: entry.outcome for entry in plan.settled}
    for item in plan.inputs:
        task = tasks.get(item.name)
        outcome = settled.get(item.name) if task is None else preview(task, work)
        if outcome is not None:
            print(outcome.status, clean(item.name), outcome.reason, sep="\t")
        else:
            print("keep" if task is None else "run", clean(item.name), sep="\t")
