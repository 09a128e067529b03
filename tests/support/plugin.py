"""The executor that docs/executors.md makes from scratch, as installing its package leaves it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from support.repository import ROOT

PAGE = ROOT / "docs" / "executors.md"


def install(folder: Path) -> None:
    """Put its module there, and what an installer writes beside it of its pyproject.toml: a folder
    in the path of Python that has the package.
    """
    files = _files()
    project = tomllib.loads(files["pyproject.toml"])["project"]
    modules = tomllib.loads(files["pyproject.toml"])["tool"]["setuptools"]["py-modules"]
    for module in modules:
        (folder / f"{module}.py").write_text(files[f"{module}.py"])
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(about)
    groups = project["entry-points"].items()
    lines = [
        line
        for group, points in groups
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _files() -> dict[str, str]:
    """The files that the page shows whole, by name."""
    page = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)```", page, re.DOTALL)
    return dict(found)
