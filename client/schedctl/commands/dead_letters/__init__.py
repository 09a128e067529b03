"""The commands of `schedctl dlq`."""
