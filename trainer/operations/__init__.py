"""Operations: background work on checkpoints, a command each."""
