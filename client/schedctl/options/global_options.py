"""Global options, accepted before and after the subcommand; command groups that load lazily.

A command's own flag of the same name (`job create --timeout`) hides the global one there.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from schedctl.failure import CommandFailure
from schedctl.options.types import GUARD, SECONDS
from schedctl.session import OUTPUTS, Session
from schedkit.protojson.problems import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])


def _store_option(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is None or value is False or value == ():
        return
    session, name = session_of(ctx), str(param.name)
    session.given[name] = value
    if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        session.typed.add(name)


def _globals() -> list[click.Option]:
    def option(*names: str, **more: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_store_option, **more)

    return [
        option(
            "-o", "--output", type=click.Choice(OUTPUTS), help="Output format.  [default: table]"
        ),
        option("--no-headers", is_flag=True, help="Print tables without a header row."),
        option(
            "--time-format",
            type=click.Choice(("relative", "iso")),
            help="Format of times in tables: relative, such as 3m ago, or iso, such as"
            " 2026-12-24T18:00:00Z.  [default: relative on a terminal, iso in files and"
            " pipes]",
        ),
        option(
            "--color",
            type=click.Choice(("auto", "always", "never")),
            help="When to color the output; auto colors it on a terminal only.  [default: auto]",
        ),
        option(
            "--endpoints",
            metavar="HOST:PORT,…",
            help="Addresses of the members to connect to.  [default: the context's addresses,"
            " or 127.0.0.1:7420]",
        ),
        option(
            "--context",
            metavar="NAME",
            help="Context to use: the name of a cluster in schedctl's configuration file."
            "  [default: the current context]",
        ),
        option(
            "--namespace",
            metavar="NAME",
            help="Namespace of the jobs, pools and other objects that the command names. "
            " [default: the context's namespace, or `default`]",
        ),
        option(
            "--timeout",
            type=SECONDS,
            help="Time limit of each call, and of commands that wait; in seconds, or as"
            " 2m.  [default: 20s; waiting has no limit]",
        ),
        option("--yes", is_flag=True, help="Answer yes to all confirmations."),
        option("--no-input", is_flag=True, help="Fail instead of asking for a confirmation."),
    ]


class Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {name for param in self.params for name in param.opts}
        for option in _globals():
            if not own & set(option.opts):
                option.hidden = option.name != "output"
                self.params.append(option)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Store the full name of the command in the session."""
        if parent is not None:
            session_of(parent).command = f"{_name_of(parent)} {info_name or ''}"
        return super().make_context(info_name, args, parent, **extra)


class CommandGroup(click.Group):
    """A group that loads a command at its first use."""

    command_class = Command

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; import its module first if necessary."""
        if cmd_name in self._lazy:
            module, _, attribute = self._lazy[cmd_name].partition(":")
            found = getattr(importlib.import_module(module), attribute)
            assert isinstance(found, click.Command), f"{cmd_name} isn't a command"
            return found
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word; for an unknown word, fail with a suggestion."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            where = _name_of(ctx)
            near = _elsewhere(ctx, word) or did_you_mean(word, self.list_commands(ctx))
            raise CommandFailure(
                f'{where} has no command "{word}"',
                reason="UNKNOWN_COMMAND",
                remedy=f"{near} {where} --help".strip(),
            )
        return super().resolve_command(ctx, args)


def _name_of(ctx: click.Context) -> str:
    """Return the words of a context: `schedctl job create`."""
    words: list[str] = []
    while ctx.parent is not None:
        words.append(ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(("schedctl", *reversed(words)))


def _elsewhere(ctx: click.Context, word: str) -> str:
    """Suggest the commands of this name in other groups; empty if there are none."""
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    groups = {name: root.get_command(ctx, name) for name in root.list_commands(ctx)}
    found = [
        f"schedctl {name} {word}"
        for name, group in groups.items()
        if isinstance(group, click.Group) and word in group.list_commands(ctx)
    ]
    return f"did you mean {' or '.join(found)}?" if found else ""


CommandGroup.group_class = CommandGroup


class Word(click.Choice[str]):
    """A choice of words that accepts `-` for `_`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(str(value).replace("-", "_"), param, ctx)


def flag_of(name: str) -> str:
    """Return the flag of a parameter: `--max-runs` of `max_runs`."""
    return f"--{name.replace('_', '-')}"


def option(written: str, text: str, *names: str, **settings: Any) -> Callable[[C], C]:
    """Return a decorator that adds an option, `written` as in its help: `-o --output FORMAT`.
    `text`: its help. `names`: the name of its parameter, if it isn't the flag's.
    """
    words = written.split(" ")
    flags = [word for word in words if word.startswith("-")]
    value = " ".join(words[len(flags) :]) or None
    return click.option(*flags, *names, metavar=value, help=text, **settings)


def flag(written: str, text: str, *names: str) -> Callable[[C], C]:
    """Return a decorator that adds an option without a value, as `option` does."""
    return option(written, text, *names, is_flag=True)


def dst_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options for fixed times at clock changes."""
    gap = option(
        "--dst-gap",
        "Policy for a scheduled time that a change to summer time skips: run after the skipped"
        " hour, or not at all.  [default: run_after]",
        type=Word(("run_after", "skip")),
        default="run_after",
    )
    overlap = option(
        "--dst-overlap",
        "Policy for a scheduled time that a change to winter time repeats: run at the first"
        " time, the second, or both.  [default: first]",
        type=Word(("first", "second", "both")),
        default="first",
    )
    return gap(overlap(command))


def key_option(of: str) -> Callable[[C], C]:
    """Return a decorator that adds `--idempotency-key` for a new object `of` a kind."""
    text = (
        "Key that makes a repeated call safe: for 24 h, a call with the same key returns the"
        f" same {of} and creates no other.  [default: no key]"
    )
    return option("--idempotency-key KEY", text, type=GUARD)


limit_option = option(
    "--limit N",
    "Highest number of entries to show.  [default: 50 in tables, all in other formats]",
    type=click.IntRange(min=1),
)


def with_globals(group: click.Group) -> click.Group:
    """Add the global options to the root group, visible in its help."""
    group.params.extend(_globals())
    return group


def session_of(ctx: click.Context) -> Session:
    root = ctx.find_root()
    if not isinstance(root.obj, Session):
        root.obj = Session()
    return root.obj


def pass_session(command: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return command(session_of(click.get_current_context()), *args, **kwargs)

    return update_wrapper(called, command)
