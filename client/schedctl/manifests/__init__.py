"""Manifests: YAML documents that become jobs, pools and calendars."""
