"""The configuration of `schedd`: all settings in `member_config`, of other servers in `servers`."""
