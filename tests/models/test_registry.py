"""Search for weights, the list of models, loading."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from costream.core.errors import ExitCode, ModelError, UsageError
from costream.models import catalogue as registry
from costream.models.build import save_model
from costream.models.catalogue import (
    find_weights,
    list_models,
    load_model,
    more_to_fetch,
)
from costream.models.oad.cooadtr import CoOadTR
from costream.models.spec import model_summaries
from costream.weights_io import store
from costream.weights_io.card import Card
from costream.weights_io.file import read_card
from costream.weights_io.store import RESEARCH_WEIGHTS, cache_folder, shipped_folder
from kit.paths import RESEARCH, WEIGHTS

ARGUMENTS = {
    "input_width": 6,
    "num_classes": 3,
    "embed_dim": 8,
    "num_heads": 2,
    "feedforward": 8,
    "window": 4,
}

PUBLISHED = """
[net]
url = "https://host/net.pth"
megabytes = 1
licence = "MIT"
source = "somebody"
import = {labels = "coco"}
[part]
url = "https://host/part.pth"
megabytes = 1
licence = "MIT"
source = "somebody"
note = "goes beside another"
"""


def write(path: Path, **changes: object) -> Path:
    torch.manual_seed(0)
    fields = {
        "name": path.stem,
        "task": "online action detection",
        "architecture": "cooadtr",
        "arguments": ARGUMENTS,
        "labels": ("background", "sit", "stand"),
        "rate_hz": 4.0,
        "description": f"made for {path.stem}",
    }
    card = Card(**{**fields, **changes})  # type: ignore[arg-type]
    save_model(path, card, CoOadTR(**ARGUMENTS))
    return path


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The folders weights are looked for in, all empty."""
    places = {name: tmp_path / name for name in ("given", "environment", "cache", "shipped")}
    monkeypatch.setattr(store, "cache_folder", lambda: places["cache"])
    monkeypatch.setattr(store, "shipped_folder", lambda: places["shipped"])
    monkeypatch.setattr(store, "find_spec", lambda name: None)  # of the second package
    monkeypatch.delenv("COSTREAM_WEIGHTS", raising=False)
    return places


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "/home/me/.cache/costream/weights"),
        ("linux", {"XDG_CACHE_HOME": "/scratch"}, "/scratch/costream/weights"),
        ("linux", {"XDG_CACHE_HOME": "scratch"}, "/home/me/.cache/costream/weights"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/costream/weights"),
        ("darwin", {}, "/home/me/Library/Caches/costream/weights"),
        ("win32", {}, "/home/me/AppData/Local/costream/cache/weights"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/costream/cache/weights"),
    ],
)
def test_the_cache_is_where_the_platform_has_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], folder: str
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setattr(store.sys, "platform", platform)
    assert cache_folder() == Path(folder)


def test_shipped_weights_say_once_what_knows_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "shipped_folder", shipped_folder)
    monkeypatch.setattr(registry, "cache_folder", lambda: tmp_path / "weights")
    path = RESEARCH / "cosounds.safetensors"
    card = read_card(path)
    line = "A model with more classes is available: yamnet (costream models fetch yamnet, 15 MB)."
    assert more_to_fetch(card, tmp_path / "own.safetensors") == ""
    assert [more_to_fetch(card, path) for _ in range(2)] == [line, ""]
    video = RESEARCH / "cooadtr.safetensors"
    assert "movinet-a0" in more_to_fetch(read_card(video), video)
    monkeypatch.setattr(registry, "cache_folder", lambda: tmp_path / "other" / "weights")
    for larger in (WEIGHTS / "mn04.safetensors", RESEARCH / "costgcn.safetensors"):
        assert more_to_fetch(read_card(larger), larger) == ""  # 527 and 68
    (tmp_path / "file").touch()
    monkeypatch.setattr(registry, "cache_folder", lambda: tmp_path / "file" / "weights")
    assert more_to_fetch(card, path) == ""


def test_what_is_published_can_be_fetched(places: dict[str, Path]) -> None:
    places["shipped"].mkdir()
    (places["shipped"] / "published.toml").write_text(PUBLISHED, "utf-8")
    entry = next(e for e in list_models() if e.name == "net")
    assert (entry.origin, entry.path, entry.summary) == ("published", None, "somebody")
    assert "part" not in [e.name for e in list_models()]
    for name, message in (
        ("net", "no weights for net here; costream models fetch net"),
        ("part", "part is not a model by itself; it goes beside another"),
        ("nett", "did you mean net"),
    ):
        with pytest.raises(ModelError, match=message):
            find_weights(name)
    file = write(places["cache"] / "net.safetensors")
    assert find_weights("net") == file
    assert [e.origin for e in list_models() if e.name == "net"] == ["cache"]
    (places["shipped"] / "published.toml").write_text("[net", "utf-8")
    assert find_weights("net") == file  # what is here is found without the list
    with pytest.raises(ModelError, match=r"published\.toml: not valid TOML"):
        list_models()


def test_order_of_the_places(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    files = {k: write(folder / "cooadtr.safetensors") for k, folder in places.items()}
    monkeypatch.setenv("COSTREAM_WEIGHTS", str(places["environment"]))
    assert find_weights("cooadtr", places["given"]) == files["given"]
    for place in ("environment", "cache", "shipped"):
        assert find_weights("cooadtr") == files[place]
        files[place].unlink()
    with pytest.raises(ModelError, match="cooadtr is in the package of research weights"):
        find_weights("cooadtr")
    with pytest.raises(ModelError, match="no weights for miniroad here"):
        find_weights("miniroad")


def test_files_can_be_named_directly(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(places["given"] / "mine.safetensors")
    assert find_weights("cooadtr", file) == file
    assert find_weights(str(file)) == file
    monkeypatch.setenv("COSTREAM_WEIGHTS", str(file))
    assert find_weights("cooadtr") == file
    with pytest.raises(UsageError, match="both"):
        find_weights(str(file), file)


def test_any_name_in_the_cache_is_a_model(places: dict[str, Path]) -> None:
    file = write(places["cache"] / "kitchen.safetensors")
    assert find_weights("kitchen") == file
    by_name = {entry.name: entry for entry in list_models()}
    assert by_name["kitchen"].summary == "made for kitchen"
    assert by_name["kitchen"].origin == "cache"


def test_the_list_shows_where_weights_are(places: dict[str, Path]) -> None:
    write(places["shipped"] / "cooadtr.safetensors")
    (places["cache"]).mkdir()
    (places["cache"] / "broken.safetensors").write_bytes(b"x")
    rows = {e.name: (e.origin, e.path) for e in list_models()}
    assert rows == {
        **dict.fromkeys(model_summaries(), (None, None)),
        **dict.fromkeys(RESEARCH_WEIGHTS, ("research", None)),
        "cooadtr": ("shipped", places["shipped"] / "cooadtr.safetensors"),
        "broken": ("cache", places["cache"] / "broken.safetensors"),
    }
    assert next(iter(rows)) == "cooadtr"
    broken = next(e for e in list_models() if e.name == "broken")
    assert "cannot be used" in broken.summary


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("deepcot", None, r"no weights for deepcot .*costream models import FILE --name deepcot"),
        ("coadtr", None, r"unknown model 'coadtr'; did you mean cooadtr"),
        ("zebra", None, r"unknown model 'zebra'; known are cooadtr, cooadtr-b2, oadtr, miniroad"),
        ("./here.safetensors", None, r"here\.safetensors: there is no such weight file"),
        ("cooadtr", "nowhere", r"nowhere: the path given by --weights does not exist"),
        ("cooadtr", ".", r"no cooadtr\.safetensors; it has no weight files"),
    ],
)
def test_errors_say_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    weights: str | None,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        find_weights(name, weights)
    assert caught.value.exit_code == ExitCode.MODEL


def test_a_wrong_environment_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSTREAM_WEIGHTS", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"nowhere: the path in \$COSTREAM_WEIGHTS does not exist"):
        find_weights("cooadtr")


def test_load_model_gives_the_stored_network(places: dict[str, Path]) -> None:
    write(places["cache"] / "cooadtr.safetensors")
    before = torch.random.get_rng_state()
    model = load_model(device="cpu")
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(0)
    expected = CoOadTR(**ARGUMENTS).state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in model.network.state_dict().items())
    assert len(model.info.weights_sha256) == 64
    assert not model.network.training


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "lstm"}, "unknown architecture 'lstm'; known are cooadtr"),
        ({"arguments": {**ARGUMENTS, "colour": 1}}, "arguments do not fit cooadtr .*colour"),
        ({"arguments": {**ARGUMENTS, "num_classes": 5}}, r"wrong shape: network\.head\.weight is"),
        ({"arguments": {**ARGUMENTS, "final_norm": False}}, r"left over: network\.encoder\.norm"),
        ({"arguments": {**ARGUMENTS, "qkv_bias": True}}, r"missing: network\..*in_proj_bias"),
        ({"labels": ("background",)}, r"the card has 1 labels for \d classes"),
        ({"frontend": "retina"}, "unknown frontend 'retina'; known are tdn"),
        ({"frontend": "tdn", "frontend_arguments": {"x": 1}}, "frontend 'tdn' does not take"),
        ({"frontend": "tdn"}, r"missing: frontend\.body\.0\..* and \d+ more"),
    ],
)
def test_cards_and_tensors_that_do_not_fit(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    file = write(tmp_path / "x.safetensors", **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(str(file), device="cpu")
    assert str(caught.value).startswith(str(file))


def test_shipped_weights_are_inside_a_wheel_or_next_to_a_clone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    package = tmp_path / "costream"
    package.mkdir()
    monkeypatch.setattr(store, "__file__", str(package / "checkpoints" / "store.py"))
    assert store.shipped_folder() == tmp_path / "weights"
    (package / "weights").mkdir()
    assert store.shipped_folder() == package / "weights"


def test_research_weights_are_those_of_a_clone_or_of_the_second_package(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert store.research_folder() is None
    entry = next(e for e in list_models() if e.name == "cosounds")
    assert (entry.origin, entry.path) == ("research", None)
    with pytest.raises(ModelError) as caught:
        find_weights("cosounds")
    assert str(caught.value) == (
        "cosounds is in the package of research weights: pip install costream-research-weights"
        " (in a clone: pip install ./weights/research);"
        " its licence: research use only, not commercial"
    )
    package = tmp_path / "site" / "costream_research_weights"
    installed = write(package / "cosounds.safetensors")
    monkeypatch.undo()
    monkeypatch.setattr(store, "shipped_folder", lambda: places["shipped"])
    monkeypatch.syspath_prepend(str(package.parent))
    assert find_weights("cosounds") == installed
    assert store.is_shipped(installed)
    inside = write(places["shipped"] / "research" / "cosounds.safetensors")
    assert find_weights("cosounds") == inside
    entry = next(e for e in list_models() if e.name == "cosounds")
    assert (entry.origin, entry.path) == ("research", inside)


def test_the_list_of_research_weights_is_that_of_the_package() -> None:
    assert {path.stem for path in RESEARCH.glob("*.safetensors")} == RESEARCH_WEIGHTS.keys()


def test_looking_up_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from costream.models.catalogue import *; list_models()\n"
        "from costream.weights_io.file import read_card\n"
        "read_card(find_weights(sys.argv[1])); print('torch' in sys.modules)"
    )
    file = write(tmp_path / "x.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", code, file], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_file_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is not taken for one that was mistyped."""
    monkeypatch.chdir(tmp_path)
    Path("vivit.mp4").touch()
    with pytest.raises(ModelError, match=r"vivit.mp4: neither a model nor weights"):
        find_weights("vivit.mp4")
