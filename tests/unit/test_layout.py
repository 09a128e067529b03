"""The layout of the product's code: folders that can be overseen, one class name for one thing."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.repository import ROOT

PACKAGES = [ROOT / name for name in ("schedd", "workerd", "client")]
MOST_MODULES = 16
CLASSES_WITH_A_NAMESAKE = 21
"""May only fall: names of public classes that two modules define. Most are a value of the SDK and
the stored thing that it shows.
"""


def modules() -> Iterator[Path]:
    """The product's own modules, without generated ones."""
    for package in PACKAGES:
        yield from (one for one in package.rglob("*.py") if not one.stem.endswith("_pb2"))


def test_no_folder_has_more_modules_than_a_reader_can_oversee() -> None:
    counts = Counter(one.parent for one in modules())
    assert {folder for folder, count in counts.items() if count > MOST_MODULES} == set()


def test_the_names_of_classes_that_stand_for_two_things_become_fewer() -> None:
    defined = Counter(
        node.name
        for one in modules()
        for node in ast.parse(one.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    twice = sorted(name for name, count in defined.items() if count > 1)
    assert len(twice) <= CLASSES_WITH_A_NAMESAKE, twice
