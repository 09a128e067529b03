"""The commands `schedctl dlq`."""
