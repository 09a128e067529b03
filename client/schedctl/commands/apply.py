"""`schedctl apply`: all manifests are validated before the first is stored."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from schedclient import Client
from schedctl.columns import JOBS
from schedctl.failure import CommandFailure
from schedctl.manifests import job_diff, job_steps, manifests, object_steps
from schedctl.manifests.job_steps import JobStep
from schedctl.manifests.manifests import Manifest, ReadManifests
from schedctl.manifests.object_steps import CalendarStep, PoolStep
from schedctl.options.global_options import Command, flag, option, pass_session
from schedctl.output import message, show_list, show_warnings
from schedctl.session import Session
from schedkit.records import dataclass
from schedproto.v1 import job_pb2


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    pools: Sequence[PoolStep]
    calendars: Sequence[CalendarStep]
    jobs: Sequence[JobStep]

    @property
    def verbs(self) -> list[str]:
        kinds: tuple[Sequence[PoolStep | CalendarStep | JobStep], ...]
        kinds = (self.pools, self.calendars, self.jobs)
        return [one.verb for steps in kinds for one in steps]


@click.command(cls=Command)
@option(
    "-f --file FILE|DIR|-",
    "Manifests to apply: a file, a folder, or - for standard input; repeatable.",
    "files",
    multiple=True,
    required=True,
)
@flag("--dry-run", "Preview: show the changes, store nothing, exit 1 if there are changes.")
@pass_session
def apply(session: Session, files: tuple[str, ...], dry_run: bool) -> None:
    """Create or update jobs, pools and calendars from manifests.

    If a manifest isn't valid, nothing is stored. A manifest with an etag is rejected if the stored
    job has a different etag. A manifest without a namespace uses --namespace, else the namespace of
    the context.
    """
    reading = manifests.read_or_fail(files)
    if "namespace" in session.typed:
        _refuse_others(reading, session.namespace)
    plan = session.run(lambda client: _plan(client, reading))
    _show_changes(session, plan)
    if not dry_run:
        plan = session.run(lambda client: _store(client, plan))
    if session.tabular:
        _show_outcome(plan, "would be " if dry_run else "")
    else:
        show_list(session, [step.after for step in plan.jobs], JOBS)
    for step in plan.jobs:
        show_warnings(step.after)
    if dry_run and set(plan.verbs) - {"unchanged"}:
        click.get_current_context().exit(1)


def _show_changes(session: Session, plan: ApplyPlan) -> None:
    """Print the changes of existing objects, line by line."""
    for one in plan.pools:
        for line in ([f"pool {one.after.name}:"] if one.lines else []) + one.lines:
            message(line)
    for step in plan.jobs:
        if step.before is not None and step.verb == "updated":
            message(f"{step.after.name}:")
            for line in job_diff.between(session, step.before, step.after):
                message(line)
            if step.pause is not None:
                message(f"  paused: {step.pause[0] or 'true'}")


def _show_outcome(plan: ApplyPlan, would: str) -> None:
    for pool in plan.pools:
        click.echo(f"pool {pool.after.name} {would}{pool.verb}")
    for one in plan.calendars:
        click.echo(f"calendar {one.after.name} v{one.after.version} {would}{one.verb}")
    for step in plan.jobs:
        click.echo(f"job {step.after.name} {would}{step.verb}")
    counts = Counter(plan.verbs)
    message(", ".join(f"{count} {would}{verb}" for verb, count in counts.items()) or "nothing")


def _refuse_others(reading: ReadManifests, namespace: str) -> None:
    found: list[Manifest[Any]] = [*reading.jobs, *reading.calendars, *reading.pools]
    for one in found:
        if one.spec.namespace not in ("", namespace):
            raise CommandFailure(
                f"{one.where}: {one.spec.name} belongs to namespace {one.spec.namespace}, but"
                f" --namespace names {namespace}",
                reason="WRONG_NAMESPACE",
                remedy="remove the option --namespace, or the key namespace of the manifest",
            )


async def _plan(client: Client, reading: ReadManifests) -> ApplyPlan:
    """Return the changes; raise the cluster's first rejection before anything is stored."""
    pools = await object_steps.plan_pools(client, reading.pools)
    calendars = await object_steps.plan_calendars(client, reading.calendars)

    def checked(job: job_pb2.Job) -> job_pb2.Job:
        return object_steps.without_new(job, pools, calendars, client.namespace)

    return ApplyPlan(pools, calendars, await job_steps.plan(client, reading.jobs, checked))


async def _store(client: Client, plan: ApplyPlan) -> ApplyPlan:
    """Store pools and calendars, then the jobs that use them."""
    pools = [await object_steps.store_pool(client, step) for step in plan.pools]
    calendars = [await object_steps.store_calendar(client, step) for step in plan.calendars]
    return ApplyPlan(pools, calendars, await job_steps.store(client, plan.jobs))
