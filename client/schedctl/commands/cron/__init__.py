"""The commands of `schedctl cron`."""
