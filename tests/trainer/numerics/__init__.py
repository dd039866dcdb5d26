"""Each layout against one rank, by numbers: as a test, and as the table of docs/numerics.md."""
