"""Calls that PostgreSQL leaves without an answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.api import deadlines
from schedd.api.auth.authentication import Authentication
from schedd.api.calls import UNARY
from schedd.api.errors import MemberUnavailableError, OutcomeUnknownError, dependency_error
from schedd.api.services import Caller, Services
from schedd.core.auth.rights import text_of
from schedd.core.ids import AccessTokenId, new_id
from schedkit.clock import boottime
from schedkit.errors import DatabaseUnavailable
from schedproto.v1 import cluster_service_pb2 as wire
from schedproto.v1 import pool_service_pb2
from support.callers import TESTER


async def silent(*_: Any) -> Any:
    await asyncio.Event().wait()


def never() -> None:
    """No certificate is looked at."""


async def test_a_read_that_gets_no_answer_ends_before_its_caller_gives_up_and_says_why() -> None:
    services = cast(
        "Services",
        SimpleNamespace(store=SimpleNamespace(list_audit=silent), database_answered_at=boottime),
    )
    read = UNARY["schedd.v1.ClusterService.ListAudit"]
    with pytest.raises(MemberUnavailableError, match="PostgreSQL timed out") as error:
        await read(services, Caller(TESTER, "test", 0.6), wire.ListAuditRequest())
    assert error.value.reason == "DATABASE_SILENT"
    assert "doctor" in error.value.remedy


@pytest.mark.slow
async def test_a_read_ends_within_3_s_when_postgresql_does_not_answer_this_member() -> None:
    began = boottime()
    with pytest.raises(MemberUnavailableError, match="PostgreSQL timed out: no answer within"):
        async with deadlines.limit_read(20.0, lambda: began - 60):
            await asyncio.Event().wait()
    assert boottime() - began < 3


@pytest.mark.slow
async def test_a_slow_read_continues_while_postgresql_answers_others() -> None:
    async with deadlines.limit_read(20.0, boottime):
        await asyncio.sleep(deadlines.SILENT_FOR + 0.3)


class Away:
    """A store without a database."""

    def __getattr__(self, _: str) -> Any:
        async def fails(*_: Any, **__: Any) -> Any:
            raise DatabaseUnavailable("PostgreSQL: Connection refused")

        return fails


async def test_only_a_failed_change_says_that_nothing_was_changed() -> None:
    services = cast(
        "Services", SimpleNamespace(store=Away(), pools=Away(), database_answered_at=boottime)
    )
    caller = Caller(TESTER, "test", 0.6)
    with pytest.raises(DatabaseUnavailable) as read:
        await UNARY["schedd.v1.ClusterService.ListAudit"](services, caller, wire.ListAuditRequest())
    assert dependency_error(read.value).message == (
        "PostgreSQL is unavailable: it doesn't answer this member"
    )
    pool = pool_service_pb2.Pool(namespace="default", name="gpus", limit=2)
    with pytest.raises(MemberUnavailableError, match="; nothing was changed") as change:
        await UNARY["schedd.v1.PoolService.SetPool"](
            services, caller, pool_service_pb2.SetPoolRequest(pool=pool)
        )
    assert change.value.reason == "DATABASE_UNAVAILABLE"


async def test_a_dry_run_times_out_as_a_read() -> None:
    services = cast(
        "Services",
        SimpleNamespace(pools=SimpleNamespace(get=silent), database_answered_at=boottime),
    )
    call = UNARY["schedd.v1.PoolService.SetPool"]
    pool = pool_service_pb2.Pool(namespace="default", name="gpus", limit=2)
    asked = pool_service_pb2.SetPoolRequest(pool=pool, validate_only=True)
    with pytest.raises(MemberUnavailableError, match="PostgreSQL timed out"):
        await call(services, Caller(TESTER, "test", 0.6), asked)


@pytest.mark.parametrize("deadline", [None, 0.05], ids=["HTTP's", "gRPC's"])
async def test_a_change_without_an_answer_has_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch, deadline: float | None
) -> None:
    monkeypatch.setattr(deadlines, "WAITS", 0.05)
    monkeypatch.setattr(deadlines, "STATEMENTS", 0.05)
    services = cast("Services", SimpleNamespace(pauses=SimpleNamespace(resume=silent)))
    change = UNARY["schedd.v1.ClusterService.ResumeCluster"]
    async with asyncio.timeout(5):
        with pytest.raises(OutcomeUnknownError, match="may have been made") as error:
            await change(services, Caller(TESTER, "test", deadline), wire.ResumeClusterRequest())
    assert error.value.reason == "OUTCOME_UNKNOWN"
    assert "idempotency key" in error.value.remedy


async def test_a_token_lookup_without_an_answer_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadlines, "READ_WITHIN", 0.6)
    store, clock = cast("Any", SimpleNamespace(find_all=silent)), cast("Any", None)
    text, _ = text_of(AccessTokenId(new_id()), bytes(32))
    async with asyncio.timeout(5):
        with pytest.raises(MemberUnavailableError, match="PostgreSQL timed out"):
            await Authentication(store, clock, demanded=True).identify_caller(
                (f"Bearer {text}",), never
            )
