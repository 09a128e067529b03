"""The schedules that cost most to compute: each second, but for one second of each year."""

from __future__ import annotations

from random import Random

from schedproto.v1 import job_pb2


def one_second_a_year(seed: int) -> list[str]:
    """Return 100 exclude lines, nearly all different for each day, that leave one second a year."""
    random = Random(seed)
    lines = ["* * * * 2-12 *", "* * * 2-31 1 *", "* * 1-23 1 1 *"]
    lines += ["* 1-59 0 1 1 *", "1-59 0 0 1 1 *"]
    while len(lines) < 100:
        chosen = ",".join(map(str, sorted(random.sample(range(1, 32), 15))))
        months = ",".join(map(str, sorted(random.sample(range(1, 13), 6))))
        low = random.randint(0, 59)
        lines.insert(0, f"{low}-59 {random.randint(0, 30)}-59 1-23 {chosen} {months} *")
    return lines


def worst(name: str, seed: int = 1) -> job_pb2.Job:
    """Return a job of each second with these exclude lines."""
    return job_pb2.Job(
        name=name,
        cron=["* * * * * *"],
        time_zone="Europe/Berlin",
        exclude=job_pb2.Exclude(cron=one_second_a_year(seed)),
        shell=job_pb2.ShellAction(argv=["true"]),
    )
