"""The waiting jobs: their groups, their order, and their expected starts."""
