"""The trainer of `exact`: steps of the recipe's trainer, the same on any number of ranks."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.distributed import ParallelDims
from torchtitan.hf_datasets.text_datasets import (
    InterleavedChatDataLoader,
    InterleavedHuggingFaceTextDataLoader,
)
from torchtitan.models.common.moe import MoE
from torchtitan.tools.logging import logger
from torchtitan.trainer import Trainer

from trainyard.adapters.torchtitan.batch_split import (
    BatchSplit,
    required_batch_size,
    split_batch,
)
from trainyard.adapters.torchtitan.recipe import BuiltBy, may_end, order_facts
from trainyard.adapters.torchtitan.step_checkpoints import StepCheckpoints
from trainyard.adapters.torchtitan.step_logger import StepLogger, StepSize
from trainyard.adapters.torchtitan.stream_loader import StreamLoader, sample_id
from trainyard.data import fold_seed
from trainyard.run.session import Run, init

DEFAULT_SEED = 0
"""Seed of the random numbers in a step, if the recipe has no `debug.seed`."""


def exact_config(config: Any) -> Any:
    """Return a copy of a recipe that builds the recipe's trainer with `ExactSteps`.

    An exact recipe is returned unchanged.

    Raises:
        TypeError: the recipe does not belong to torchtitan's trainer.
    """
    if not isinstance(config, Trainer.Config):
        raise TypeError(f"{type(config).__qualname__}: legal is a Trainer.Config of torchtitan")
    if issubclass(config._owner, ExactSteps):
        return config
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    kind: Any = type(config)
    return _exact_class(kind).Config(**fields)


@cache
def _exact_class(config: Any) -> Any:
    """Return a subclass of a config class's trainer, with exact steps and its own `Config`."""
    body: dict[str, Any] = {"__module__": __name__, "__qualname__": "ExactTrainer.Config"}
    own: Any = type("Config", (config,), body | {"__doc__": config.__doc__})
    body = {
        "__module__": __name__,
        "__doc__": config._owner.__doc__,
        "Config": dataclasses.dataclass(kw_only=True, slots=True)(own),
    }
    bases = ExactSteps, config._owner
    return types.new_class("ExactTrainer", bases, exec_body=lambda space: space.update(body))


def split_of(config: Any, world_size: int) -> BatchSplit:
    """Return the split of a recipe's global batch over the data-parallel ranks.

    Raises:
        ValueError: the recipe has no global batch size, it has pipeline stages, or no split is
            legal.
        AssertionError: the axes of the layout do not fit the world size.
    """
    batch = required_batch_size(config.training.global_batch_size)
    if (stages := config.parallelism.pipeline_parallel_degree) > 1:
        raise ValueError(
            f"parallelism.pipeline_parallel_degree={stages}: legal is 1, because torchtitan 0.3.0 "
            "calls a pipeline schedule with parameters that torch 2.13 does not have"
        )
    dims = ParallelDims.from_config(config.parallelism, world_size)
    return split_batch(
        batch,
        config.training.local_batch_size,
        dp=dims.dp_replicate * dims.dp_shard,
        may_pad=not has_router(config),
    )


def has_router(config: Any) -> bool:
    """Return whether the model is a mixture of experts, whose routers count padded rows."""
    return any(True for _ in config.model_spec.traverse(MoE.Config))


class ExactSteps:
    """Steps of a torchtitan trainer that do not depend on the world size or on interruptions.

    This class precedes the recipe's trainer in the list of base classes. It reads the config only
    when the trainer is created, because command-line options change the config before.
    """

    run: Run
    stops: bool
    """Whether the job is to stop after this step; the same on all ranks."""
    saves: bool
    """Whether a person requested a save after this step; the same on all ranks."""

    # Attributes of torchtitan's trainer.
    config: Any
    step: int
    ntokens_seen: int
    dataloader: StreamLoader
    parallel_dims: Any
    metrics_processor: Any
    validator: Any

    def __init__(self, config: Any) -> None:
        self.run = init()
        self.stops = self.saves = False
        self._split = split_of(config, int(os.environ["WORLD_SIZE"]))
        self._seed = DEFAULT_SEED if config.debug.seed is None else config.debug.seed
        self._step_tokens = self._split.global_batch_size * config.training.seq_len
        self._tokens = 0
        self._may_save = config.checkpoint.enable and not config.checkpoint.load_only
        super().__init__(self._fitted(config))  # type: ignore[call-arg]
        dims = self.parallel_dims
        self._reports_samples = dist.get_rank() % (dims.cp * dims.tp) == 0
        loss_mesh = dims.get_optional_mesh("loss")
        self._counts_tokens = loss_mesh is None or loss_mesh.get_local_rank() == 0
        self._logger = StepLogger(
            self.metrics_processor.logger,
            self.run,
            size=StepSize(
                rows=self._split.global_batch_size,
                tokens=self._step_tokens,
                padded_rows=self._split.padded_rows,
                micro_batches=self._split.accumulation_steps,
            ),
        )
        self.metrics_processor.logger = self._logger
        if self.config.validator.enable:
            self.validator.local_batch_size = config.training.local_batch_size
            self.validator = _ValidationPhase(self.validator, self.run)
        logger.info(
            "Exact steps: %d rows on %d data-parallel ranks, %d accumulation steps of %d rows, "
            "%d padded rows",
            *(self._split.global_batch_size, self._split.dp, self._split.accumulation_steps),
            *(self._split.local_batch_size, self._split.padded_rows),
        )

    def _fitted(self, config: Any) -> Any:
        """Return the config with this world size's batch sizes, our loader and our checkpoints."""
        split = self._split
        training = dataclasses.replace(
            config.training,
            local_batch_size=split.local_batch_size,
            global_batch_size=split.global_batch_size + split.padded_rows,
        )
        return dataclasses.replace(
            config,
            training=training,
            dataloader=BuiltBy(config.dataloader, self._stream_loader),
            checkpoint=BuiltBy(config.checkpoint, StepCheckpoints),
        )

    def _stream_loader(
        self,
        config: Any,
        *,
        dp_rank: int,
        seq_len: int,
        dp_world_size: int,
        local_batch_size: int,
        **arguments: Any,
    ) -> StreamLoader:
        batch = self._split.global_batch_size
        workers = getattr(config, "num_workers", 0)
        alone = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None}
        names = {field.name for field in dataclasses.fields(config)}
        stream = dataclasses.replace(config, **{n: v for n, v in alone.items() if n in names})

        def create(row: int) -> Any:
            return _for_row(stream, row).build(
                dp_rank=row,
                dp_world_size=batch,
                seq_len=seq_len,
                local_batch_size=1,
                **arguments,
            )

        return StreamLoader(
            create,
            self._split,
            dp_rank=dp_rank,
            facts=order_facts(
                config,
                global_batch_size=batch,
                seq_len=seq_len,
                tokenizer=arguments.get("tokenizer"),
            ),
            workers=workers,
            steps_ahead=getattr(config, "prefetch_factor", None) or 2,
            pin_memory=getattr(config, "pin_memory", False) and torch.accelerator.is_available(),
            any_ended=_any_ended(dist.new_group(backend="gloo")) if may_end(config) else None,
        )

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Train one step with a seed for this step; report it; read requests to stop or save."""
        torch.manual_seed(fold_seed(self._seed, self.step))
        tokens = self._tokens + self._step_tokens
        # torchtitan logs the sum of this counter over the ranks that divide the batch.
        self.ntokens_seen = tokens if self._counts_tokens else 0
        self._logger.begin_step()
        super().train_step(data_iterator)  # type: ignore[misc]
        self._logger.end_step()
        self._tokens = tokens
        self.run.progress(self.step, total=self.config.training.steps)
        if self.run.in_job:  # elsewhere a process may train more than once
            self._report_samples()
        self.stops = self.run.should_stop()
        if self._may_save:  # otherwise the run would confirm a save that never happens
            self.saves = self.run.should_save(self.step)

    def _report_samples(self) -> None:
        samples = self.dataloader.step_samples if self._reports_samples else {}
        first = (self.step - 1) * self._split.global_batch_size
        ids = [sample_id(sample) for sample in samples.values()]
        self.run.consumed(self.step, ids, [first + row for row in samples])

    def post_dataloading_process(self, input_dict: Any, labels: torch.Tensor) -> Any:
        """Prepare a micro-batch without counting its tokens, which may be padded."""
        tokens = self.ntokens_seen
        found = super().post_dataloading_process(input_dict, labels)  # type: ignore[misc]
        self.ntokens_seen = tokens
        return found

    def should_continue_training(self) -> bool:
        """Return whether another step follows; False after a request to stop."""
        return not self.stops and bool(super().should_continue_training())  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, which are the same on all ranks."""
        return {"step": self.step, "ntokens_seen": self._tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at counters of any world size."""
        self.step, self._tokens = state_dict["step"], state_dict["ntokens_seen"]


class _ValidationPhase:
    """A validator whose validations are a phase of the run."""

    def __init__(self, validator: Any, run: Run) -> None:
        self._validator, self._run = validator, run

    def validate(self, *arguments: Any, **keywords: Any) -> None:
        with self._run.phase("validating"):
            self._validator.validate(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._validator, name)


def _for_row(config: Any, row: int) -> Any:
    """Return the loader's config for a stream; in a mixture, each stream has its own seed.

    With one seed for all streams, all rows of a step would come from the same source.
    """
    mixtures = (InterleavedHuggingFaceTextDataLoader.Config, InterleavedChatDataLoader.Config)
    if isinstance(config, mixtures):
        return dataclasses.replace(config, seed=fold_seed(config.seed, row))
    return config


def _any_ended(group: Any) -> Any:
    def any_ended(ended: bool) -> bool:
        flag = torch.tensor(int(ended))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
        return bool(flag.item())

    return any_ended
