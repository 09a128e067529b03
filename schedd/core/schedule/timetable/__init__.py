"""Timetables: many schedules together, their problems (`lint`) and their combined load.

Over a span, a schedule is one number with a bit for each minute. Schedules are combined, compared
and counted by operations on such numbers. So ten thousand schedules over a week take a second, and
no time is ever an object.
"""
