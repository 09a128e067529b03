"""What calls write into the audit log."""
