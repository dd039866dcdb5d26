"""Jobs from submission to the last attempt, with queue, ranks, checkpoints, operations, packs and
shells."""
