"""Telemetry: events become metrics and log lines."""
