"""The dashboard in a real Chromium, over a live cluster."""
