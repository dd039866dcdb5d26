"""One attempt: its ordered recipe, the steps, and what happens between them."""
