"""Trains under torchrun: knows files, never the network or the control plane."""
