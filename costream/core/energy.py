"""Energy that the processors of this machine use, where the kernel reports it (Linux).

Intel and AMD: RAPL, in ``/sys/class/powercap``. NVIDIA Jetson: INA3221 power monitors. Both measure
everything that runs on the machine, not one process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?$")  # AMD's zones have the same names
_COUNTED = ("package", "dram")  # the other zones are parts of a package, or contain it
_WHOLE = "VDD_IN"  # a rail that feeds all the others
READABLE = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"


@dataclass
class _Part:
    """A counter, or a rail that is measured in watts."""

    name: str
    read: Callable[[], float]  # joules since some time, or watts
    range_j: float | None = None  # at which a counter starts again from 0; None: watts
    last: float = 0.0


class EnergyMeter:
    """Energy since the meter was made, in joules.

    ``parts``: names of what is measured. ``missing``: the reason if nothing is; then ``read``
    returns None. ``root``: the folder in which sysfs is mounted. ``clock``: seconds.
    """

    def __init__(
        self, root: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._parts, self.missing = _find_parts(root or SYSFS)
        self.parts = tuple(part.name for part in self._parts)
        self._total_j, self._time_s = 0.0, clock()
        for part in self._parts:
            part.last = part.read()

    def read(self) -> float | None:
        """Return the joules since the meter was made; None if they cannot be measured.

        Watts are integrated by the trapezoidal rule between two readings.
        """
        if not self._parts:
            return None
        now_s = self._clock()
        try:
            for part in self._parts:
                value = part.read()
                if part.range_j is None:
                    self._total_j += (value + part.last) / 2 * (now_s - self._time_s)
                else:
                    used = value - part.last
                    self._total_j += used if used >= 0 else used + part.range_j
                part.last = value
        except (OSError, ValueError) as error:
            self._parts, self.parts, self.missing = (), (), str(error)
            return None
        self._time_s = now_s
        return self._total_j


def _find_parts(root: Path) -> tuple[Sequence[_Part], str]:
    """Return what can be measured, or the reason why nothing can."""
    zones = sorted(
        zone for zone in (root / "class/powercap").glob("intel-rapl:*") if _ZONE.match(zone.name)
    )
    try:
        parts = [part for zone in zones for part in _counter(zone)]
        parts = parts or _rails(root)
        for part in parts:
            part.read()
    except PermissionError as error:
        return (), f"{error.filename} is not readable for you"
    except (OSError, ValueError) as error:
        return (), str(error)
    return parts, "" if parts else "this machine does not report it (RAPL, INA3221)"


def _counter(zone: Path) -> list[_Part]:
    name = (zone / "name").read_text().strip()
    if not name.startswith(_COUNTED):
        return []
    range_j = 1e-6 * int((zone / "max_energy_range_uj").read_text())
    return [_Part(name, lambda: 1e-6 * int((zone / "energy_uj").read_text()), range_j)]


def _rails(root: Path) -> list[_Part]:
    parts = []
    for label in sorted((root / "bus/i2c/drivers/ina3221").glob("*/hwmon/hwmon*/in[1-3]_label")):
        name, folder = label.read_text().strip(), label.parent
        volts, amperes = (folder / f"{k}{label.name[2]}_input" for k in ("in", "curr"))
        if amperes.exists():
            parts.append(_Part(name, _watts(volts, amperes)))
    whole = [part for part in parts if part.name == _WHOLE]
    return whole or parts


def _watts(volts: Path, amperes: Path) -> Callable[[], float]:
    """Return a function that reads a rail: files in millivolts and milliamperes."""
    return lambda: 1e-6 * int(volts.read_text()) * int(amperes.read_text())
