"""Python files of the user's: several may have the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from costream.core.errors import ModelError
from costream.core.user_code import code_files, function_of, run_code


def made(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, "utf-8")
    run_code(path)
    return path


def test_files_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    ones = made(tmp_path / "a", "twice.py", "def one(): return 1\ndef both(): return 1\n")
    twos = made(tmp_path / "b", "twice.py", "def two(): return 2\ndef both(): return 2\n")
    assert {str(ones), str(twos)} <= set(code_files())
    assert (function_of("twice.py", "one")(), function_of("twice.py", "two")()) == (1, 2)
    with pytest.raises(ModelError, match="several such files were run") as caught:
        function_of("twice.py", "both")
    assert str(ones) in str(caught.value)
    assert str(twos) in str(caught.value)
    with pytest.raises(ModelError, match="has no function 'none'"):
        function_of("twice.py", "none")


def test_a_file_is_run_once(tmp_path: Path) -> None:
    path = made(tmp_path, "once.py", "def made(n=[]): n.append(1); return len(n)\n")
    assert function_of("once.py", "made")() == 1
    run_code(path)
    assert function_of("once.py", "made")() == 2
