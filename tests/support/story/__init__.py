"""Synthetic histories of fault runs: a correct one in a line, then whatever a test makes of it.

    story = leader_killed()                     each second for 250 s, one leader killed, all right
    story = leader_killed(without={150})        … and second 150 is left to the test
    run = story.fire(150); story.assign(run, 150.1) …
    check(story.history())

Times are seconds since the story began. A story lists each row's changes in order of time; rows of
different keys may follow in any order, the commits are sorted when the history is made. Tokens
grow with the time of their assignment, within the epoch that the shard has then. The final tables
are what the commits add up to.
"""

from support.story.restored import Restored, restored
from support.story.rows import BASE, delete, final, insert, stamp, update
from support.story.stage import Job
from support.story.telling import Run, Story, live_row
from support.story.worlds import broken, leader_killed, no_faults

__all__ = [
    "BASE",
    "Job",
    "Restored",
    "Run",
    "Story",
    "broken",
    "delete",
    "final",
    "insert",
    "leader_killed",
    "live_row",
    "no_faults",
    "restored",
    "stamp",
    "update",
]
