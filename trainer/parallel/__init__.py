"""One module per kind of parallelism or wrapper; `trainer.parallel.parallelize` applies them."""
