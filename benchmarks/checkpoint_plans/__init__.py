"""Plans and indexes of checkpoints of up to 4,096 ranks, computed without those ranks."""
