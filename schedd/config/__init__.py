"""The configuration of `schedd`: all settings are in `member_config`."""
