"""Exact data for any script: the samples of each rank, their order, and their randomness.

Imports only the standard library, neither torch nor numpy, so that any interpreter can use it.
docs/exact-data.md has the contract.
"""

from trainyard.data.exact_stream import ExactSampler, ExactStream
from trainyard.data.order_digest import merge_digests, order_digest
from trainyard.data.sample_orders import EpochOrder, Mixture, fold_seed

__all__ = [
    "EpochOrder",
    "ExactSampler",
    "ExactStream",
    "Mixture",
    "fold_seed",
    "merge_digests",
    "order_digest",
]
