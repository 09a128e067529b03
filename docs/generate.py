#!/usr/bin/env python3
"""Generate the parts of the pages that follow from code and kept figures; a test compares them.

.venv/bin/python docs/generate.py     writes them between the pages' markers
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "images"), str(HERE.parent / "tests")]

import benchmarks  # noqa: E402 - beside this file, not in a package
import lifecycle  # noqa: E402 - the same

from schedctl import unbuilt as commands  # noqa: E402
from schedd.api import unbuilt  # noqa: E402


def made() -> dict[Path, str]:
    """Every file that has something made in it, as it should be."""
    return {
        HERE / "images" / "lifecycle.svg": lifecycle.picture(),
        **benchmarks.made(),
        HERE / "architecture.md": _page("architecture.md", "lifecycle", lifecycle.listing()),
        HERE / "semantics" / "not-built.md": _page("semantics/not-built.md", "unbuilt", _unbuilt()),
    }


def _page(name: str, section: str, text: str) -> str:
    page = (HERE / name).read_text(encoding="utf-8")
    begin, end = f"<!-- {section} begins -->", f"<!-- {section} ends -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def _unbuilt() -> str:
    rows = [
        *((f"`{_short(message)}`", sorted(names)) for message, names in unbuilt.FIELDS.items()),
        ("calls", sorted(call.split(".", 2)[2] for call in unbuilt.CALLS)),
        ("commands", _commands()),
        (
            "flags",
            sorted(f"{' '.join(w)} {flag}" for w, fs in commands.FLAGS.items() for flag in fs),
        ),
    ]
    lines = [
        f"| {what} | {', '.join(f'`{name}`' for name in names)} |" for what, names in rows if names
    ]
    return "\n".join(("| of | not built |", "|---|---|", *lines))


def _commands() -> list[str]:
    """Whole commands, those of one noun together: `cron lint`, `cron diff` as `cron diff|lint`."""
    after: dict[tuple[str, ...], list[str]] = {}
    for words in sorted(commands.COMMANDS):
        after.setdefault(words[:-1], []).append(words[-1])
    return [" ".join((*noun, "\\|".join(verbs))) for noun, verbs in after.items()]


def _short(name: str) -> str:
    return name.rpartition(".")[2]


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
