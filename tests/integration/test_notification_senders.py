"""Notifications reach a real web server, a real mail server and a real program."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiosmtpd.controller import Controller
from standardwebhooks import Webhook, WebhookVerificationError

from schedd.config.member_config import Smtp
from schedd.core.ids import JobId, RunId, ShardId, new_id
from schedd.core.jobs.notifications import (
    Notice,
    NotificationChannel,
    NotificationKind,
    OutboxNotification,
)
from schedd.notify.senders.by_channel import Senders
from schedkit.egress.policy import Egress
from support.repository import ROOT
from support.runs import NOW
from support.wait import WAIT_TIMEOUT, wait_until_async

SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"


def notification(way: NotificationChannel, **changes: Any) -> OutboxNotification:
    made = OutboxNotification(
        new_id(), way, JobId(new_id()), ShardId(1), NotificationKind.FAILURE, "default", "etl",
        RunId(new_id()), NOW, NOW, NOW, NOW, "FAILED", "EXIT_CODE", "sh: 1: oh né", 3, 4, 1,
        "w1", 5, 2, NOW, NOW, 1,
    )  # fmt: skip
    return replace(made, **changes)


@contextlib.asynccontextmanager
async def senders(tmp_path: Path, *, loopback: bool = True, **given: Any) -> AsyncIterator[Senders]:
    key = tmp_path / "keys"
    key.write_text(f"# ours\n{SECRET}\n")
    egress = Egress(allow=("127.0.0.1",) if loopback else ())
    more: dict[str, Any] = {"commands": (), "smtp": Smtp(), "egress": egress, **given}
    made = Senders(signing_key=key, cluster_id="c1", **more)
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def receiver(
    status: int = 200,
) -> AsyncIterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    came: list[tuple[dict[str, str], bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        came.append((dict(request.headers), await request.read()))
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}/hook", came
    finally:
        await runner.cleanup()


async def test_a_webhook_is_signed_so_that_the_reference_library_verifies_it(
    tmp_path: Path,
) -> None:
    one = notification(NotificationChannel.WEBHOOK)
    async with senders(tmp_path) as sender, receiver() as (url, came):
        assert await sender.send(one, Notice(webhook=url)) == ""
    [(headers, body)] = came
    verified = Webhook(SECRET).verify(body, headers)
    assert (verified["type"], headers["webhook-id"]) == ("run.failed", str(one.notification_id))
    data = verified["data"]
    assert (data["job"], data["state"], data["exit_code"]) == ("etl", "FAILED", 3)
    assert (data["error"], data["failures_in_a_row"], data["held_back"]) == ("sh: 1: oh né", 5, 2)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"etl", b"elt"), headers)


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_a_refused_webhook_is_reported_with_its_status_and_no_redirect_is_followed(
    status: int, tmp_path: Path
) -> None:
    async with senders(tmp_path) as sender, receiver(status) as (url, came):
        error = await sender.send(notification(NotificationChannel.WEBHOOK), Notice(webhook=url))
    assert (error, len(came)) == (f"HTTP {status}", 1)


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:1/", "http://localhost:1/", "http://2130706433:1/", "http://[::1]:1/"),
        *("http://127.1:1/", "http://0x7f.1:1/", "http://127.0.0.1.:1/"),
        *("http://169.254.169.254/", "http://10.0.0.1/", "http://[::ffff:127.0.0.1]:1/"),
    ],
)
async def test_no_webhook_reaches_an_address_that_is_not_public(url: str, tmp_path: Path) -> None:
    async with senders(tmp_path, loopback=False) as sender:
        error = await sender.send(notification(NotificationChannel.WEBHOOK), Notice(webhook=url))
    assert "a public address" in error or "can't call it" in error


async def test_a_webhook_is_sent_to_a_host_that_the_member_allows(tmp_path: Path) -> None:
    async with receiver() as (url, came):
        port = url.split(":")[2].partition("/")[0]
        for allow, error in (
            (f"localhost:{port}", ""),
            ("localhost:1", "write in schedd.toml: [egress] allow"),
        ):
            egress = Egress(allow=(allow,))
            async with senders(tmp_path, egress=egress) as sender:
                notice = Notice(webhook=url.replace("127.0.0.1", "localhost"))
                assert error in await sender.send(notification(NotificationChannel.WEBHOOK), notice)
    assert len(came) == 1


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "metadata.goog"])
async def test_no_webhook_reaches_a_metadata_service_though_every_network_is_allowed(
    host: str, tmp_path: Path
) -> None:
    egress = Egress(allow=("0.0.0.0/0", "::/0", "*.goog"))
    async with senders(tmp_path, egress=egress) as sender:
        notice = Notice(webhook=f"http://{host}/latest/meta-data/")
        error = await sender.send(notification(NotificationChannel.WEBHOOK), notice)
    assert "jobs and webhooks can't call it" in error


async def test_without_its_key_a_webhook_isnt_sent_unsigned(tmp_path: Path) -> None:
    async with senders(tmp_path) as sender, receiver() as (url, came):
        (tmp_path / "keys").unlink()
        assert "No such file" in await sender.send(
            notification(NotificationChannel.WEBHOOK), Notice(webhook=url)
        )
        assert came == []


class RecordingMailServer:
    """A mail server that keeps what it is given, and refuses who isn't there."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.rude = False
        """Whether QUIT is answered with an error."""

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        if address.startswith("gone@"):
            return "550 no mailbox of that name"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        self.mails.append(envelope)
        return "250 OK"

    async def handle_QUIT(self, _server: Any, _session: Any, _envelope: Any) -> str:  # noqa: N802
        return "421 I am going down" if self.rude else "221 Bye"


@pytest.fixture
def mail() -> Iterator[tuple[RecordingMailServer, Smtp]]:
    kept = RecordingMailServer()
    port = free_port()
    controller = Controller(kept, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield kept, Smtp("127.0.0.1", port, "none", mail_from="schedd@example.com")
    finally:
        controller.stop()


async def test_a_mail_goes_to_all_recipients_though_one_of_them_is_refused(
    mail: tuple[RecordingMailServer, Smtp], tmp_path: Path
) -> None:
    kept, smtp = mail
    one = notification(NotificationChannel.EMAIL, namespace="a\r\nBcc: all@example.com")
    to = ("a@example.com", "gone@example.com", "b@example.com")
    async with senders(tmp_path, smtp=smtp) as sender:
        assert await sender.send(one, Notice(email=to)) == ""
        assert "550" in await sender.send(one, Notice(email=("gone@example.com",)))
    [envelope] = kept.mails
    assert envelope.rcpt_tos == ["a@example.com", "b@example.com"]
    text = envelope.content.decode()
    head, _, said = text.partition("\r\n\r\n")
    assert "Bcc" not in {line.partition(":")[0] for line in head.splitlines()}
    assert "Subject: [schedd] a  Bcc: all@example.com/etl failed" in head.splitlines()
    assert f"Message-ID: <{one.notification_id}@c1.schedd>\r\n" in text
    assert "Failures in a row: 5" in said


async def test_an_accepted_mail_is_not_sent_again_after_a_failed_quit(
    mail: tuple[RecordingMailServer, Smtp], tmp_path: Path
) -> None:
    kept, smtp = mail
    kept.rude = True
    async with senders(tmp_path, smtp=smtp) as sender:
        assert (
            await sender.send(
                notification(NotificationChannel.EMAIL), Notice(email=("a@example.com",))
            )
            == ""
        )
    assert len(kept.mails) == 1


async def test_a_missing_or_unnamed_mail_server_is_reported(tmp_path: Path) -> None:
    away = Smtp("127.0.0.1", 1, "none", mail_from="schedd@example.com")
    for smtp, why in ((Smtp(), "smtp.host"), (away, "refused")):
        async with senders(tmp_path, smtp=smtp) as sender:
            error = await sender.send(
                notification(NotificationChannel.EMAIL), Notice(email=("a@example.com",))
            )
        assert why in error


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "page"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_a_command_is_given_the_facts_and_nothing_of_the_daemons_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDD_POSTGRES__DSN", "postgresql://secret")
    path = program(
        tmp_path, f'cat > {tmp_path}/event; echo "$1" > {tmp_path}/said; env > {tmp_path}/env'
    )
    async with senders(tmp_path, commands=(path,)) as sender:
        one = notification(NotificationChannel.COMMAND)
        assert await sender.send(one, Notice(command=(path, "$(id); ops"))) == ""
    assert json.loads((tmp_path / "event").read_text())["type"] == "run.failed"
    assert (tmp_path / "said").read_text() == "$(id); ops\n"
    env = (tmp_path / "env").read_text()
    assert f"SCHEDD_RUN_ID={one.run_id}" in env
    assert "secret" not in env


async def test_a_command_that_isnt_allowed_isnt_run_and_one_that_fails_says_why(
    tmp_path: Path,
) -> None:
    path = program(tmp_path, "echo no pager >&2; exit 3")
    async with senders(tmp_path, commands=(path,)) as sender:
        error = await sender.send(
            notification(NotificationChannel.COMMAND), Notice(command=(path,))
        )
        refused = await sender.send(
            notification(NotificationChannel.COMMAND), Notice(command=("/bin/sh", "-c", ""))
        )
        assert error == "exit code 3: no pager"
        assert "notifications.commands" in refused


async def test_a_hung_command_is_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedd.notify.senders.by_channel.LIMIT", 0.5)
    path = program(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    async with senders(tmp_path, commands=(path,)) as sender:
        error = await sender.send(
            notification(NotificationChannel.COMMAND), Notice(command=(path,))
        )
    assert error.startswith("timed out after")
    child = int((tmp_path / "pid").read_text())

    def gone() -> bool:
        state = Path(f"/proc/{child}/stat")
        return not state.exists() or state.read_text().split()[2] == "Z"

    await wait_until_async(gone, 10, "the end of what it began")


@pytest.mark.parametrize("how", ["", "setsid "])
async def test_a_command_that_leaves_a_background_process_has_delivered(
    how: str, tmp_path: Path
) -> None:
    """The process left behind holds standard error: the command's end counts, not the pipe's."""
    path = program(tmp_path, f"{how}sleep 600 & echo $! > {tmp_path}/pid; echo well >&2; exit $1")
    async with senders(tmp_path, commands=(path,)) as sender, asyncio.timeout(WAIT_TIMEOUT):
        try:
            one = notification(NotificationChannel.COMMAND)
            assert await sender.send(one, Notice(command=(path, "0"))) == ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        try:
            assert await sender.send(one, Notice(command=(path, "4"))) == "exit code 4: well"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_the_receiver_of_the_docs_prints_each_event_once(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "semantics" / "notifications.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (block for block in blocks if "class Hook" in block)
    port = free_port()
    assert code.count("8080") == 1
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code.replace("8080", str(port))),
        env={**os.environ, "WEBHOOK_SECRET": SECRET},
        stdout=asyncio.subprocess.PIPE,
    )
    one = notification(NotificationChannel.WEBHOOK)
    try:
        async with senders(tmp_path) as sender, asyncio.timeout(WAIT_TIMEOUT):
            await wait_until_async(lambda: listens(port), WAIT_TIMEOUT, "the receiver")
            for _ in range(2):
                assert await sender.send(one, hook(port)) == ""
            assert process.stdout is not None
            assert (
                await process.stdout.readline() == b"run.failed etl EXIT_CODE sh: 1: oh n\xc3\xa9\n"
            )
            other = notification(
                NotificationChannel.WEBHOOK, kind=NotificationKind.RECOVERY, reason="", error=""
            )
            assert await sender.send(other, hook(port)) == ""
            assert await process.stdout.readline() == b"run.recovered etl None None\n"
    finally:
        process.kill()
        await process.wait()


def hook(port: int) -> Notice:
    return Notice(webhook=f"http://127.0.0.1:{port}/hook")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
