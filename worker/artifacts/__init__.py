"""Sends images, histograms and files of programs from the run directory to the server."""
