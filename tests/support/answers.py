"""Answers of a scripted member: a job, and runs of it."""

from datetime import UTC, datetime

from schedproto.v1 import common_pb2, job_pb2, run_pb2


def run_of(state: int = common_pb2.RUN_STATE_SUCCEEDED, **fields: object) -> run_pb2.Run:
    run = run_pb2.Run(run_id="r1", namespace="default", state=state, attempt=1, **fields)
    run.scheduled_at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
    return run


ETL = job_pb2.Job(
    job_id="id1", namespace="default", name="etl", cron=["0 2 * * *"], generation=3, etag="e3"
)
ETL.shell.argv.extend(["/bin/etl"])
