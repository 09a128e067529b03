"""An `ok` that waited across a promotion of a standby confirms nothing that may be lost with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from schedd.api.errors import OutcomeUnknownError
from schedd.core.ids import Timeline
from schedd.core.runs.lifecycle import LIVE
from schedproto.v1 import cluster_service_pb2, job_pb2
from schedproto.v1 import job_service_pb2 as wire
from support.postgres import ScratchServer, private_postgres, promote
from support.store import draft


@pytest.fixture
def private() -> Iterator[ScratchServer]:
    with private_postgres(copied=True) as server:
        yield server


@pytest.fixture
def dsn(private: ScratchServer) -> str:
    """Of a server that the test may promote: the calls' own database."""
    return private.create_migrated()


def job(**changes: Any) -> job_pb2.Job:
    shell = job_pb2.ShellAction(argv=["true"])
    return job_pb2.Job(name="j", on_demand=True, shell=shell, **changes)


CHANGES: dict[str, Message] = {
    "PauseJob": wire.PauseJobRequest(job="j"),
    "UpdateJob": wire.UpdateJobRequest(job=job(slots=2), update_mask=FieldMask(paths=["slots"])),
    "DeleteJob": wire.DeleteJobRequest(job="j"),
    "PauseCluster": cluster_service_pb2.PauseClusterRequest(),
}


async def dispatched(api: Any) -> None:
    """A run of the job that may still start, so that a change of it waits."""
    made = await api("CreateJob", wire.CreateJobRequest(job=job()))
    await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    [member] = api.world.members
    [run] = await member.store.owner.live_runs([*member.epochs], list(LIVE))
    await member.assigned(draft(run, generation=made.generation))


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_whose_ok_waited_across_a_promotion_is_unknown(
    api: Any, private: ScratchServer, change: str
) -> None:
    """P3.13: the COMMIT was the old primary's, and the new one may lack it."""

    async def promoted_meanwhile(_runs: object) -> None:
        await asyncio.to_thread(promote, private)

    await dispatched(api)
    api.lines.revoke = promoted_meanwhile
    with pytest.raises(OutcomeUnknownError) as unknown:
        await api(change, CHANGES[change])
    assert (unknown.value.reason, bool(unknown.value.remedy)) == ("FAILED_OVER", True)


async def test_a_replaced_server_confirms_no_change(api: Any) -> None:
    """P3.13: cut off with us, it knows of no newer primary; the leader's map does."""
    await dispatched(api)
    api.cluster.now = replace(api.cluster.now, timeline=Timeline(2))
    with pytest.raises(OutcomeUnknownError):
        await api("PauseJob", wire.PauseJobRequest(job="j"))
