"""The frontends by name: pictures or sound in, tokens out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from costream.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

# name -> "module:Class"; a frontend has takes ("video", "skeleton" or "audio"), token_width,
# init_state, forward_step and count_macs; one for pictures or skeletons also box and prepare, see
# frontends/images.py and frontends/joints.py; one that takes several pictures a step also frames,
# and its prepare is given them as VideoFrames, see frontends/tsn.py; one for sound sample_rate_hz,
# block (samples of a step), forward_steps and newest_spectrum, see frontends/audio.py. That of
# object models has no memory, only takes, box, prepare, forward and count_macs, see
# frontends/pixels.py.
FRONTENDS = {
    "tdn": "costream.frontends.images:TemporalDifferenceNet",
    "tsn": "costream.frontends.tsn:TSN",
    "pixels": "costream.frontends.pixels:Pixels",
    "joints": "costream.frontends.joints:JointStreams",
    "audio": "costream.frontends.audio:ContinualAudioNet",
    "vggish": "costream.frontends.vggish:VGGish",
}


def frontend_class(name: str) -> type[nn.Module]:
    """Give the class of a frontend; ModelError for an unknown name."""
    if name not in FRONTENDS:
        raise ModelError(
            f"unknown frontend {name!r}",
            hint=f"known are {', '.join(FRONTENDS)}; the weights may need a newer costream",
        )
    module, _, attribute = FRONTENDS[name].partition(":")
    found: type[nn.Module] = getattr(import_module(module), attribute)
    return found


def load_frontend(name: str, **arguments: Any) -> nn.Module:
    """Give a frontend with fresh weights.

    Raises ModelError for an unknown name and for arguments that it does not take.
    """
    kind = frontend_class(name)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ModelError(f"frontend {name!r} does not take these arguments ({error})") from error
