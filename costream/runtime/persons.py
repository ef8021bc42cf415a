"""Persons of a stream as rows of one batch: a network for one person follows each of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from costream.core.records import Data, SkeletonFrame
from costream.models.base import Cost, Looks, MayRun, Model, NetworkRun, PersonModel, StepResult
from costream.models.persons import PersonsModel
from costream.options.options import Options
from costream.runtime.counters import add_costs
from costream.runtime.joints import MOST, JointFinder, SkeletonFinder

if TYPE_CHECKING:
    from torch import Tensor

    from costream.nn.state import State

# Scores of a step [C] by number of the person; None: of the stream.
PersonScores: TypeAlias = Mapping["int | None", npt.NDArray[np.floating]]
GONE_S = 2.0  # a person who was not seen for this long has left


class RowFinder(Protocol):
    """Finds the persons in the steps of one stream.

    ``present``: numbers of the persons in the newest step, in the order in which they get rows if
    there are too many. ``known``: numbers of all persons who may still be there. ``skeletons``: of
    the newest step, if it finds them. ``ran``: as of ``models.base.PersonFinder``. ``followed`` and
    ``lost``: as of ``models.base.Looks``.
    """

    keeps_row: bool  # whether one row remains while nobody is there, so that each step has a result

    @property
    def skeletons(self) -> SkeletonFrame | None: ...  # noqa: D102

    @property
    def ran(self) -> NetworkRun | None: ...  # noqa: D102

    @property
    def present(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def known(self) -> Container[int]: ...  # noqa: D102

    @property
    def followed(self) -> Sequence[tuple[float, float, float, float]]: ...  # noqa: D102

    @property
    def lost(self) -> bool: ...  # noqa: D102

    def begin(self, newest: int) -> None:
        """Continue numbering after ``newest``; call it before the first step."""

    def govern(self, may: Callable[[float, float], bool]) -> None:
        """Ask ``may`` before a network runs; see ``models.base.PersonFinder``."""

    def find(self, item: Data, scene: StepResult | None) -> StepResult | None:
        """Find the persons in the next item.

        ``scene``: the result of a model for the whole picture or its sound, if there is one.
        Return that result, with the numbers of the persons in it.
        """

    def item(self, number: int) -> Data:
        """Return the network's input for a person of the newest step."""

    def close(self) -> None:
        """Forget all persons, but not which numbers were used."""


class PersonRows:
    """The state of a model for one person, with a row for each person who is there.

    ``numbers``: number of the person in each row. ``state``: the state of the rows; None without
    rows. If the finder ``keeps_row``, there is a row from the first step on, and the row of the
    last person remains when nobody is there. With a network that has strides, new persons join at
    its next output.
    """

    def __init__(self, model: Model, finder: RowFinder | None = None) -> None:
        self._model = model
        self._finder: RowFinder = finder or SkeletonFinder(model)
        self._newest = 1  # number of the person who came last
        self._anybody_s = -math.inf  # when somebody was seen last
        self.numbers: list[int] = []
        self._forget()

    def begin(self, newest: int) -> None:
        """Continue numbering after ``newest`` of an earlier watch; before the first step."""
        self._finder.begin(newest)
        self._newest = newest + 1

    def reset(self) -> None:
        """Forget all persons, as at a gap."""
        self._finder.close()
        self._forget()

    def _forget(self) -> None:
        self.numbers = []
        self._seen_s: list[float] = []
        self.state: State | None = None
        self._steps = 0  # of the rows

    @property
    def position(self) -> dict[str, Any]:
        """Everything but ``state``, as JSON values, for ``resume``."""
        return {
            "numbers": self.numbers,
            "seen_s": self._seen_s,
            "steps": self._steps,
            "newest": self._newest,
            "anybody_s": None if math.isinf(self._anybody_s) else self._anybody_s,
        }

    def resume(self, position: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
        """Continue from a position and the tensors of the state. Raises KeyError or ValueError."""
        self.numbers, self._seen_s = list(position["numbers"]), list(position["seen_s"])
        self._steps, self._newest = position["steps"], position["newest"]
        anybody_s = position["anybody_s"]
        self._anybody_s = -math.inf if anybody_s is None else anybody_s
        self.state = self._model.init_state(len(self.numbers))
        self.state.load_tensors(tensors)

    def step(
        self, item: Data, scene: StepResult | None = None, looks: Looks | None = None
    ) -> StepResult:
        """Return the results of a step, a row for each person; ``item``: skeletons or a frame.

        ``scene``: the result of a model for the whole picture or its sound, if there is one. Then
        it is returned with the rows as its ``people`` and the costs of both. ``looks``: of its
        detector, if it does not look at each picture.
        """
        began = time.perf_counter()
        scene = self._finder.find(item, scene)
        if looks is not None:
            looks.followed, looks.lost = self._finder.followed, looks.lost or self._finder.lost
        self._change(item.time_s)
        found_s = time.perf_counter() - began
        rows = [self._finder.item(number) for number in self.numbers]
        people = self._model.step(rows, self.state) if rows else None
        self._steps += bool(rows)
        if people is not None:
            people = replace(people, frontend_s=people.frontend_s + found_s)
            if self._finder.skeletons is not None:
                people = replace(people, skeletons=(self._finder.skeletons,))
        elif scene is not None:
            scene = replace(scene, frontend_s=scene.frontend_s + found_s)
        result = people if scene is None else _together(scene, people)
        assert result is not None
        if result.costs is not None:
            result = self._with_costs(result, people, found_s)
        return replace(
            result,
            persons=tuple(self.numbers),
            nobody=item.time_s - self._anybody_s > GONE_S,
        )

    def _with_costs(
        self, result: StepResult, people: StepResult | None, found_s: float
    ) -> StepResult:
        """Return the result of a stream with what its persons took."""
        assert result.costs is not None
        name, ran = self._model.info.card.name, self._finder.ran
        finding, dense = (0, 0) if ran is None else (ran.macs, ran.dense_macs)
        cost = Cost(finding, found_s)
        if people is not None:
            cost = Cost(finding + people.macs, people.frontend_s + people.network_s)
        why = result.ran
        if ran is not None and ran.reason is not None and why is not None:
            why = ({**why[0], name: ran.reason},)
        costs = {**result.costs, name: cost}
        macs, dense_macs = result.macs + finding, result.dense_macs + dense
        return replace(result, macs=macs, dense_macs=dense_macs, costs=costs, ran=why)

    def govern(self, may: MayRun) -> None:
        """Ask ``may`` whether the budget admits that joints are computed."""
        self._finder.govern(partial(may, self._model.info.card.name))

    def _change(self, time_s: float) -> None:
        """Add rows of new persons, and remove rows of persons who have left."""
        finder, present = self._finder, self._finder.present
        for row, number in enumerate(self.numbers):
            if number in present:
                self._seen_s[row] = time_s
        if present:
            self._newest, self._anybody_s = max(self._newest, *present), time_s
        stay = [
            row
            for row, number in enumerate(self.numbers)
            if number in finder.known and time_s - self._seen_s[row] <= GONE_S
        ]
        # A row that began at another step of a stride would differ from a new stream.
        may_join = self._steps % self._model.info.stride == 0
        new = [n for n in present if n not in self.numbers and may_join][: MOST - len(stay)]
        if not stay and not new and finder.keeps_row:
            # Nobody is there: the row of the person who left last remains.
            stay = sorted(range(len(self.numbers)), key=lambda row: self._seen_s[row])[-1:]
            new = [] if stay else [self._newest]
        if len(stay) < len(self.numbers) and self.state is not None:
            self.state = self.state.take(stay) if stay else None
            self._steps *= bool(stay)
        fresh = [self._model.init_state(1) for _ in new]
        if fresh:
            states = fresh if self.state is None else [self.state, *fresh]
            self.state = type(states[0]).cat(states)
        self.numbers = [*(self.numbers[row] for row in stay), *new]
        self._seen_s = [*(self._seen_s[row] for row in stay), *(time_s for _ in new)]


def person_rows(model: Model, options: Options) -> PersonRows:
    """Return the rows for the persons of one stream of a model that follows them."""
    if not isinstance(model, PersonsModel):
        return PersonRows(model)
    if not model.boxes:
        return PersonRows(model.person)
    from costream.runtime.crops import CropFinder

    assert model.person.info.box is not None
    threshold_of = options.timeline(model.stream.info.heads[0].card).threshold_of
    detector = model.stream.info.heads[0].card.name
    if not model.crops:
        person = cast(PersonModel, model.person)
        joints = JointFinder(person.person_finder(MOST, detects=False), detector, threshold_of)
        return PersonRows(person, joints)
    return PersonRows(model.person, CropFinder(model.person.info.box, detector, threshold_of))


def _together(scene: StepResult, people: StepResult | None) -> StepResult:
    """Return the result of a stream with the result of its persons and the costs of both."""
    if people is None:
        return scene
    return replace(
        scene,
        macs=scene.macs + people.macs,
        dense_macs=scene.dense_macs + people.dense_macs,
        frontend_s=scene.frontend_s + people.frontend_s,
        network_s=scene.network_s + people.network_s,
        network_macs=add_costs(scene.network_macs, people.network_macs),
        network_dense_macs=add_costs(scene.network_dense_macs, people.network_dense_macs),
        skeletons=people.skeletons,
        people=people,
    )
