"""The life of a run: states, retries, overlap, pools, deadlines, retention. Pure."""
