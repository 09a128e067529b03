"""Reads that PostgreSQL leaves without an answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.api.calls import UNARY
from schedd.api.errors import OutOfTouch
from schedd.api.services import Caller, Services
from schedproto.v1 import cluster_service_pb2 as wire
from support.callers import TESTER


async def silent(*_: Any) -> Any:
    await asyncio.Event().wait()


async def test_a_read_that_gets_no_answer_ends_before_its_caller_gives_up_and_says_why() -> None:
    services = cast("Services", SimpleNamespace(store=SimpleNamespace(list_audit=silent)))
    read = UNARY["schedd.v1.ClusterService.ListAudit"]
    with pytest.raises(OutOfTouch, match="nothing was changed") as told:
        await read(services, Caller(TESTER, "test", 0.6), wire.ListAuditRequest())
    assert told.value.reason == "DATABASE_SILENT"
    assert "doctor" in told.value.remedy
