"""What INTERFACE names and this version hasn't: each answers UNIMPLEMENTED by its name, exit 2.

A test walks every line. Building one means deleting it here.
"""

from __future__ import annotations

from typing import Final

import click

COMMANDS: Final[frozenset[tuple[str, ...]]] = frozenset(
    tuple(line.split())
    for line in """
    job edit
    job clone
    job history
    job revert
    job stats
    cluster bundle
    diff
    import crontab
    import systemd
    import k8s
    import dkron
    export
    simulate capacity
    replay
    top
    auth role
    completion
    man
    """.strip().splitlines()
)
"""Whole commands."""

FLAGS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("job", "list"): ("--watch",),
    ("run", "list"): ("--watch",),
    ("run", "logs"): ("--failed",),
    ("worker", "list"): ("--watch",),
    ("cluster", "members"): ("--watch",),
    ("apply",): ("--prune", "--check-version"),
}
"""Flags of built commands."""

WITH_VALUE: Final = frozenset({"--check-version"})


def is_command(path: tuple[str, ...]) -> bool:
    """Whether this, or something below it, is a command that isn't built."""
    return any(one[: len(path)] == path for one in COMMANDS)


def beside(path: tuple[str, ...]) -> list[str]:
    """The words that may follow `path` on the way to an unbuilt command."""
    depth = len(path)
    return sorted({one[depth] for one in COMMANDS if len(one) > depth and one[:depth] == path})


def path_of(ctx: click.Context | None) -> tuple[str, ...]:
    """The words of a context below the root: `("job", "create")`."""
    words: list[str] = []
    while ctx is not None and ctx.parent is not None:
        words.append(ctx.info_name or "")
        ctx = ctx.parent
    return tuple(reversed(words))
