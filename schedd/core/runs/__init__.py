"""Rules for runs: states, retries, overlap, pools, deadlines, retention. Pure."""
