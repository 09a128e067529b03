"""The pictures of the packages, and of the modules on a run's way, drawn from their imports as
Mermaid text.

`docs/generate.py` writes them into docs/architecture.md. A cycle is an error.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DAEMONS: Final = ("schedd", "workerd")
"""Their subpackages have boxes of their own."""
SHARED: Final = ("schedctl", "schedclient", "schedkit", "schedproto")

HOT_PATH: Final = ("schedd.timers", "schedd.dispatch", "schedd.results")
"""Packages whose modules have boxes in the second picture."""

Graph = dict[str, set[str]]


def hot_path() -> str:
    """Return the picture of the modules that a run passes: an arrow leads from the importer to the
    imported module.

    Raises:
        ValueError: modules import each other.
    """
    imports = drawn(graph(_module_of))
    lines = ["```mermaid", "flowchart LR"]
    for package in HOT_PATH:
        inside = [one for one in sorted(imports) if one.startswith(f"{package}.")]
        lines.append(f"    subgraph {package.rpartition('.')[2]}")
        lines += [f"        {box(one)}" for one in inside]
        lines.append("    end")
    lines += [
        f"    {key(one)} --> {key(to)}" for one in sorted(imports) for to in sorted(imports[one])
    ]
    return "\n".join((*lines, "```"))


def _module_of(name: str) -> str | None:
    """Return the box of a module, or of a module's name: a module on a run's way."""
    while name:
        if any(name.startswith(f"{package}.") for package in HOT_PATH):
            path = ROOT / name.replace(".", "/")
            if path.with_suffix(".py").is_file():
                return name
        name = name.rpartition(".")[0]
    return None


def mermaid() -> str:
    """Return the picture: an arrow leads from the importer to the imported package.

    Raises:
        ValueError: packages import each other.
    """
    imports = drawn(graph())
    lines = ["```mermaid", "flowchart TD"]
    for daemon in DAEMONS:
        lines.append(f"    subgraph {daemon}")
        lines += [f"        {box(one)}" for one in sorted(imports) if one.startswith(f"{daemon}.")]
        lines.append("    end")
    lines += [f"    {box(one)}" for one in SHARED]
    lines += [
        f"    {key(one)} --> {key(other)}"
        for one in sorted(imports)
        for other in sorted(imports[one])
    ]
    return "\n".join((*lines, "```"))


def key(package: str) -> str:
    return package.replace(".", "_")


def box(package: str) -> str:
    return f"{key(package)}[{package.rpartition('.')[2]}]"


def graph(box_of: Callable[[str], str | None] | None = None) -> Graph:
    """Return which boxes each box imports, late imports included. `box_of`: the box of a module,
    by default its package.
    """
    of = box_of or package_of
    found: Graph = {} if box_of else {one: set() for one in SHARED}
    for module in modules():
        importer = of(dotted(module))
        if importer is None:
            continue
        found.setdefault(importer, set())
        for imported in map(of, imports_of(module)):
            if imported is not None and imported != importer:
                found[importer].add(imported)
                found.setdefault(imported, set())
    return found


def drawn(imports: Mapping[str, set[str]]) -> Graph:
    """Return the imports without those that follow from others, so that the picture is readable."""
    below: Graph = {}

    def reach(package: str, path: tuple[str, ...]) -> set[str]:
        if package in path:
            raise ValueError(f"these import each other: {' → '.join((*path, package))}")
        if package not in below:
            further = [reach(one, (*path, package)) for one in sorted(imports[package])]
            below[package] = imports[package].union(*further)
        return below[package]

    for package in sorted(imports):
        reach(package, ())
    return {
        package: {one for one in direct if not any(one in below[other] for other in direct)}
        for package, direct in imports.items()
    }


def modules() -> Iterator[Path]:
    for folder in (*DAEMONS, "client"):
        yield from (one for one in (ROOT / folder).rglob("*.py") if not one.stem.endswith("_pb2"))


def dotted(module: Path) -> str:
    root = ROOT / "client" if ROOT / "client" in module.parents else ROOT
    return ".".join(module.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def package_of(name: str) -> str | None:
    """Return the box of a module: a daemon's subpackage, or a shared package."""
    top, _, rest = name.partition(".")
    if top in SHARED:
        return top
    sub = rest.split(".")[0]
    return f"{top}.{sub}" if top in DAEMONS and (ROOT / top / sub).is_dir() and sub else None


def imports_of(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
