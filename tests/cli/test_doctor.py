"""``costream doctor`` on this machine."""

from __future__ import annotations

import json
import sys

from costream.__main__ import main
from costream.cli.doctor import EXTRAS
from kit.program import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_json_names_what_matters(capsys):
    assert main(["doctor", "--json"]) == 0
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    for name in (
        "costream",
        "python",
        "torch",
        "av",
        "librosa",
        "numba",
        "safetensors",
        "model cooadtr",
    ):
        assert findings[name]["ok"] is True, findings[name]
    for extra in ("mic", "flow", "torchaudio"):
        assert findings[extra]["ok"] in (True, None)
        if findings[extra]["ok"] is None:
            assert "pip install" in findings[extra]["hint"]


def test_the_text_lists_required_parts_and_missing_extras(capsys, monkeypatch):
    monkeypatch.setitem(EXTRAS, "gone", ("no-such-package", "no_such_module", "nothing"))
    assert main(["doctor"]) == 0
    there, optional = capsys.readouterr().out.split("\nOptional, and not here:\n")
    lines = there.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert any("torch " in line for line in lines)
    (models,) = (line for line in lines if line.split()[1] == "models")
    assert "cooadtr-b2, " in models
    assert "miniroad" not in there + optional
    assert "(not found)" not in there
    assert "pip install 'costream[gone]'" in optional


def test_extras_are_those_that_can_be_installed():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = declared["optional-dependencies"]
    for extra, (package, _, _) in EXTRAS.items():
        assert any(requirement.startswith(package) for requirement in extras[extra])
