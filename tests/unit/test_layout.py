"""The layout of the product's code: folders that can be overseen, one class name for one thing, few
small modules with a single user.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.repository import ROOT

PACKAGES = [ROOT / name for name in ("schedd", "workerd", "client")]
MOST_MODULES = 16

SMALL = 120
"""Lines. A smaller module that one other module imports belongs to that module, unless it is an
entry of a table.
"""
SMALL_WITH_ONE_USER = 62
"""May only fall. Most of these stay: calls of the API (`schedd/api/calls.py`), loops and services
that `schedd/app` composes, stores that `schedd/store/postgres.py` composes, pages, decisions
without I/O, which must stay in a core, and modules that are imported late (optional dependencies,
fast starts).
"""


def modules() -> Iterator[Path]:
    """The product's own modules, without generated ones."""
    for package in PACKAGES:
        yield from (one for one in package.rglob("*.py") if not one.stem.endswith("_pb2"))


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text("utf-8"))


def test_no_folder_has_more_modules_than_a_reader_can_oversee() -> None:
    counts = Counter(one.parent for one in modules())
    assert {folder for folder, count in counts.items() if count > MOST_MODULES} == set()


def test_no_two_modules_define_a_class_of_one_name() -> None:
    """Private classes may share a name. A value of the SDK and its stored counterpart may not."""
    defined: dict[str, list[str]] = {}
    for one in modules():
        for node in tree(one).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(str(one.relative_to(ROOT)))
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}


def test_no_small_module_with_a_single_user_is_added() -> None:
    names = {name_of(one): one for one in modules()}
    users: dict[str, set[str]] = {}
    for name, one in names.items():
        for imported in imports_of(one):
            target = imported if imported in names else imported.rpartition(".")[0]
            if target in names and target != name:
                users.setdefault(target, set()).add(name)
    small = [
        name
        for name, by in users.items()
        if len(by) == 1
        and names[name].stem not in ("__init__", "__main__")
        and by != {name.rpartition(".")[0]}  # a package that shows its module's names
        and len(names[name].read_text("utf-8").splitlines()) < SMALL
    ]
    assert len(small) <= SMALL_WITH_ONE_USER, sorted(small)


def name_of(module: Path) -> str:
    """Return the dotted name of a module."""
    root = ROOT / "client" if ROOT / "client" in module.parents else ROOT
    return ".".join(module.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports_of(module: Path) -> Iterator[str]:
    """The dotted names that a module imports, each with the name that `from` takes from it."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
