"""One module for each way to spread a model; `trainer.parallel.parallelize` puts them in order."""
