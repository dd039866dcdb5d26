"""How well the planner predicts step times and memory of runs that it has not seen."""
