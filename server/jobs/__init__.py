"""Jobs from submission to their last attempt, with checkpoints, operations, packs and shells."""
