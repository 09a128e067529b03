"""`schedctl cluster doctor`: the checks of the cluster, and of this machine's clock.

Exit codes: 0 no bad finding (warnings are fine), 1 a bad finding.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import click

from schedclient import Finding
from schedclient.values.reading import value_of
from schedctl.columns import FINDINGS
from schedctl.options.global_options import Command, pass_session
from schedctl.output import MARKS, show_list
from schedctl.session import Session
from schedproto.v1 import cluster_service_pb2 as wire

OFF: Final = timedelta(seconds=1)
BAD: Final = 1


@click.command(cls=Command)
@pass_session
def doctor(session: Session) -> None:
    """Check etcd, PostgreSQL, clocks, members and workers, and print a remedy for each problem.

    Exits with 1 if a check is bad, and with 0 if there are only warnings.
    """
    found = session.run(lambda client: client.cluster.doctor())
    findings = [*found.findings, this_machine(found.now, datetime.now(UTC))]
    if session.output == "table":
        _show(session, findings)
    else:
        show_list(session, findings, FINDINGS, lambda one: f"{one.area}: {one.check}")
    if any(one.severity == "BAD" for one in findings):
        click.get_current_context().exit(BAD)


def this_machine(cluster_time: datetime, here: datetime) -> Finding:
    """Compare this machine's clock with cluster time, to the accuracy of one call."""
    off = here - cluster_time
    finding = wire.Finding(
        area="clocks",
        severity=wire.Finding.SEVERITY_OK,
        check="wall clock",
        subject="this machine",
        what=f"{off.total_seconds() * 1000:+.0f} ms",
    )
    if abs(off) > OFF:
        finding.severity = wire.Finding.SEVERITY_WARN
        finding.why = "relative times in commands and tables are off by the same amount"
        finding.remedy = "start a time service (chrony, systemd-timesyncd)"
    return value_of(Finding, finding)


def _show(session: Session, findings: list[Finding]) -> None:
    """Print the findings by area, with reason and remedy below those that aren't ok."""
    order = [*dict.fromkeys(one.area for one in findings)]
    area = ""
    for one in sorted(findings, key=lambda each: order.index(each.area)):
        if one.area != area:
            area = one.area
            click.echo(click.style(area, bold=True) if session.colour else area, color=True)
        mark, colour = MARKS[one.severity]
        word = f"{mark} {one.severity.lower():<4}"
        word = click.style(word, fg=colour) if session.colour else word
        about = f"{one.check} ({one.subject})" if one.subject else one.check
        click.echo(f"  {word}  {about}: {one.what}", color=True)
        if one.why:
            click.echo(f"          why: {one.why}")
        if one.remedy:
            click.echo(f"          do:  {one.remedy}")
    counts = {word: sum(one.severity == word for one in findings) for word in ("OK", "WARN", "BAD")}
    click.echo(f"{counts['OK']} ok, {counts['WARN']} warn, {counts['BAD']} bad")
