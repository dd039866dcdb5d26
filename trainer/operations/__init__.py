"""Operations: background work on checkpoints, each run by a command."""
