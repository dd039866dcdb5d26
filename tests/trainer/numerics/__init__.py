"""Each layout against one rank, in numbers: a test, and the table of docs/numerics.md."""
