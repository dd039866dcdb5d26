"""Accuracy of the planner's step times and memory for runs that it has not seen."""
