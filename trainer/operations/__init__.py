"""Operations: background work on checkpoints; each operation runs as a command."""
