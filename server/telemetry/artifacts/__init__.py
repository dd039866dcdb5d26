"""Images, histograms and files that programs log."""
