"""Programs that run in the environments of the compared schedulers: each enqueues and runs jobs."""
