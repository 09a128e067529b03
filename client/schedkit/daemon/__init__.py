"""The life of a daemon: service manager, reload, logs."""
