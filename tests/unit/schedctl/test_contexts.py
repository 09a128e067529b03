"""Contexts: clusters by name, and which one a command talks to."""

import io

import pytest

from schedctl import contexts
from schedkit.errors import Misconfigured
from schedproto.v1 import cluster_service_pb2 as cluster


def test_no_file_means_no_contexts(home):
    assert contexts.load() == contexts.Contexts()
    assert contexts.current() is None


def test_a_saved_context_is_in_use(home):
    contexts.save("dev", ["127.0.0.1:1", "127.0.0.1:2"])
    assert contexts.current() == contexts.ClusterContext("dev", ("127.0.0.1:1", "127.0.0.1:2"))


def test_deleting_a_context_removes_only_that_one(home):
    contexts.save("a", ["a:1"])
    contexts.save("b", ["b:1"])
    contexts.delete("a")
    assert (contexts.load().current, list(contexts.load().known)) == ("b", ["b"])
    contexts.delete("b")
    assert contexts.load() == contexts.Contexts()
    with pytest.raises(Misconfigured, match='context "b" not found'):
        contexts.delete("b")


def test_saving_again_keeps_the_other_settings(home):
    contexts.path().parent.mkdir(parents=True)
    contexts.path().write_text(
        'current = "prod"\n[contexts."prod"]\nendpoints = ["a:1"]\nnamespace = "n \\"q\\""\n'
        'tls = {ca = "/ca", cert = "/c", key = "/k"}\ntoken_file = "/t"\nprotected = true\n'
    )
    before = contexts.load().known["prod"]
    contexts.save("prod", ["b:2"], select=False)
    after = contexts.load().known["prod"]
    assert after.endpoints == ("b:2",)
    assert (after.namespace, after.tls, after.token_file, after.protected) == (
        before.namespace,
        before.tls,
        before.token_file,
        True,
    )
    assert contexts.load().current == "prod"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current = ", "config.toml"),
        ("[contexts.a]\nendpoint = []", "endpoint is an unknown key"),
        ('[contexts.a]\nendpoints = "x"', "list of addresses"),
        ("[contexts.a]\ntls = {}", "ca, cert and key"),
        ('current = "b"\n[contexts.bb]\nendpoints = []', 'did you mean "bb"'),
    ],
)
def test_a_mistake_in_the_file_is_reported_by_name(home, text, said, offline):
    contexts.path().parent.mkdir(parents=True)
    contexts.path().write_text(text)
    with pytest.raises(Misconfigured, match=said):
        contexts.current()
    ended = offline("cluster", "status")
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 3


def test_an_unwritable_context_file_is_reported(offline, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")
    ended = offline("config", "set", "a", "--at", "a:1")
    assert ended.code == 2
    assert "config.toml can't be written: No such file or directory" in ended.err
    assert "XDG_CONFIG_HOME" in ended.err


@pytest.mark.parametrize(
    ("name", "said"),
    [("config.toml", "isn't valid UTF-8"), ("token", "the access token of context")],
)
def test_a_file_that_is_not_text_is_reported_like_any_wrong_file(home, offline, name, said):
    folder = contexts.path().parent
    folder.mkdir()
    (folder / "config.toml").write_text(
        'current = "a"\n[contexts.a]\nendpoints = ["127.0.0.1:1"]\n'
        f'token_file = "{folder / "token"}"\ntls = {{ca = "{folder / "ca.pem"}"}}'
    )
    (folder / name).write_bytes(b"\xff\xfe")
    ended = offline("cluster", "status")
    assert ended.code == 2
    assert said in ended.err


def test_contexts_are_listed_and_put_to_use(offline):
    contexts.save("a", ["127.0.0.1:1"])
    contexts.save("b", ["127.0.0.1:2"])
    assert offline("config", "contexts").lines == ["  a  127.0.0.1:1", "* b  127.0.0.1:2"]
    assert offline("config", "use", "a").code == 0
    assert "Context:" in offline("config", "view").out
    assert contexts.load().current == "a"
    assert offline("config", "use", "c").code == 2


async def test_flags_override_variables_and_variables_override_the_context(
    ctl, member, monkeypatch
):
    member.say("GetCluster", cluster.Cluster(leader="m1"))
    contexts.save("dead", ["127.0.0.1:1"])
    contexts.save("here", [member.address], select=False)
    assert (await ctl("cluster", "status")).code == 0  # SCHEDCTL_ENDPOINTS
    assert (await ctl("--timeout", "0.3", "cluster", "status", "--context", "dead")).code == 6
    monkeypatch.delenv("SCHEDCTL_ENDPOINTS")
    assert (await ctl("--timeout", "0.3", "cluster", "status")).code == 6
    assert (await ctl("cluster", "status", "--context", "here")).code == 0
    assert (await ctl("cluster", "status", "--endpoints", member.address)).code == 0


@pytest.mark.slow
async def test_an_overriding_endpoints_variable_is_named_when_no_member_answers(ctl, monkeypatch):
    contexts.save("here", ["127.0.0.1:2"])
    monkeypatch.setenv("SCHEDCTL_ENDPOINTS", "127.0.0.1:1")
    short = "--timeout", "0.3", "cluster", "status"
    said = 'SCHEDCTL_ENDPOINTS overrides the endpoints of context "here"'
    assert said in (await ctl(*short)).err
    monkeypatch.setenv("SCHEDCTL_CONTEXT", "here")
    assert said in (await ctl(*short)).err
    assert "SCHEDCTL_ENDPOINTS" not in (await ctl(*short, "--endpoints", "127.0.0.1:1")).err
    assert "SCHEDCTL_ENDPOINTS" not in (await ctl(*short, "--context", "here")).err
    monkeypatch.setenv("SCHEDCTL_ENDPOINTS", "127.0.0.1:2")
    assert "SCHEDCTL_ENDPOINTS" not in (await ctl(*short)).err, "they are the same"


async def test_variables_set_every_flag(ctl, member, monkeypatch):
    member.say("GetCluster", cluster.Cluster(leader="m1"))
    monkeypatch.setenv("SCHEDCTL_OUTPUT", "json")
    assert (await ctl("cluster", "status")).data["leader"] == "m1"


async def test_a_protected_context_asks_before_it_destroys(ctl, member, monkeypatch):
    from schedproto.v1 import job_service_pb2 as jobs

    contexts.save("prod", [member.address])
    contexts.path().write_text(contexts.path().read_text() + "protected = true\n")
    monkeypatch.delenv("SCHEDCTL_ENDPOINTS")
    member.say("DeleteJob", jobs.DeleteJobResponse(deleted=True))
    ended = await ctl("job", "delete", "etl", "--no-input")
    assert ended.code == 2
    assert "--yes" in ended.err
    assert member.requests == []
    assert (await ctl("job", "delete", "etl", "--yes")).code == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


CONFIRMED = [
    ("job", "delete", "etl"),
    ("dlq", "discard", "--all"),
    ("dlq", "redrive", "--all"),
]


@pytest.mark.parametrize("words", CONFIRMED)
async def test_a_terminal_is_asked_before_work_is_destroyed(ctl, member, monkeypatch, words):
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    refused = await ctl(*words)
    assert refused.code == 130
    assert "? [y/N]" in refused.err
    monkeypatch.setattr("sys.stdin", Terminal(""))
    silent = await ctl("--no-input", *words)
    assert silent.code == 2
    assert "but --no-input forbids the question: add --yes" in silent.err
    assert member.requests == []


@pytest.mark.parametrize("words", CONFIRMED)
@pytest.mark.parametrize(("typed", "flags"), [("y\n", ()), ("", ("--yes",)), (None, ())])
async def test_a_flag_or_a_missing_terminal_skips_the_question(
    ctl, member, monkeypatch, words, typed, flags
):
    monkeypatch.setattr("sys.stdin", io.StringIO("") if typed is None else Terminal(typed))
    await ctl(*words, *flags)
    assert member.requests
