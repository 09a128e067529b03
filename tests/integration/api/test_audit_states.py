"""What the audit has of each change: what it was, what it is, and whose it is."""

from __future__ import annotations

import json
from typing import Any

from schedproto.v1 import (
    cluster_service_pb2,
    job_pb2,
    job_service_pb2,
)
from schedproto.v1 import run_service_pb2 as wire

SHELL = job_pb2.ShellAction(argv=["true"])
BURY = """
INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
SELECT run_id, scheduled_at, job_id, 'f' FROM runs RETURNING run_id
"""
FAIL = """
UPDATE runs SET state = 'FAILED', reason = 'EXIT_CODE', finished_at = now() RETURNING run_id
"""


async def entries(api: Any, **which: Any) -> list[cluster_service_pb2.AuditEntry]:
    """Newest first."""
    asked = cluster_service_pb2.ListAuditRequest(**which)
    return list((await api("ListAudit", asked)).entries)


async def states(api: Any, action: str) -> tuple[Any, Any]:
    """Before and after of the last such line; None: nothing is said."""
    last = (await entries(api, action=action))[0]
    return tuple(json.loads(text) if text else None for text in (last.before, last.after))


async def buried(api: Any, count: int, namespace: str = "billing") -> list[str]:
    """So many runs of the job `etl` that failed for good."""
    job = job_pb2.Job(name="etl", namespace=namespace, shell=SHELL, on_demand=True)
    await api("CreateJob", job_service_pb2.CreateJobRequest(job=job))
    asked = job_service_pb2.TriggerJobRequest(job="etl", namespace=namespace)
    for _ in range(count):
        await api("TriggerJob", asked)
    await api.world.sql(FAIL)
    return [str(run_id) for [run_id] in await api.world.sql(BURY)]


# -- Dead letters --


async def test_a_discard_says_whose_letters_went_and_how_many(api):
    await buried(api, 3)
    await api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(namespace="billing", all=True))
    _, after = await states(api, "discard")
    assert after == {"namespace": "billing", "all": True, "discarded": 3}


async def test_a_discard_says_which_letters_were_chosen(api):
    first, *_ = await buried(api, 3)
    chosen = wire.DiscardDeadLettersRequest(namespace="billing", run_ids=[first], note="by hand")
    await api("DiscardDeadLetters", chosen)
    _, after = await states(api, "discard")
    named = {"namespace": "billing", "runs": [first], "note": "by hand", "discarded": 1}
    assert after == named
    chosen = wire.DiscardDeadLettersRequest(namespace="billing", job="etl", fingerprint="f")
    await api("DiscardDeadLetters", chosen)
    _, after = await states(api, "discard")
    assert after == {"namespace": "billing", "job": "etl", "fingerprint": "f", "discarded": 2}


async def test_a_redrive_says_whose_letters_it_does_again_and_how_many(api):
    await buried(api, 2)
    asked = wire.RedriveDeadLettersRequest(namespace="billing", job="etl", rate=7, note="mended")
    await api("RedriveDeadLetters", asked)
    before, after = await states(api, "redrive")
    said = {"namespace": "billing", "job": "etl", "rate": 7, "note": "mended", "total": 2}
    assert (before, after) == (None, said)


async def test_a_redrive_that_is_stopped_and_goes_on_says_so(api):
    await buried(api, 2)
    asked = wire.RedriveDeadLettersRequest(namespace="billing", all=True)
    made = (await api("RedriveDeadLetters", asked)).redrive
    await api("StopRedrive", wire.StopRedriveRequest(redrive_id=made.redrive_id))
    stopped = {"namespace": "billing", "stopped": True, "by": "tester"}
    runs = {"namespace": "billing", "stopped": False}
    assert await states(api, "stop") == (runs, stopped)
    await api("ResumeRedrive", wire.ResumeRedriveRequest(redrive_id=made.redrive_id))
    assert await states(api, "resume") == (stopped, runs)
