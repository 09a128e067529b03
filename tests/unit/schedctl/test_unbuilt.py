"""What INTERFACE names and isn't built answers UNIMPLEMENTED by its name: three lines, exit 2."""

import re

import click
import pytest

from schedctl import app, unbuilt

INTERFACE = """
job      create list get describe edit patch clone delete pause resume
job      history revert next explain stats trigger backfill
submit
run      list get watch wait logs cancel retry result attempts why
dlq      list show redrive discard
pool     list describe set pause resume
calendar list apply delete
worker   list describe drain undrain
cluster  status members shards transfer-leader pause resume rebalance doctor bundle
cron     explain lint diff collide forecast
apply
diff
import   crontab systemd k8s dkron
export
simulate capacity
replay
top
events
audit    list
auth     role
config   contexts use view
completion
man
dev      up down reset kill-leader pause-worker
version
"""


def commands() -> list[tuple[str, ...]]:
    found = []
    for line in INTERFACE.strip().splitlines():
        group, *words = line.split()
        found.extend([(group, word) for word in words] if words else [(group,)])
    return found


def built(path: tuple[str, ...]) -> bool:
    command: click.Command | None = app.root
    ctx = click.Context(app.root)
    for word in path:
        assert isinstance(command, click.Group)
        command = command.get_command(ctx, word)
        if command is None:
            return False
    return True


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_is_built_or_says_that_it_isnt(path, offline):
    if built(path):
        assert not unbuilt.is_command(path), f"{path} is built: delete its line"
        return
    ended = offline(*path, "some", "--arguments", "-x")
    assert ended.code == 2
    assert ended.err.splitlines()[:2] == [
        f"error: schedctl {' '.join(path)} isn't built yet",
        "  why: UNIMPLEMENTED, NOT_BUILT",
    ]
    assert len(ended.err.splitlines()) == 3


@pytest.mark.parametrize(
    ("path", "flag"),
    [(path, flag) for path, flags in unbuilt.FLAGS.items() for flag in flags],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_every_unbuilt_flag_says_so_by_name(path, flag, offline):
    value = ["x"] if flag in unbuilt.WITH_VALUE else []
    ended = offline(*path, flag, *value)
    assert ended.code == 2
    assert f"schedctl {' '.join(path)} {flag} isn't built yet" in ended.err
    assert len(ended.err.splitlines()) == 3


def test_no_unbuilt_flag_is_built():
    for path, flags in unbuilt.FLAGS.items():
        command: click.Command = app.root
        for word in path:
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), word)
            assert found is not None
            command = found
        options = [param for param in command.params if isinstance(param, click.Option)]
        known = {name for option in options for name in option.opts if not option.hidden}
        assert not known & set(flags)


def test_every_name_is_shown_in_the_help_of_its_group(offline):
    ended = offline("job", "--help")
    assert ended.code == 0
    assert re.search(r"create .*Create a job", ended.out)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["jbo"], "job"),
        (["job", "lits"], "list"),
        (["cron", "explian"], "explain"),
        (["job", "list", "--limti", "5"], "--limit"),
        (["submit", "--wiat"], "--wait"),
    ],
)
def test_misspelt_words_get_the_near_one(words, near, offline):
    ended = offline(*words)
    assert ended.code == 2
    assert f'did you mean "{near}"?' in ended.err
    assert len(ended.err.splitlines()) == 3


@pytest.mark.parametrize("line", ["job list --nope", "auth token create --expires 30d"])
def test_dashes_alone_make_no_option_near(line, offline):
    ended = offline(*line.split())
    assert ended.code == 2
    assert "did you mean" not in ended.err
    assert "--help" in ended.err.splitlines()[2]


@pytest.mark.parametrize("words", [["job", "get"], ["run", "list", "--limit", "x"], ["-o", "xml"]])
def test_wrong_usage_is_2_in_three_lines(words, offline):
    ended = offline(*words)
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 3
    assert ended.out == ""
