"""``detect --layout --columns``: where they may be set, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from kit.program import costream


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--columns", "a,b"), "--columns: cannot parse 'a'"),
        (("--layout", "ntu"), "there is no joint layout 'ntu'"),
        (("--layout", "gone.toml"), "gone.toml: cannot be read"),
    ],
)
def test_wrong_ones_are_told_before_anything_is_opened(tmp_path, options, message):
    done = costream("detect", "no-such-file.csv", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_file_environment_and_flag(tmp_path):
    """The flag wins over the environment, that over the file."""
    (tmp_path / "costream.toml").write_text('layout = "of-the-file"\n[detect]\ncolumns = "x,y"\n')
    arguments = ("detect", "no-such-file.csv", "-v")
    done = costream(*arguments, cwd=tmp_path)
    assert (done.returncode, "'of-the-file'" in done.stderr) == (2, True)
    named = {"COSTREAM_LAYOUT": "of-the-environment"}
    done = costream(*arguments, cwd=tmp_path, env=named)
    assert (done.returncode, "'of-the-environment'" in done.stderr) == (2, True)
    done = costream(*arguments, "--layout", "coco-17", cwd=tmp_path, env=named)
    assert done.returncode == 4  # nothing is wrong but that there is no such file
    assert "layout = coco-17 (commandline)" in done.stderr
    assert "columns = x,y (default map)" in done.stderr


def test_a_table_that_cannot_be_opened(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("name,age,town,job\nA,3,B,C\n")
    done = costream("detect", path, "-m", "cooadtr", cwd=tmp_path)
    assert done.returncode == 4
    assert "there are no joints in it" in done.stderr
    assert "Traceback" not in done.stderr
