"""Timetables: many schedules together, their problems and their combined load.

    crontab ──crontab──▶ lines ╮
    manifests, jobs ───────────┴▶ entries ──minutes──▶ bits of a grid ──tally──▶ starts a minute
                                    │                        ├─▶ load: the hottest minutes
                                    │                        ├─▶ difference: in one, not in both
                                    ╰─▶ lint                 ╰─▶ flatten: the load spread by `H`

Over a span, a schedule is one number with a bit for each minute. Schedules are combined, compared
and counted by operations on such numbers. So ten thousand schedules over a week take a second, and
no time is ever an object.

Pure, like `cron`: zones come from tzdata, and time is an argument.
"""
