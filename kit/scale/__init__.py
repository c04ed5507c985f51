"""More than one machine: the room for fan-out, sweeps and cluster tasks. Nothing else imports it."""
