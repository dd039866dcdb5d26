"""Operations: what is done to checkpoints when nobody trains with them; one command each."""
