"""The commands `schedctl cron`."""
