"""Jobs from submission to their last attempt, with the queue, ranks, checkpoints, operations, packs
and shells.
"""
