"""One module for each way to spread a model; `trainer.parallelize` puts them in order."""
