"""The checks of `trainyard prove`: each submits jobs, and compares their results with bounds."""
