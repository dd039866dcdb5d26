"""Sends images, histograms and files of programs to the server."""
