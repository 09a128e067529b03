"""The layout of the product's code: folders that can be overseen, one class name for one thing."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.repository import ROOT

PACKAGES = [ROOT / name for name in ("schedd", "workerd", "client")]
MOST_MODULES = 16


def modules() -> Iterator[Path]:
    """The product's own modules, without generated ones."""
    for package in PACKAGES:
        yield from (one for one in package.rglob("*.py") if not one.stem.endswith("_pb2"))


def test_no_folder_has_more_modules_than_a_reader_can_oversee() -> None:
    counts = Counter(one.parent for one in modules())
    assert {folder for folder, count in counts.items() if count > MOST_MODULES} == set()


def test_no_two_modules_define_a_class_of_one_name() -> None:
    """Private classes may share a name. A value of the SDK and its stored counterpart may not."""
    defined: dict[str, list[str]] = {}
    for one in modules():
        for node in ast.parse(one.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(str(one.relative_to(ROOT)))
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}
