"""Schedules: cron, calendars, zones, and the scheduled times that they name. Pure."""
