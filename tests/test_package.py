"""The package as it is published: what is in it, and that it works outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from email import message_from_string
from importlib.util import find_spec
from pathlib import Path

import pytest

from costream.core.commit import code_version
from costream.weights_io.card import Card
from costream.weights_io.file import SUFFIX, read_card
from kit.paths import RESEARCH, ROOT, SHIPPED, WEIGHTS
from kit.program import NOWHERE, environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESEARCH_MODULE = "costream_research_weights"
SAMPLES = {"room.mp4", "corridor.mp4", "street.ogg", "band.ogg", "moves.csv"}
MISSING = [name for name in ("hatchling", "build") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install hatchling build"
)


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a command that succeeds; return what it writes on stdout."""
    done = start(command, cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shown(*command: object, cwd: Path | None = None, code: int = 0) -> str:
    """Run a command; return what it writes on stderr."""
    done = start(command, cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


def start(command: Sequence[object], cwd: Path | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env={**environment(), "PYTHONPATH": NOWHERE},
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ("--no-deps", "--no-build-isolation", "--no-index", "-q")
    run(sys.executable, "-m", "pip", "wheel", *quiet, "-w", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def research_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the weights for research, built from the sdist of their folder."""
    folder = tmp_path_factory.mktemp("research")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, RESEARCH)
    assert [path.name.partition("-")[0] for path in folder.glob("*.tar.gz")] == [RESEARCH_MODULE]
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the sdist, and of the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT)
    return folder


@pytest.mark.long
def test_the_wheel_has_what_it_runs_with_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        sizes = {info.filename: info.compress_size for info in file.infolist()}
    own = {name.removeprefix("costream/") for name in sizes if name.startswith("costream/")}
    code = {p.relative_to(ROOT / "costream").as_posix() for p in (ROOT / "costream").rglob("*.py")}
    weights = {f"weights/{p.name}" for p in WEIGHTS.iterdir() if p.is_file()}
    samples = {f"samples/{name}" for name in SAMPLES}
    assert own >= code | weights | samples | {"py.typed", "weights/LICENSES.md"}
    assert {n for n in own if n.startswith(("weights/", "samples/"))} == weights | samples
    assert {n.split("/")[0].partition("-")[0] for n in sizes} == {"costream"}
    demo = [sizes[f"costream/samples/{name}"] for name in SAMPLES - {"band.ogg"}]
    assert sum(demo) < 1_200_000


def read_cards(wheel: Path, folder: Path) -> dict[str, Card]:
    """Return the cards of the weight files in a wheel by their paths there."""
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if name.endswith(SUFFIX)]
        return {name: read_card(Path(file.extract(name, folder))) for name in names}


@pytest.mark.long
def test_the_wheel_has_free_weights_only_and_the_other_wheel_those_for_research(
    wheel: Path, research_wheel: Path, tmp_path: Path
) -> None:
    free, research = read_cards(wheel, tmp_path), read_cards(research_wheel, tmp_path)
    assert {card.licence_class for card in free.values()} == {"free"}
    assert {card.licence_class for card in research.values()} == {"research"}
    assert {Path(name).parent.as_posix() for name in free} == {"costream/weights"}
    assert {Path(name).parent.as_posix() for name in research} == {RESEARCH_MODULE}
    assert sorted(Path(n).name for n in (*free, *research)) == sorted(p.name for p in SHIPPED)
    with zipfile.ZipFile(research_wheel) as file:
        names = {
            n.removeprefix(f"{RESEARCH_MODULE}/") for n in file.namelist() if "-info/" not in n
        }
        text = file.read(f"{RESEARCH_MODULE}/LICENSES.md").decode()
    assert names == {p.name for p in RESEARCH.iterdir() if p.suffix in (".md", SUFFIX)}
    assert all(path.name in text for path in RESEARCH.glob(f"*{SUFFIX}"))


def test_all_weights_together_are_at_most_fifty_megabytes() -> None:
    assert sum(path.stat().st_size for path in SHIPPED) <= 50e6


def test_the_metadata_names_all_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (n for n in file.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = message_from_string(file.read(name).decode())
        texts = {
            each: file.read(f"{name.removesuffix('METADATA')}licenses/{each}").decode()
            for each in metadata.get_all("License-File", [])
        }
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-SA-4.0 AND MIT"
    assert texts.keys() == {"LICENSE", "weights/LICENSES.md", "costream/draw/fonts/LICENSE"}
    assert "Apache License" in texts["LICENSE"]
    assert all(path.name in texts["weights/LICENSES.md"] for path in WEIGHTS.glob("*.safetensors"))
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Author"] == "costream developers"


def test_the_extra_all_has_every_other_one() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = declared["optional-dependencies"]
    named = {name for line in extras["all"] for name in line.split("]")[0][9:].split(",")}
    assert named == extras.keys() - {"all", "test"}


@pytest.mark.long
def test_the_files_to_publish_are_small_and_pass_the_checks_of_twine(released: Path) -> None:
    pytest.importorskip("twine")
    files = sorted(released.iterdir())
    assert len(files) == 2
    assert run(sys.executable, "-m", "twine", "check", "--strict", *files).count("PASSED") == 2
    assert all(path.stat().st_size < 60e6 for path in files)


@pytest.mark.long
def test_the_sdist_builds_the_same_wheel(wheel: Path, released: Path) -> None:
    (again,), (sdist,) = released.glob("*.whl"), released.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        (record,) = (n for n in first.namelist() if n.endswith("/RECORD"))  # in another order
        assert sorted(first.read(record).splitlines()) == sorted(second.read(record).splitlines())
        assert {i.filename: i.CRC for i in first.infolist() if i.filename != record} == {
            i.filename: i.CRC for i in second.infolist() if i.filename != record
        }
    with tarfile.open(sdist) as file:
        inside = {Path(*Path(name).parts[1:]).as_posix() for name in file.getnames()}
    assert {"LICENSE", "README.md", "samples/make.py", "tests/test_package.py"} <= inside
    assert {"weights/recipes/release.py", "weights/LICENSES.md", "CHANGELOG.md"} <= inside
    assert not any(name.startswith("weights/research") for name in inside)


def link_dependencies(packages: Path) -> None:
    """Link what this process imports into ``packages``, but no part of costream.

    Files .pth are not read there: costream may be installed here to be edited.
    """
    for folder in (Path(path) for path in sys.path if Path(path).name == "site-packages"):
        for path in folder.iterdir():
            link = packages / path.name
            if not path.name.startswith("costream") and not link.exists():
                link.symlink_to(path)


@pytest.mark.long
def test_an_installed_package_works(wheel: Path, research_wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, with the dependencies of this one."""
    venv.create(tmp_path / "env", system_site_packages=True)
    scripts = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    python, costream = scripts / "python", scripts / "costream"
    site = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(python, "-c", site).strip())
    link_dependencies(packages)
    install = ("install", "-q", "--no-deps", "--no-index", "--force-reinstall")
    run(sys.executable, "-m", "pip", "--python", python, *install, wheel)
    where = run(python, "-c", "import costream; print(costream.__file__)", cwd=tmp_path)
    assert Path(where.strip()).parent == packages / "costream"

    assert run(costream, "--version", cwd=tmp_path) == f"costream {code_version()}\n"
    demo = shown(costream, "demo", "-o", "free", cwd=tmp_path)
    page = (tmp_path / "free" / "report.html").read_text("utf-8")
    assert all(label in page for label in ("person", "Siren"))
    assert "moves.csv is left out: costgcn needs pip install costream-research-weights" in demo
    missing = shown(costream, "detect", ROOT / "samples" / "moves.csv", "-m", "costgcn", code=5)
    assert missing.splitlines() == [
        "costream: costgcn is in the package of research weights: pip install"
        " costream-research-weights (in a clone: pip install ./weights/research); its licence:"
        " research use only, parts CC BY-NC 4.0"
    ]
    heard = run(costream, "listen", ROOT / "samples" / "street.ogg", "-m", "mn04", cwd=tmp_path)
    assert "Siren" in heard

    run(sys.executable, "-m", "pip", "--python", python, *install, research_wheel)
    moves = run(costream, "detect", ROOT / "samples" / "moves.csv", "-m", "costgcn", cwd=tmp_path)
    assert "wave both hands" in moves
    verified = run(costream, "models", "verify", "cosounds", cwd=tmp_path)
    assert "street.ogg: accuracy 0.9" in verified
    for name in ("cotrans", "oadtr"):  # tensors of other files
        assert f"{RESEARCH_MODULE}" in run(costream, "models", "path", name, cwd=tmp_path)
        run(costream, "models", "verify", name, cwd=tmp_path)
    completion = run(costream, "completion", "bash", cwd=tmp_path)
    assert "complete -o nosort -F" in completion
