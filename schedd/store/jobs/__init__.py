"""Rows of jobs, calendars, pools and chains."""
