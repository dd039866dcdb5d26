"""Exact data, checkpoints and metrics for torchtitan's trainer: `return exact(config)`.

The first call of `exact` imports torchtitan. Modules that do not need torchtitan work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtitan.trainer import Trainer

__all__ = ["exact"]


def exact(config: Trainer.Config) -> Any:
    """Return a recipe whose steps do not depend on the world size or on interruptions.

    The result has the fields and the command line of `config`, and builds a trainer of the recipe's
    class with exact steps. Set `training.global_batch_size` in `config` or on the command line. The
    contract is in docs/adapters.md.

    Raises:
        TypeError: `config` does not belong to torchtitan's trainer.
    """
    from trainyard.adapters.torchtitan.exact_steps import exact_config

    return exact_config(config)
