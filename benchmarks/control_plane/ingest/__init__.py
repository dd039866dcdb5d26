"""Costs of storing reports, the maximum rate of a machine, and the growth of both."""
