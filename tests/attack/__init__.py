"""Attacks on a whole control plane, each with the outcome that is predicted: `make attack`."""
