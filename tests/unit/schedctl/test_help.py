"""The help texts of all commands are those of `help.txt`, beside this file."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from schedctl.app import PROGRAM, root

KEPT = Path(__file__).with_name("help.txt")
WRITE = "WRITE_HELP"
"""Set in the environment, it writes help.txt."""
REMEDY = f"The help differs. If the change is intended: {WRITE}=1 pytest {Path(__file__).name}"
WIDTH = 100


def contexts(ctx: click.Context) -> Iterator[click.Context]:
    """Yield a context for every command of the tree, groups before their commands."""
    yield ctx
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            assert command is not None
            yield from contexts(click.Context(command, ctx, name))


@pytest.fixture
def tree() -> list[click.Context]:
    return [*contexts(click.Context(root, info_name=PROGRAM, terminal_width=WIDTH))]


def help_of(ctx: click.Context) -> str:
    lines = (line.rstrip() for line in ctx.get_help().splitlines())
    return "\n".join((f"$ {ctx.command_path} --help", *lines, ""))


def faults_of(option: click.Option) -> Iterator[str]:
    text = option.help or ""
    if not text[:1].isupper():
        yield "the help is missing or begins in lower case"
    shown = option.is_flag or option.required or option.show_default
    if not shown and not re.search(r"\[default: .+]$", text):
        yield "the help names no default"


def test_help_is_as_committed(tree):
    text = "\n".join(map(help_of, tree))
    if os.environ.get(WRITE):
        KEPT.write_text(text, encoding="utf-8")
    kept = KEPT.read_text(encoding="utf-8")
    if text != kept:
        lines = kept.splitlines(), text.splitlines()
        diff = difflib.unified_diff(*lines, "help.txt", "schedctl", n=1, lineterm="")
        pytest.fail("\n".join((REMEDY, *diff)), pytrace=False)


def test_every_command_begins_with_a_verb_and_every_option_names_its_default(tree):
    faults = [
        f"{ctx.command_path}: the help doesn't begin with a capitalized verb"
        for ctx in tree
        if not re.match(r"[A-Z][a-z]+[ ,]", ctx.command.help or "")
    ]
    faults += [
        f"{ctx.command_path} {option.opts[-1]}: {fault}"
        for ctx in tree
        for option in ctx.command.params
        if isinstance(option, click.Option) and not option.hidden
        for fault in faults_of(option)
    ]
    assert not faults, "\n".join(faults)
