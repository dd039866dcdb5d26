"""Supply on virtual time: a queue over simulated engines, by the real scheduler and provisioner."""
