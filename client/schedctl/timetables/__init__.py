"""Tables of schedules that `schedctl cron` reads."""
