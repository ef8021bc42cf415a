"""Energy from files as the kernel has them: counters that start again, rails, missing rights."""

from __future__ import annotations

from pathlib import Path

import pytest

from costream.core import energy
from costream.core.energy import EnergyMeter


def zone(root: Path, number: str, name: str, uj: int, range_uj: int = 1_000_000) -> Path:
    folder = root / "class" / "powercap" / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(name + "\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (folder / "energy_uj").write_text(f"{uj}\n")
    return folder / "energy_uj"


def rail(root: Path, device: str, number: int, name: str, mv: int, ma: int | None) -> Path:
    folder = root / "bus/i2c/drivers/ina3221" / device / "hwmon/hwmon3"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"in{number}_label").write_text(name + "\n")
    (folder / f"in{number}_input").write_text(f"{mv}\n")
    if ma is not None:
        (folder / f"curr{number}_input").write_text(f"{ma}\n")
    return folder / f"curr{number}_input"


def test_packages_and_memory_are_counted_once(tmp_path: Path) -> None:
    package = zone(tmp_path, "0", "package-0", 100)
    memory = zone(tmp_path, "0:1", "dram", 5)
    zone(tmp_path, "0:0", "core", 70)
    zone(tmp_path, "1", "psys", 500)
    meter = EnergyMeter(tmp_path)
    assert meter.parts == ("package-0", "dram")
    assert meter.read() == 0
    package.write_text("900100\n")
    memory.write_text("200005\n")
    assert meter.read() == pytest.approx(1.1)


def test_a_counter_that_starts_again_goes_on(tmp_path: Path) -> None:
    counter = zone(tmp_path, "0", "package-0", 999_000)
    meter = EnergyMeter(tmp_path)
    counter.write_text("1000\n")
    assert meter.read() == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("rails", "parts", "watts"),
    [
        ([("VDD_IN", 5000, 2000), ("VDD_CPU", 5000, 1000)], ("VDD_IN",), 10.0),
        ([("VDD_GPU", 4000, 500), ("VDD_CPU", 5000, 1000)], ("VDD_GPU", "VDD_CPU"), 7.0),
        ([("VDD_GPU", 4000, 500), ("sum", 5000, None)], ("VDD_GPU",), 2.0),
    ],
)
def test_rails_are_integrated(
    rails: list[tuple[str, int, int | None]],
    parts: tuple[str, ...],
    watts: float,
    tmp_path: Path,
) -> None:
    for k, (name, mv, ma) in enumerate(rails):
        rail(tmp_path, "1-0040", k + 1, name, mv, ma)
    now = iter([10.0, 12.0, 15.0])
    meter = EnergyMeter(tmp_path, lambda: next(now))
    assert meter.parts == parts
    assert meter.read() == pytest.approx(2 * watts)
    assert meter.read() == pytest.approx(5 * watts)


@pytest.mark.parametrize("text", ["", "x\n", None])
def test_what_cannot_be_read_is_said(text: str | None, tmp_path: Path) -> None:
    counter = zone(tmp_path, "0", "package-0", 5)
    counter.unlink() if text is None else counter.write_text(text)
    meter = EnergyMeter(tmp_path)
    assert meter.read() is None
    assert meter.parts == ()
    assert meter.missing


def test_a_machine_that_reports_nothing(tmp_path: Path) -> None:
    meter = EnergyMeter(tmp_path)
    assert meter.read() is None
    assert meter.missing == "this machine does not report it (RAPL, INA3221)"


def test_a_counter_that_goes_away_ends_the_measurement(tmp_path: Path) -> None:
    counter = zone(tmp_path, "0", "package-0", 5)
    meter = EnergyMeter(tmp_path)
    counter.unlink()
    assert meter.read() is None
    assert meter.read() is None


def test_records_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import costream as library
    from kit.paths import ROOT

    counter = zone(tmp_path, "0", "package-0", 0, 10**9)
    monkeypatch.setattr(energy, "SYSFS", tmp_path)
    used, joules = 0, []
    with library.detect(ROOT / "samples" / "moves.csv", model="costgcn-2d", end=2) as run:
        for record in run:
            if record.type == "compute":
                joules.append(record.joules)
                used += 500_000
                counter.write_text(f"{used}\n")
        assert joules[1:] == pytest.approx([0.5] * (len(joules) - 1))
        assert run.summary is not None
        assert run.summary.joules == pytest.approx(0.5 * (len(joules) - 1))
