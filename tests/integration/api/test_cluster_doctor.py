"""The checkup as a call: every finding with its severity, and cluster time beside it."""

from __future__ import annotations

from schedproto.v1 import cluster_service_pb2 as wire


async def test_findings_have_area_severity_cause_and_remedy(api):
    answer = await api("CheckCluster", wire.CheckClusterRequest())
    found = {(one.area, one.check): one for one in answer.findings}
    away = found["postgres", "answers"]
    assert (away.severity, away.what) == (wire.Finding.SEVERITY_BAD, "it is away")
    assert away.why
    assert away.remedy
    assert ("cluster", "pause") not in found, "the database would tell it"
    assert found["cluster", "keys"].severity == wire.Finding.SEVERITY_OK
    assert not found["cluster", "keys"].remedy
    assert answer.now.seconds
    assert not (await api("ListAudit", wire.ListAuditRequest())).entries, "it changes nothing"
