"""Jobs from submission to their last attempt: the queue, ranks, checkpoints, operations, packs,
shells."""
