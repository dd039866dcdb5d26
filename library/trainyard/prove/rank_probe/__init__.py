"""The job that probes ranks, and the verdict on what they measured."""
