"""The worker's stream at a member."""
