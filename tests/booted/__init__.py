"""The units of deploy/systemd as shipped, under a systemd that was booted for them."""
