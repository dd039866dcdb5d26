"""Exact data for Hugging Face's `Trainer`: the same steps at any world size and after a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    EvalLoopOutput,
    get_last_checkpoint,
    has_length,
    seed_worker,
)

from trainyard.adapters.mean_loss import MeanLoss
from trainyard.data import ExactSampler
from trainyard.run.session import Run, init

UNCOUNTED = -100
"""Label that does not count towards the loss."""
SAMPLER_FILE = "exact_sampler.json"
"""File with the sampler's state in a checkpoint of the trainer."""


class ExactTrainer(Trainer):
    """A `transformers.Trainer` with the same steps at any world size.

    Each step consumes `global_batch_size` samples over all ranks, in the order of `ExactSampler`.
    The trainer counts labels (`num_items_in_batch`) if the labels are integers and the model or
    `compute_loss_func` takes the count. The loss is then the mean over the labels of the global
    batch; otherwise it is the mean over the samples. A resume starts at the saved position, without
    reading the data before this position.

    To combine it with your own `Trainer`, write `class Mine(ExactTrainer, YourTrainer)`.

    The trainer sets four fields of `args`: `gradient_accumulation_steps` (for this world size,
    with at most `per_device_train_batch_size` samples per micro-batch), `max_steps` (by default
    from `num_train_epochs`), `average_tokens_across_devices` and `ignore_data_skip`.

    Args:
        args: positional arguments of `Trainer`; `kwargs` has the keyword arguments of `Trainer`.
        global_batch_size: number of samples per optimizer step over all ranks.
        run: receives metrics, progress and digests of samples, and decides about stops; by default
            the run of `trainyard.init`. In a job, checkpoints are saved with the job's own
            checkpoints and deleted by the job's retention, and training resumes from the checkpoint
            that the server chose.

    Raises:
        ValueError: a field of `args` or the data set does not allow exact steps; the message lists
            the legal values.
    """

    def __init__(
        self, *args: Any, global_batch_size: int, run: Run | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        _check(self.args)
        sizes = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        if sizes != 1:
            raise ValueError(f"tp * cp * sp = {sizes}: legal is 1, so that each rank has own data")
        self._weight = 1.0
        self._weights: Iterator[float] = iter(())
        self._evaluation: MeanLoss | None = None
        self.consumed: list[int] = []
        """Indices of this rank's samples in the current step, in the loader's order."""
        self.run = init() if run is None else run
        self._folder: Path | None = None
        if self.train_dataset is None:
            return
        if not has_length(self.train_dataset):
            raise ValueError(
                f"train_dataset of type {type(self.train_dataset).__name__} has no length; legal "
                "is a data set with __len__ and __getitem__"
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        self.sampler = ExactSampler(
            len(self.train_dataset),
            global_batch_size,
            seed,
            micro_batch_size=self.args.train_batch_size,
            rank=self.args.process_index,
            world_size=self.args.world_size,
        )
        self.args.gradient_accumulation_steps = len(self.sampler.weights)
        self.args.ignore_data_skip = True
        # A mean per rank would give labels too much weight on ranks with few labels.
        self.args.average_tokens_across_devices = True
        if self.args.max_steps < 1:
            samples = self.args.num_train_epochs * len(self.train_dataset)
            self.args.max_steps = math.ceil(samples / global_batch_size)
        self.loss_is_scaled_for_ga = True
        self.add_callback(_Steps(self))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of this rank's micro-batches, which `prepare` must not shard again."""
        collate = self._get_collator_with_removed_columns(self.data_collator, "Training")
        args = self.args
        return DataLoader(
            _Numbered(self.train_dataset),
            batch_sampler=self.sampler,
            collate_fn=_NumberedCollate(collate),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=_WorkerSeed(args.dataloader_num_workers, args.process_index),
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Return the micro-batches of one step, and the number of labels by which to divide losses.

        The number is None if the loss is a mean over samples. A micro-batch of weight 0 adds no
        labels, and its loss is multiplied by 0.
        """
        weights = self.sampler.weights
        found = [next(epoch_iterator) for _ in range(num_batches)]
        batches = [batch for _, batch in found]
        self.consumed = [
            number
            for (numbers, _), weight in zip(found, weights, strict=True)
            for number in numbers
            if weight
        ]
        labels: torch.Tensor | int | None = None
        if all(map(_has_whole_labels, batches)):
            counted = [
                batch
                if weight
                else {**batch, "labels": torch.full_like(batch["labels"], UNCOUNTED)}
                for batch, weight in zip(batches, weights, strict=True)
            ]
            _, labels = super().get_batch_samples(iter(counted), num_batches, device)
        self._weights = iter(weights if labels is None else [float(w > 0) for w in weights])
        return batches, labels

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        if not all(map(_has_whole_labels, batch_samples)):
            return None  # a mean over samples, even if the model takes a count
        if self._evaluation is not None and self._evaluation.real == 0:
            batch_samples = [
                {**batch, "labels": torch.full_like(batch["labels"], UNCOUNTED)}
                for batch in batch_samples
            ]
        return super()._get_num_items_in_batch(batch_samples, device)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on the next micro-batch of the step, with its weight."""
        self._weight = next(self._weights)
        try:
            return super().training_step(*args, **kwargs)
        finally:
            self._weight = 1.0

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """Return the loss times the weight of its micro-batch; the weight is 1 in evaluation."""
        found = super().compute_loss(
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )
        loss = found[0] if isinstance(found, tuple) else found
        if self._evaluation is not None:
            self._evaluation.add(loss, num_items_in_batch)
        loss = loss * self._weight
        return (loss, found[1]) if isinstance(found, tuple) else loss

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate; the loss is the mean over all labels or samples, as in a training step.

        The base trainer averages over batches, so its loss depends on the number of ranks.
        """
        self._evaluation = MeanLoss(self.accelerator)
        try:
            found: EvalLoopOutput = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
            mean = self._evaluation.value()
        finally:
            self._evaluation = None
        metrics = found.metrics or {}
        if mean is not None and (name := f"{metric_key_prefix}_loss") in metrics:
            metrics[name] = mean
        return found

    def prediction_step(
        self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """Predict a batch; repeated samples do not count towards the loss."""
        if self._evaluation is None:
            return super().prediction_step(model, inputs, *args, **kwargs)
        counted = self._evaluation.counted(inputs)
        loss, *predicted = super().prediction_step(model, counted, *args, **kwargs)
        return loss, *(self._evaluation.restored(each) for each in predicted)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, or resume from a checkpoint of any world size; see `Trainer.train`.

        In a resumed job, training starts by default from the checkpoint that the server chose.

        Raises:
            ValueError: the checkpoint has another data set, seed or global batch size, or has no
                sampler state.
        """
        parent = self.run.resume_from
        if resume_from_checkpoint is None and parent is not None:
            resume_from_checkpoint = next(parent.glob(f"{PREFIX_CHECKPOINT_DIR}-*"), None)
            if resume_from_checkpoint is None:
                raise ValueError(
                    f"{parent} has no {PREFIX_CHECKPOINT_DIR}-*: legal is a checkpoint of "
                    "ExactTrainer"
                )
        if resume_from_checkpoint is True:
            newest = get_last_checkpoint(str(self.args.output_dir))  # type: ignore[no-untyped-call]
            resume_from_checkpoint = newest or True
        if isinstance(resume_from_checkpoint, str | Path):
            resume_from_checkpoint = str(resume_from_checkpoint)
            self._check_order(Path(resume_from_checkpoint, SAMPLER_FILE))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _check_order(self, saved: Path) -> None:
        if not saved.is_file():
            raise ValueError(
                f"{saved.parent} has no {SAMPLER_FILE}: legal is a checkpoint of ExactTrainer"
            )
        self.sampler.load_state_dict(json.loads(saved.read_text()))

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._folder is None else str(self._folder)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if not self.run.in_job:
            self._save_with_order(model, trial)
            return
        try:
            with self.run.checkpoint(self.state.global_step) as self._folder:
                self._save_with_order(model, trial)
        finally:
            self._folder = None

    def _save_with_order(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            state = json.dumps(self.sampler.state_dict())
            Path(self._get_output_dir(trial), folder, SAMPLER_FILE).write_text(state)


class _Steps(TrainerCallback):
    """Advances the sampler with the trainer's steps, and follows the run's orders to stop."""

    def __init__(self, trainer: ExactTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        # The loader is iterated only after this call.
        self.trainer.sampler.step = state.global_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        sampler, run = self.trainer.sampler, self.trainer.run
        positions = sampler.positions(sampler.step)
        sampler.step = state.global_step
        # The trainer has one endless epoch, but it logs epochs of the data.
        state.epoch = sampler.position / sampler.length
        run.progress(state.global_step, total=state.max_steps)
        if run.in_job:  # elsewhere a process may train more than once
            run.consumed(state.global_step, self.trainer.consumed, positions)
        stop, save = run.should_stop(), run.should_save(state.global_step)
        control.should_training_stop |= stop
        control.should_save |= stop or save

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        # The trainer has already averaged the values over the ranks.
        if state.is_world_process_zero:
            numbers = {_metric(k): v for k, v in (logs or {}).items() if isinstance(v, int | float)}
            self.trainer.run.log(numbers, step=state.global_step)


class _Numbered(Dataset[tuple[int, Any]]):
    """Samples with their indices."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.dataset[index]


class _NumberedCollate:
    """Collates samples, and returns the samples' indices separately."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[tuple[int, Any]]) -> tuple[list[int], Any]:
        return [number for number, _ in samples], self.collate([item for _, item in samples])


class _WorkerSeed:
    """Seeds a data loader worker as the trainer does."""

    def __init__(self, workers: int, rank: int) -> None:
        self.workers, self.rank = workers, rank

    def __call__(self, worker: int) -> None:
        seed_worker(worker, num_workers=self.workers, rank=self.rank)


def _metric(name: str) -> str:
    """Return a metric's name, such as `eval/loss` for `eval_loss` and `train/loss` for `loss`."""
    for kind in ("eval", "test"):
        if name.startswith(f"{kind}_"):
            return f"{kind}/{name.removeprefix(f'{kind}_')}"
    return f"train/{name}"


def _has_whole_labels(batch: Any) -> bool:
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    return isinstance(labels, torch.Tensor) and not labels.is_floating_point()


def _check(args: TrainingArguments) -> None:
    """Raise an error for arguments that are incompatible with exact steps."""
    if args.n_gpu > 1:
        raise ValueError(f"{args.n_gpu} GPUs in one process: start one process a GPU with torchrun")
    legal = {
        "save_strategy": "'no', 'steps' and 'best'",
        "eval_strategy": "'no' and 'steps'",
        "logging_strategy": "'no' and 'steps'",
    }
    for name, values in legal.items():
        if getattr(args, name) == "epoch":
            raise ValueError(
                f"{name}='epoch': legal are {values}, since a global batch may end one epoch and "
                "start the next"
            )
    if args.load_best_model_at_end:
        raise ValueError(
            "load_best_model_at_end=True: legal is False; the trainer does not keep checkpoints of "
            "a job (checkpoint.keep_best_k keeps the best ones)"
        )
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size=True: legal is False; a smaller per_device_train_batch_size "
            "takes less memory and changes no step"
        )
