"""Choice of the network that finds the joints of persons in video."""

from __future__ import annotations

from costream.core.errors import UsageError
from costream.models.base import Model
from costream.models.persons import PersonsModel
from costream.models.pose.weights import POSES
from costream.models.streaming import StreamingModel


def find_joints_with(model: Model, pose: str) -> None:
    """Make a model of skeletons find joints in video with the network ``pose``: a key of ``POSES``.

    Raises UsageError for other models and names, ModelError if the weights are missing or do not
    find what the model takes.
    """
    if pose not in POSES:
        raise UsageError(f"{pose!r} is not one of {', '.join(POSES)}", where="--pose")
    person = model.person if isinstance(model, PersonsModel) else model
    if not isinstance(person, StreamingModel) or person.info.persons is None:
        hint = "leave it out, or use a model of skeletons, such as costgcn"
        raise UsageError(f"{model.info.card.name} does not take joints", where="--pose", hint=hint)
    person.find_joints_with(POSES[pose])
