"""The checkup of the cluster: what a person would look at, judged."""

from schedd.api import views
from schedd.api.services import Caller, Services
from schedd.core.checkup import examine
from schedd.core.checkup.finding import Finding
from schedproto.v1 import cluster_service_pb2 as wire


async def check_cluster(
    services: Services, caller: Caller, request: wire.CheckClusterRequest
) -> wire.CheckClusterResponse:
    """Every finding, good ones too. Changes nothing."""
    del caller, request
    facts = await services.checkup.facts()
    own = facts.view.member(services.cluster.tenure)
    return wire.CheckClusterResponse(
        findings=[_message(finding) for finding in examine(facts)],
        member=own.name if own else "",
        now=views.stamp(services.clock.now()),
    )


def _message(finding: Finding) -> wire.Finding:
    return wire.Finding(
        area=finding.area,
        severity=wire.Finding.Severity.Value(f"SEVERITY_{finding.severity.value}"),
        check=finding.check,
        subject=finding.subject,
        what=finding.what,
        why=finding.why,
        remedy=finding.remedy,
    )
