"""One module for each parallelism or wrapper; `trainer.parallel.parallelize` applies them."""
