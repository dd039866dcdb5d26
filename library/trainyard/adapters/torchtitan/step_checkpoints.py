"""torchtitan's checkpoints in the run: committed saves, and loads on any number of ranks."""

from __future__ import annotations

import dataclasses
import re
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultLoadPlanner
from torchtitan.components.checkpoint import (
    DATALOADER,
    LR_SCHEDULER,
    TRAIN_STATE,
    AsyncMode,
    CheckpointManager,
)
from torchtitan.tools.logging import logger

from trainyard.adapters.torchtitan.stream_loader import FACTS
from trainyard.run.session import init

LOCAL_FOLDER = Path("checkpoints")
"""Folder in the working directory for checkpoints that are saved outside of a job."""
NAME = re.compile(r"step-([0-9]+)")


class StepCheckpoints(CheckpointManager):  # type: ignore[misc]
    """Checkpoint manager whose saves are checkpoints of the run.

    It saves when torchtitan's manager does (at the recipe's interval and after the last step), and
    after a request to stop or save. The trainer, one of the states, holds these requests.

    Args:
        config: the recipe's config.
        arguments: components and states, as for torchtitan's manager.

    Raises:
        ValueError: a field of the config is illegal for exact steps or in this job.
    """

    def __init__(self, config: Any, **arguments: Any) -> None:
        self.run = init()
        self._parent: Path | None = None
        super().__init__(self._settled(config), **arguments)

    def _settled(self, config: Any) -> Any:
        """Return the config with synchronous, complete saves; a disabled config stays unchanged.

        `keep_latest_k` and `async_mode` are ignored with a warning, `last_save_model_only` without.
        """
        if not isinstance(config, CheckpointManager.Config):
            raise ValueError(
                f"checkpoint is {type(config).__qualname__}: legal is CheckpointManager.Config"
            )
        if not config.enable:
            if self.run.resume_from is not None:
                raise ValueError(
                    "checkpoint.enable=False: legal is True, since the job resumes from a "
                    "checkpoint"
                )
            return config
        if config.last_save_in_hf:
            raise ValueError(
                "checkpoint.last_save_in_hf=True: legal is False, since the last save is complete; "
                "torchtitan's scripts convert its files"
            )
        if self.run.in_job and config.load_step != -1:
            raise ValueError(
                f"checkpoint.load_step={config.load_step}: legal is -1 in a job, whose checkpoint "
                "the server chooses (trainyard resume --checkpoint)"
            )
        ignored = [f"keep_latest_k={config.keep_latest_k}"] if config.keep_latest_k else []
        if config.async_mode != "disabled":
            ignored.append(f"async_mode={config.async_mode!r}")
        if ignored and self.run.rank == 0:
            logger.warning(
                "checkpoint.%s has no effect: saves are synchronous, and only a job's retention "
                "deletes checkpoints",
                " and ".join(ignored),
            )
        return dataclasses.replace(
            config, keep_latest_k=0, async_mode="disabled", last_save_model_only=False
        )

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        trainer = self.states[TRAIN_STATE]
        is_ordered = (trainer.stops or trainer.saves) and not self.load_only
        if not is_ordered and not self._should_save(curr_step, last_step):
            return False
        kind = "final" if last_step else "stop" if trainer.stops else "interval"
        with self.run.checkpoint(curr_step, kind=kind) as folder:
            self.dcp_save(
                self._flattened_model_states_sd(),
                checkpoint_id=str(folder),
                async_mode=AsyncMode.DISABLED,
                enable_garbage_collection=True,
            )
        return True

    def _load(self, step: int = -1) -> bool:
        with self.run.phase("loading"):
            # Every rank reads it, because it fences off earlier attempts.
            self._parent = self.run.resume_from
            self.folder = str(LOCAL_FOLDER if self._parent is None else self._parent.parent)
            if self._parent is None:
                dist.barrier()  # rank 0 may have restored the name of a folder
            found = bool(super()._load(step))
            _align_learning_rates(self.states[LR_SCHEDULER])
        return found

    def dcp_load(
        self, state_dict: dict[str, Any], checkpoint_id: str, *arguments: Any, **keywords: Any
    ) -> None:
        """Load states; refuse a checkpoint after the last step or with another data order."""
        # A folder of Hugging Face's files, which has weights only, cannot be read.
        if {DATALOADER, TRAIN_STATE} & state_dict.keys():
            facts, saved_steps = _saved(checkpoint_id)
            if DATALOADER in state_dict:
                self.states[DATALOADER].check_order(facts)
            if TRAIN_STATE in state_dict:
                _check_steps(self.states[TRAIN_STATE].config.training.steps, saved_steps)
        super().dcp_load(state_dict, checkpoint_id, *arguments, **keywords)

    def _find_load_step(self, folder: str = "") -> int:
        """Return the step of the parent checkpoint; -1 in a job without one.

        Outside of a job, return the highest step of the committed local folders, or -1.
        """
        if self._parent is not None:
            return _step_of(self._parent)
        if self.run.in_job:
            return -1  # the folder belongs to runs without a job
        steps = [_step_of(path) for path in LOCAL_FOLDER.iterdir() if (path / ".metadata").exists()]
        return max(steps, default=-1)


def _step_of(folder: Path) -> int:
    """Return the step in a folder's name; -1 for another name, such as that of a partial save."""
    found = NAME.fullmatch(folder.name)
    return int(found[1]) if found else -1


def _saved(folder: str) -> tuple[str | None, int | None]:
    """Return the facts of the data order and the step; None for one that a checkpoint lacks."""
    state: dict[str, Any] = {DATALOADER: {FACTS: None}, TRAIN_STATE: {"step": None}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each rank reads it alone
        planner = DefaultLoadPlanner(allow_partial_load=True)
        dcp.load(state, checkpoint_id=folder, planner=planner, no_dist=True)
    return state[DATALOADER][FACTS], state[TRAIN_STATE]["step"]


def _check_steps(steps: int, saved: int | None) -> None:
    """Refuse a checkpoint after the last step, because the schedule has no learning rate for it.

    Raises:
        ValueError: the checkpoint's step is larger than `steps`.
    """
    if saved is not None and steps < saved:
        raise ValueError(
            f"training.steps={steps}: legal is at least {saved}, the step of the checkpoint"
        )


def _align_learning_rates(schedulers: Any) -> None:
    """Set each group's learning rate to that of the schedule.

    A load restores the rate that the optimizer saved, which may follow from another number of
    steps.
    """
    for scheduler in schedulers:
        groups = scheduler.optimizer.param_groups
        for group, rate in zip(groups, scheduler.get_last_lr(), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(float(rate))
            else:
                group["lr"] = rate
