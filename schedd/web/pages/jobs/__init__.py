"""Pages of jobs and schedules."""
