"""Operations: work on stored checkpoints, and which of these may go (lifecycle, 31-41)."""
