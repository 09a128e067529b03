"""Calendars: the times of a schedule that don't run, and the other days on which they run instead.

    what people write ──rules──▶ Rules ──exclusion (zones, masks)──▶ bits of each local day
    base times ─┬─▶ excluded: recorded as SKIPPED (CALENDAR)
                ├─▶ open: they run
                └─▶ moved: the same local time on the nearest open day, if a calendar rolls

A time is judged by the local time in the calendar's zone, so both passes of a repeated hour are
treated alike.
"""
