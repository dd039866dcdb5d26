"""Whether a resumed attempt goes on where its checkpoint stood."""
