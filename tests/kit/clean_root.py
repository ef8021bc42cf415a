"""Roots of file systems without the repository, in which the lines of container files are run.

A root has the programs of this machine (read only), a new virtual environment and the packages that
the tests are run with, except costream. Processes, mounts and network are those of a namespace, so
that ports and users are free, as in a container. This needs Linux and root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

UNSHARE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child")
_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib64")
# Packages of this environment that a root must not have.
_OURS = ("costream", "__editable__", "_editable")


def _works() -> bool:
    needed = ("unshare", "nsenter", "chroot", "useradd", "ip")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if sys.platform != "linux" or not all(shutil.which(name, path=path) for name in needed):
        return False
    tried = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True)
    return os.geteuid() == 0 and tried.returncode == 0


needs_roots = pytest.mark.skipif(not _works(), reason="needs Linux, root, and unshare")


class CleanRoots:
    """A namespace with some roots; ``close`` ends its processes and mounts."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        lines = ["ip link set lo up"]
        for name in names:
            lines += self._make(folder / name)
        line = f"{' && '.join(lines)} && echo ready && exec sleep 3600"
        self._holder = subprocess.Popen(
            [*UNSHARE, "sh", "-c", line], stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self._pid = children.read_text("ascii").split()[0]

    def close(self) -> None:
        """End all processes of the namespace."""
        self._holder.kill()
        self._holder.wait()

    def _make(self, root: Path) -> list[str]:
        """Make a root; return the shell lines that mount what it shares with this machine."""
        for name in ("etc", "tmp", "proc", "dev", "home", "root", "packages", "env/bin"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        lines = [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        for name in _PROGRAMS:
            outside = Path("/", name)
            if outside.is_symlink():
                (root / name).symlink_to(outside.readlink())
            elif outside.is_dir():
                lines += _shared(outside, root / name)
        base = Path(sys.base_prefix).resolve()
        if not base.is_relative_to("/usr"):
            lines += _shared(base, root / base.relative_to("/"))
        for name in ("passwd", "group", "shadow"):  # without the people of this machine
            users = Path("/etc", name).read_text("utf-8").splitlines(keepends=True)
            kept = [line for line in users if name == "shadow" or int(line.split(":")[2]) < 1000]
            (root / "etc" / name).write_text("".join(kept), encoding="utf-8")
        for name in ("login.defs", "ld.so.cache"):
            shutil.copy(Path("/etc", name), root / "etc" / name)
        return lines + self._environment(root)

    def _environment(self, root: Path) -> list[str]:
        """Make the virtual environment of a root, on the packages of this one without costream."""
        lines: list[str] = []
        for k, place in enumerate(path for path in sys.path if Path(path).name == "site-packages"):
            lines += _shared(Path(place), root / f"shared{k}")
            for entry in Path(place).iterdir():
                if not entry.name.startswith(_OURS) and entry.suffix != ".pth":
                    link = root / "packages" / entry.name
                    if not link.is_symlink():
                        link.symlink_to(f"/shared{k}/{entry.name}")
        python = os.path.realpath(sys.executable)
        (root / "env" / "bin" / "pip").write_text('#!/bin/sh\nexec /env/bin/python -m pip "$@"\n')
        (root / "env" / "bin" / "pip").chmod(0o755)
        make = f"chroot {root} {python} -m venv --without-pip /env"
        site = f"{root}/env/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        return [*lines, make, f"echo /packages > {site}/packages.pth"]

    def start(
        self, name: str, *words: str, user: str = "root", cwd: str = "/"
    ) -> subprocess.Popen[str]:
        """Start a program in a root."""
        # What the index would be asked for is in the environment, the build backend too.
        env = {"PATH": "/env/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        env |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "OMP_NUM_THREADS": "1"}
        env |= {} if user == "root" else {"HOME": f"/home/{user}"}
        line = f"cd {shlex.quote(cwd)} && exec {shlex.join(words)}"
        inside = ("chroot", f"--userspec={user}", str(self.folder / name), "sh", "-c", line)
        return subprocess.Popen(
            ["nsenter", "-t", self._pid, "-m", "-n", "-p", *inside],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str, *words: str, limit_s: float = 300, **how: Any) -> str:
        """Run a program in a root and return what it writes. It has to succeed."""
        child = self.start(name, *words, **how)
        out, err = child.communicate(timeout=limit_s)
        assert child.returncode == 0, out + err
        return out

    def beside(self, program: str, **how: Any) -> subprocess.Popen[str]:
        """Start a Python program of this environment on the network of the namespace."""
        path = os.pathsep.join(map(str, (Path(__file__).parents[1], *filter(None, sys.path))))
        return subprocess.Popen(
            ["nsenter", "-t", self._pid, "-n", sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **how,
        )

    def answer(self, program: str, limit_s: float = 60) -> str:
        """Return what a Python program writes on the network of the namespace; "" if it fails."""
        child = self.beside(program)
        try:
            out, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            return ""
        return out if child.returncode == 0 else ""


def _shared(outside: Path, inside: Path) -> list[str]:
    """Return the shell lines that mount a folder of this machine, read only."""
    inside.mkdir(parents=True, exist_ok=True)
    return [
        f"mount --rbind {shlex.quote(str(outside))} {shlex.quote(str(inside))}",
        f"mount -o remount,bind,ro {shlex.quote(str(inside))}",
    ]
