"""A peer's packages, in a folder of their own under a cache: made once per set of pins."""

from __future__ import annotations

import enum
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.errors import LeftOut

CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "schedd" / "bench-peers"
)
WAIT_TIMEOUT: Final = 300.0
"""Seconds for one package manager's command."""
_PIP: Final = ("pip", "--disable-pip-version-check", "install", "--quiet")
_NPM: Final = ("install", "--no-audit", "--no-fund", "--loglevel=error")


class Tool(enum.Enum):
    """Kinds of package managers."""

    PYTHON = "python"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages at exact versions, the peer's own first."""

    name: str
    tool: Tool
    packages: Mapping[str, str]

    @property
    def key(self) -> str:
        """Its folder in the cache: another one for each choice of versions."""
        chosen = json.dumps([self.packages, sys.version if self.tool is Tool.PYTHON else ""])
        return f"{self.name}-{hashlib.sha256(chosen.encode()).hexdigest()[:12]}"

    def installed(self, cache: Path) -> Installed:
        """There, after the package manager has been asked for it if need be.

        Raises:
            LeftOut: the tool isn't there, or didn't manage.
        """
        folder = cache / self.key
        complete = folder / "complete"
        interpreter = _version_of(self.tool)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                folder.mkdir(parents=True)
            except OSError as error:
                raise LeftOut(f"nothing can be installed in {cache}: {error.strerror}") from error
            _make(self, folder)
            complete.touch()
        return Installed(folder, self.tool, {**self.packages, self.tool.value: interpreter})


@dataclass(frozen=True, slots=True)
class Installed:
    """Packages that are there; `versions` with that of the interpreter."""

    folder: Path
    tool: Tool
    versions: Mapping[str, str]

    def program(self, name: str) -> str:
        """The path of one of its commands."""
        bins = "bin" if self.tool is Tool.PYTHON else "node_modules/.bin"
        return os.fspath(self.folder / bins / name)

    def variables(self, programs: Path) -> dict[str, str]:
        """Our environment without what would lead an interpreter elsewhere; our programs import
        its packages.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PG", "PYTHON", "NODE_", "VIRTUAL_ENV"))
        }
        if self.tool is Tool.NODE:
            return {**kept, "NODE_PATH": os.fspath(self.folder / "node_modules")}
        return {**kept, "PYTHONPATH": os.fspath(programs)}


def _make(environment: Environment, folder: Path) -> None:
    if environment.tool is Tool.NODE:
        wanted = {"private": True, "dependencies": dict(environment.packages)}
        (folder / "package.json").write_text(json.dumps(wanted), encoding="utf-8")
        _run(["npm", *_NPM], folder)
        return
    _run([sys.executable, "-m", "venv", os.fspath(folder)], folder)
    pins = [f"{package}=={version}" for package, version in environment.packages.items()]
    _run([os.fspath(folder / "bin" / "python"), "-m", *_PIP, *pins], folder)


def _run(argv: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=WAIT_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeftOut(str(error)) from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise LeftOut(f"{argv[0]}: exit {done.returncode}: {said[-1] if said else 'nothing said'}")


def _version_of(tool: Tool) -> str:
    if tool is Tool.PYTHON:
        return platform.python_version()
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise LeftOut("no node and npm in PATH")
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("v")
