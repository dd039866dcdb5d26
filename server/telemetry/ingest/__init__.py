"""Reports in: parsed, stored once, and passed to what follows from them."""
