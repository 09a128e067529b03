"""Commands and options that are reserved but not built: each fails with UNIMPLEMENTED, exit code 2.

A test runs each of them. Delete the entry of a command when you build it.
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
"""Options of commands that are built."""

WITH_VALUE: Final = frozenset({"--check-version"})


def is_command(path: tuple[str, ...]) -> bool:
    """Return whether the path is a command that isn't built, or the group of one."""
    return any(one[: len(path)] == path for one in COMMANDS)


def beside(path: tuple[str, ...]) -> list[str]:
    """Return the words that may follow `path` in a command that isn't built."""
    depth = len(path)
    return sorted({one[depth] for one in COMMANDS if len(one) > depth and one[:depth] == path})


def path_of(ctx: click.Context | None) -> tuple[str, ...]:
    """Return the words of a context below the root: `("job", "create")`."""
    words: list[str] = []
    while ctx is not None and ctx.parent is not None:
        words.append(ctx.info_name or "")
        ctx = ctx.parent
    return tuple(reversed(words))
