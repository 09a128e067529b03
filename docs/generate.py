#!/usr/bin/env python3
"""Generate the parts of the pages that follow from code and kept figures; a test compares them.

.venv/bin/python docs/generate.py     writes them between the pages' markers
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "images"), str(HERE.parent / "tests")]

import benchmarks  # noqa: E402 - beside this file, not in a package
import lifecycle  # noqa: E402 - the same
import packages  # noqa: E402 - the same


def made() -> dict[Path, str]:
    """Every file that has something made in it, as it should be."""
    return {
        HERE / "images" / "lifecycle.svg": lifecycle.picture(),
        **benchmarks.made(),
        HERE / "architecture.md": _page(
            "architecture.md",
            {
                "lifecycle": lifecycle.listing(),
                "packages": packages.mermaid(),
                "hot path": packages.hot_path(),
            },
        ),
    }


def _page(name: str, sections: Mapping[str, str]) -> str:
    """Return the page with these texts between the markers of their sections."""
    page = (HERE / name).read_text(encoding="utf-8")
    for section, text in sections.items():
        begin, end = f"<!-- {section} begins -->", f"<!-- {section} ends -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
