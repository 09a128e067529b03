"""The doctor: checks of the cluster."""

import asyncio

from schedd.api import views
from schedd.api.cluster.work_facts import work_facts
from schedd.api.services import Caller, Services
from schedd.core.checkup import examine
from schedd.core.checkup.finding import CheckupFinding
from schedkit.records import replace
from schedproto.v1 import cluster_service_pb2 as wire


async def check_cluster(
    services: Services, caller: Caller, request: wire.CheckClusterRequest
) -> wire.CheckClusterResponse:
    """Return all findings, good ones too. Changes nothing."""
    del caller, request
    async with asyncio.TaskGroup() as group:
        work = group.create_task(work_facts(services), name="checkup: work")
        facts = await services.checkup.facts()
    facts = replace(facts, work=work.result())
    own = facts.view.member(services.cluster.tenure)
    return wire.CheckClusterResponse(
        findings=[_message(finding) for finding in examine(facts)],
        member=own.name if own else "",
        now=views.stamp(services.clock.now()),
    )


def _message(finding: CheckupFinding) -> wire.Finding:
    return wire.Finding(
        area=finding.area,
        severity=wire.Finding.Severity.Value(f"SEVERITY_{finding.severity.value}"),
        check=finding.check,
        subject=finding.subject,
        what=finding.what,
        why=finding.why,
        remedy=finding.remedy,
    )
