"""Configuration from its sources, with all problems reported at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from schedkit.config.loader import (
    ConfigErrors,
    ConfigProblem,
    Untimely,
    hidden,
    load,
    masked,
    secret,
)
from schedkit.errors import NotNow


@dataclass(frozen=True, slots=True)
class Files:
    ca: Path
    cert: Path

    def __post_init__(self) -> None:
        if self.ca == self.cert:
            raise ValueError("ca and cert are one file")


@dataclass(frozen=True, slots=True)
class Etcd:
    endpoints: tuple[str, ...]
    timeout: timedelta = timedelta(seconds=1)
    password: str = secret("")
    tls: Files | None = None

    def faults(self) -> Iterator[ConfigProblem]:
        if not self.endpoints:
            yield ConfigProblem("endpoints", "none is given")


@dataclass(frozen=True, slots=True)
class Log:
    level: Literal["info", "debug"] = "info"


@dataclass(frozen=True, slots=True)
class Settings:
    etcd: Etcd
    log: Log = field(default_factory=Log)
    slots: int = 16
    share: float = 0.5
    insecure: bool = False
    spool: Path | None = None
    labels: dict[str, str] = field(default_factory=dict)

    def faults(self) -> Iterator[ConfigProblem]:
        if self.slots < 1:
            yield ConfigProblem("slots", "must be at least 1")
        if self.insecure and not self.etcd.endpoints:
            yield ConfigProblem("", "insecure without users")
        if self.log.level == "info" and not self.slots:
            yield ConfigProblem("log.level", "is too loud for no slots")


class World:
    """A file, an environment and flags to load from."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "schedd.toml"
        self.environ: dict[str, str] = {}
        self.flags: dict[str, str | None] = {"etcd.endpoints": "a:1"}
        self.also: list[ConfigProblem] = []

    def load(self, text: str | None = None) -> Settings:
        if text is not None:
            self.file.write_text(text)
        file = self.file if text is not None else None
        return load(
            Settings,
            file=file,
            environ=self.environ,
            prefix="SCHEDD",
            flags=self.flags,
            also=lambda found: self.also,
        )

    def problems(self, text: str | None = None) -> list[str]:
        with pytest.raises(ConfigErrors) as caught:
            self.load(text)
        return [str(each).removeprefix(f"{self.file.parent}/") for each in caught.value.problems]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_unset_value_has_its_default(world: World) -> None:
    assert world.load() == Settings(etcd=Etcd(endpoints=("a:1",)))


def test_a_file_sets_every_type(world: World) -> None:
    world.flags = {}
    settings = world.load("""
        slots = 4
        share = 1
        insecure = true
        spool = "/var/spool/workerd"
        [etcd]
        endpoints = ["a:1", "b:2"]
        timeout = "1m30s"
        tls = {ca = "/ca", cert = "/cert"}
        [log]
        level = "debug"
        [labels]
        disk = "ssd"
    """)
    assert settings == Settings(
        etcd=Etcd(("a:1", "b:2"), timedelta(seconds=90), tls=Files(Path("/ca"), Path("/cert"))),
        log=Log("debug"),
        slots=4,
        share=1.0,
        insecure=True,
        spool=Path("/var/spool/workerd"),
        labels={"disk": "ssd"},
    )


def test_the_environment_sets_every_type(world: World) -> None:
    world.flags = {}
    world.environ = {
        "SCHEDD_ETCD__ENDPOINTS": "a:1, b:2",
        "SCHEDD_ETCD__TIMEOUT": "250ms",
        "SCHEDD_ETCD__TLS__CA": "/ca",
        "SCHEDD_ETCD__TLS__CERT": "/cert",
        "SCHEDD_SLOTS": "4",
        "SCHEDD_SHARE": "0.25",
        "SCHEDD_INSECURE": "yes",
        "SCHEDD_LABELS": "disk=ssd,zone=a",
        "HOME": "/root",
    }
    settings = world.load()
    assert settings.etcd == Etcd(
        ("a:1", "b:2"), timedelta(milliseconds=250), tls=Files(Path("/ca"), Path("/cert"))
    )
    assert (settings.slots, settings.share, settings.insecure) == (4, 0.25, True)
    assert settings.labels == {"disk": "ssd", "zone": "a"}


def test_a_flag_overrides_the_environment_which_overrides_the_file(world: World) -> None:
    text = "slots = 1\nshare = 0.1\n[etcd]\nendpoints = ['file:1']\ntimeout = '1s'"
    world.environ = {"SCHEDD_SLOTS": "2", "SCHEDD_SHARE": "0.2"}
    world.flags = {"slots": "3", "share": None}
    settings = world.load(text)
    assert (settings.slots, settings.share) == (3, 0.2)
    assert settings.etcd.endpoints == ("file:1",)


def test_all_problems_are_reported_at_once_each_with_its_source(world: World) -> None:
    world.environ = {"SCHEDD_INSECURE": "perhaps"}
    world.flags = {"etcd.endpont": "a:1", "etcd.endpoints": None}
    assert world.problems("""slots = "many"

[etcd]
timeout = 90
pasword = "x"

[lgo]
level = "info"
""") == [
        "schedd.toml:5: unknown key 'etcd.pasword'; did you mean 'password'?",
        "schedd.toml:7: unknown key 'lgo'; did you mean 'log'?",
        "--etcd-endpont: unknown flag; did you mean '--etcd-endpoints'?",
        (
            "etcd.endpoints: a value is required: "
            "set it in the file, by SCHEDD_ETCD__ENDPOINTS or --etcd-endpoints"
        ),
        "schedd.toml:4: etcd.timeout must be a duration such as 90s or 1h30m, not 90",
        "schedd.toml:1: slots must be a whole number, not 'many'",
        "SCHEDD_INSECURE: insecure must be true or false, not 'perhaps'",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("slots = true", "slots must be a whole number, not True"),
        ("slots = 1.0", "slots must be a whole number, not 1.0"),
        ("insecure = 1", "insecure must be true or false, not 1"),
        ("spool = 3", "spool must be a path, not 3"),
        ("labels = {a = 1}", "labels must be a table of texts, not {'a': 1}"),
        ("labels = 'a=b'", "labels must be a table of texts, not 'a=b'"),
        ("etcd = 3", "etcd must be a section: [etcd]"),
        ("log.level = 'loud'", "log.level must be one of info, debug, not 'loud'"),
        ("spool = ''", "spool must be a path, not ''"),
        (r'spool = "x\u0000"', r"spool must be a path without a NUL character, not 'x\x00'"),
        (
            r'labels = {a = "\u0000"}',
            r"labels must be a table of texts without a NUL character, not {'a': '\x00'}",
        ),
        (f"slots = {'[' * 100_000}{']' * 100_000}", "slots is nested too deep to be read"),
        ("slots == 1", "the file isn't valid TOML: Invalid value (at line 1, column 8)"),
        ("slots = ", "the file isn't valid TOML: Invalid value (at end of document)"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported_with_its_line(
    world: World, text: str, problem: str
) -> None:
    assert world.problems(text) == [f"schedd.toml:1: {problem}"]


def test_problems_of_sections_are_reported_together_with_unreadable_values(
    world: World,
) -> None:
    world.environ = {"SCHEDD_ETCD__ENDPOINTS": "", "SCHEDD_INSECURE": "yes"}
    world.flags = {}
    world.also = [ConfigProblem("spool", "is full"), ConfigProblem("share", "is too much")]
    assert world.problems("""slots = 0
share = "half"
[log]
level = "loud"
[etcd.tls]
ca = "/a"
cert = "/a"
""") == [
        "schedd.toml:6: etcd.tls: ca and cert are one file",
        "SCHEDD_ETCD__ENDPOINTS: etcd.endpoints: none is given",
        "schedd.toml:4: log.level must be one of info, debug, not 'loud'",
        "schedd.toml:2: share must be a number, not 'half'",
        "schedd.toml:1: slots: must be at least 1",
        "configuration: insecure without users",
        "spool: is full",
    ]


def test_a_missing_key_causes_no_further_problems(world: World) -> None:
    world.flags = {"slots": "0", "log.level": "debug"}
    [missing, slots] = world.problems()
    assert missing.startswith("etcd.endpoints: a value is required")
    assert slots == "--slots: slots: must be at least 1"


def test_a_problem_of_the_clock_alone_may_be_retried(world: World) -> None:
    world.also = [Untimely("spool", "is from tomorrow")]
    with pytest.raises(NotNow, match="spool: is from tomorrow"):
        world.load()
    with pytest.raises(ConfigErrors):
        world.load("slots = 0")


def test_an_optional_section_must_be_complete_once_a_key_is_set(world: World) -> None:
    world.environ = {"SCHEDD_ETCD__TLS__CA": "/ca"}
    (problem,) = world.problems()
    assert problem.startswith("etcd.tls.cert: a value is required")


def test_a_section_without_a_required_key_is_not_checked_as_a_whole(world: World) -> None:
    world.also = [ConfigProblem("etcd.tls", "give both")]
    (problem,) = world.problems("[etcd.tls]\nca = '/ca'")
    assert (
        problem
        == "etcd.tls.cert: a value is required: set it in the file or by SCHEDD_ETCD__TLS__CERT"
    )
    (problem,) = world.problems("[etcd.tls]\nca = '/a'\ncert = '/a'")
    assert problem == "schedd.toml:2: etcd.tls: ca and cert are one file"


@pytest.mark.parametrize("text", ["slots == 1", "slots = '\udcff'", None])
def test_an_unreadable_file_causes_no_reports_of_missing_keys(
    world: World, text: str | None
) -> None:
    world.flags = {}
    world.environ = {"SCHEDD_SHARE": "half", "SCHEDD_INSECURE": "yes"}
    if text is not None:
        world.file.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(ConfigErrors) as caught:
        load(Settings, file=world.file, environ=world.environ, prefix="SCHEDD", flags={})
    [file, share] = caught.value.problems
    assert file.where.startswith(str(world.file))
    assert str(share) == "SCHEDD_SHARE: share must be a number, not 'half'"


def test_only_the_line_of_a_too_deeply_nested_value_is_reported(world: World) -> None:
    (problem,) = world.problems(f"slots = [\n{'[' * 100_000} 's3cr3t = 1'")
    assert problem == "schedd.toml:2: the value is nested too deep to be read"


def test_an_overridden_value_is_not_validated(world: World) -> None:
    world.environ = {"SCHEDD_SLOTS": "many"}
    world.flags["slots"] = "3"
    assert world.load().slots == 3


def test_a_missing_file_is_reported(world: World) -> None:
    with pytest.raises(ConfigErrors, match=r"schedd\.toml: the file can't be read: No such file"):
        load(Settings, file=world.file, environ={}, prefix="SCHEDD", flags=world.flags)


def test_a_secret_appears_in_no_message_and_no_repr(world: World) -> None:
    (problem,) = world.problems("[etcd]\npassword = 31415")
    assert problem == "schedd.toml:2: etcd.password must be a string"
    settings = world.load("[etcd]\npassword = 'hunter2'")
    assert "hunter2" not in repr(settings)
    assert masked(settings)["etcd.password"] == "***"
    assert masked(settings)["etcd.endpoints"] == ("a:1",)


def test_the_user_part_of_an_address_is_never_shown(world: World) -> None:
    world.flags = {}
    settings = world.load("[etcd]\nendpoints = ['http://u:s3cr3t@a:1', 'u:s3@cr3t@b:1', 'c:1']")
    assert masked(settings)["etcd.endpoints"] == ("http://***@a:1", "u:***@b:1", "c:1")
    (problem,) = world.problems("[etcd]\nendpoints = 'http://u:s3cr3t@a:1'")
    assert (
        problem == "schedd.toml:2: etcd.endpoints must be a list of strings, not 'http://***@a:1'"
    )
    for plain in ("me@example.com", "file:///a/b@c", "[::1]:1"):
        assert hidden(plain) == plain


@pytest.mark.parametrize("sign", [*",'\" /@:\\\n\t"])
def test_a_password_with_any_character_is_never_shown(sign: str) -> None:
    for before in ("s3://key:", "https://", "key:"):
        address = f"{before}be{sign}hind@bucket/p"
        for shown in (hidden(address), hidden(repr(address)), hidden(f"no store: {address!r}")):
            assert "be" not in shown
            assert "hind" not in shown
            assert "***@bucket/p" in shown


@pytest.mark.parametrize(
    ("environ", "warnings"),
    [
        ({"SCHEDD_NOSUCH": "4"}, ["unknown variable SCHEDD_NOSUCH ignored"]),
        (
            {"SCHEDD_SLOT": "4"},
            ["unknown variable SCHEDD_SLOT ignored; did you mean 'SCHEDD_SLOTS'?"],
        ),
        ({"SCHEDD_RUN_ID": "x", "SCHEDD_WORKER": "w1", "PATH": "/bin"}, []),
    ],
    ids=["unlike any", "ours, unknown", "a job's own"],
)
def test_an_unknown_variable_is_a_warning_unless_a_job_sees_it(
    world: World,
    caplog: pytest.LogCaptureFixture,
    environ: Mapping[str, str],
    warnings: list[str],
) -> None:
    caplog.set_level(logging.WARNING)
    world.environ = dict(environ)
    world.load()
    assert [record.getMessage() for record in caplog.records] == warnings


def test_a_field_of_a_type_without_a_text_form_is_a_bug() -> None:
    @dataclass(frozen=True)
    class Odd:
        when: complex = 0j

    with pytest.raises(TypeError, match="when: no setting can have the type"):
        load(Odd, file=None, environ={}, prefix="ODD", flags={})
