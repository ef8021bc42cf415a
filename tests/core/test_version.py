"""The version names the code: the release, and the commit of a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from costream.core.commit import describe
from costream.core.version import __version__


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("one\n")
    git(tmp_path, "add", "a.txt")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path) -> None:
    who = ("-c", "user.name=someone", "-c", "user.email=someone@example.com")
    git(folder, *who, "commit", "-q", "--allow-empty", "-m", "A change")


def test_a_checkout_without_tags_is_named_by_its_commit(checkout: Path) -> None:
    assert describe(checkout) == "g" + git(checkout, "rev-parse", "--short=9", "HEAD")


def test_changed_files_are_reported(checkout: Path) -> None:
    (checkout / "a.txt").write_text("two\n")
    assert describe(checkout).endswith(".dirty")


def test_the_tag_of_the_release_needs_no_commit_and_later_commits_do(checkout: Path) -> None:
    git(checkout, "tag", f"v{__version__}")
    assert describe(checkout) == ""
    commit(checkout)
    assert describe(checkout) == "g" + git(checkout, "rev-parse", "--short=9", "HEAD")
    git(checkout, "tag", "another-tag")
    assert describe(checkout).startswith("g")


def test_a_folder_without_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert describe(tmp_path) == ""


def test_variables_of_git_do_not_name_another_repository(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "-q")
    commit(other)
    expected = describe(checkout)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert describe(checkout) == expected
