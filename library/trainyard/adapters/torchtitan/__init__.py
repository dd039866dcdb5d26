"""Exact data, checkpoints and metrics for torchtitan's trainer: `return exact(config)`.

torchtitan is imported by the first call of `exact`, so the modules without it can be used alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtitan.trainer import Trainer

__all__ = ["exact"]


def exact(config: Trainer.Config) -> Any:
    """Return a recipe whose steps do not depend on the world size or on interruptions.

    The result has the fields and the command line of `config`, and builds a trainer of the
    recipe's class with exact steps. It needs `training.global_batch_size`, here or on the command
    line. docs/adapters.md has the contract.

    Raises:
        TypeError: `config` does not belong to torchtitan's trainer.
    """
    from trainyard.adapters.torchtitan.exact_steps import exact_config

    return exact_config(config)
