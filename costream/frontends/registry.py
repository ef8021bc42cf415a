"""Registry of frontends by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from costream.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

# name -> "module:Class"; a frontend has takes ("video", "skeleton" or "audio"), token_width,
# init_state, forward_step and count_macs; one for video or skeletons also box and prepare, see
# frontends/images.py and frontends/joints.py; one that takes several frames per step also frames,
# and its prepare gets them as VideoFrames, see frontends/tsn.py; one for audio sample_rate_hz,
# block (samples per step), forward_steps and newest_spectrum, see frontends/audio.py; one for both
# the attributes of those for video, sample_rate_hz and block, see frontends/audiovisual.py. That of
# token-gated models has no state, only takes, box, prepare, forward and count_macs, see
# frontends/pixels.py.
FRONTENDS = {
    "tdn": "costream.frontends.tdn:TemporalDifferenceNet",
    "tsn": "costream.frontends.tsn:TSN",
    "pixels": "costream.frontends.crops:Pixels",
    "crop": "costream.frontends.crops:CentreCrop",
    "cox3d": "costream.frontends.video3d:VideoFeatures",
    "crops": "costream.frontends.crops:Crops",
    "joints": "costream.frontends.joints:JointStreams",
    "audio": "costream.frontends.audio:ContinualAudioNet",
    "audiovisual": "costream.frontends.audiovisual:AudioVisual",
    "vggish": "costream.frontends.vggish:VGGish",
}


def frontend_class(name: str) -> type[nn.Module]:
    """Return the class of a frontend; ModelError for an unknown name."""
    if name not in FRONTENDS:
        raise ModelError(
            f"unknown frontend {name!r}",
            hint=f"known are {', '.join(FRONTENDS)}; the weights may need a newer costream",
        )
    module, _, attribute = FRONTENDS[name].partition(":")
    found: type[nn.Module] = getattr(import_module(module), attribute)
    return found


def load_frontend(name: str, **arguments: Any) -> nn.Module:
    """Return a frontend with random weights.

    Raises ModelError for an unknown name and for arguments that it does not take.
    """
    kind = frontend_class(name)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ModelError(f"frontend {name!r} does not take these arguments ({error})") from error
