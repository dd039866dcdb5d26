"""`ExactTrainer` against the real library: losses, weights and samples at several world sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tests.library.adapters.job_run import job_run, losses_of, records_of, stop
from tests.trainer.ranks import run_ranks
from trainyard.adapters.hugging_face import ExactTrainer
from trainyard.data import EpochOrder, merge_digests, order_digest
from trainyard.run.session import Run

LENGTH, GLOBAL_BATCH, SEED = 25, 14, 5


class Texts(Dataset[dict[str, Any]]):
    """Sequences with different counts of labels, and a list of read indices."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, 64, (LENGTH, 12), generator=draws)
        self.read: list[int] = []

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        labels = self.tokens[index].clone()
        labels[: index % 9] = -100
        return {"input_ids": self.tokens[index], "labels": labels, "unused": "text"}


class Points(Dataset[dict[str, Any]]):
    """Samples of a regression: their labels are not whole numbers."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(2)
        self.x = torch.randn(LENGTH, 4, generator=draws)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "labels": self.x[index].sum(dim=0, keepdim=True)}


class Regression(nn.Module):
    """A model with a mean loss over samples, although its `forward` accepts any keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


class Recorded(ExactTrainer):
    """Keeps the digest of each step's samples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.digests: list[str] = []

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        found = super().get_batch_samples(*args, **kwargs)
        step = self.state.global_step
        self.digests.append(order_digest(self.sampler.positions(step), self.consumed))
        return found


def arguments(folder: Path, **changed: Any) -> TrainingArguments:
    fields: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "per_device_train_batch_size": 3,
        "max_steps": 9,
        "learning_rate": 0.02,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "data_seed": SEED,
        "seed": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "logging_nan_inf_filter": False,
    }
    return TrainingArguments(**fields | changed)


def model_of(name: str) -> nn.Module:
    torch.manual_seed(3)
    if name == "regression":
        return Regression()
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def trained(
    name: str, folder: Path, resume: Path | None = None, **changed: Any
) -> tuple[dict[int, float], list[str], list[float], list[int]]:
    """Train on this rank; return losses by step, digests, weights, and read indices."""
    dataset = Points() if name == "regression" else Texts()
    model = model_of(name)
    trainer = Recorded(
        model,
        arguments(folder, **changed),
        train_dataset=dataset,
        global_batch_size=GLOBAL_BATCH,
    )
    trainer.train(resume)
    losses = {int(e["step"]): e["loss"] for e in trainer.state.log_history if "loss" in e}
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return losses, trainer.digests, weights.tolist(), getattr(dataset, "read", [])


def on_ranks(
    size: int, *args: Any, **changed: Any
) -> tuple[dict[int, float], list[str], list[float]]:
    found = run_ranks(size, _trained_there, args, changed)
    losses, _, weights, _ = found[0]
    by_step = zip(*(digests for _, digests, _, _ in found), strict=True)
    return losses, [merge_digests(each) for each in by_step], weights


def _trained_there(args: tuple[Any, ...], changed: dict[str, Any]) -> Any:
    torch.set_num_threads(1)
    assert distributed.is_initialized()
    return trained(*args, **changed)


@pytest.mark.parametrize("name", ["language", "regression"])
def test_a_resume_on_another_world_size_is_exact(name: str, tmp_path: Path) -> None:
    losses, digests, weights = on_ranks(1, name, tmp_path / "whole")
    assert losses.keys() == set(range(1, 10))
    saves = {"save_strategy": "steps", "save_steps": 5}
    # The ranks come from a fork server; their workers need not.
    loads = {"dataloader_num_workers": 2, "dataloader_multiprocessing_context": "fork"}
    first = on_ranks(2, name, tmp_path / "cut", max_steps=5, **saves, **loads)
    second = on_ranks(3, name, tmp_path / "cut", tmp_path / "cut" / "checkpoint-5", **loads)
    assert first[1] + second[1] == digests
    assert {**first[0], **second[0]} == pytest.approx(losses, abs=1e-5)
    assert second[2] == pytest.approx(weights, abs=1e-5)


def test_a_step_is_that_of_one_large_batch(tmp_path: Path) -> None:
    losses, _, weights, _ = trained("language", tmp_path, max_steps=1)
    dataset, model = Texts(), model_of("language")
    order = EpochOrder(LENGTH, SEED)
    samples = [dataset[order(position)] for position in range(GLOBAL_BATCH)]
    loss = model(
        input_ids=torch.stack([s["input_ids"] for s in samples]),
        labels=torch.stack([s["labels"] for s in samples]),
    ).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.SGD(model.parameters(), lr=0.02).step()
    assert losses == pytest.approx({1: loss.item()}, abs=1e-6)
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert weights == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_resume_reads_no_sample_of_before_and_counts_epochs_of_the_data(tmp_path: Path) -> None:
    trained("language", tmp_path, save_strategy="steps", save_steps=7, max_steps=7)
    dataset = Texts()
    trainer = Recorded(
        model_of("language"),
        arguments(tmp_path),
        train_dataset=dataset,
        global_batch_size=GLOBAL_BATCH,
    )
    trainer.train(resume_from_checkpoint=True)
    order = EpochOrder(LENGTH, SEED)
    positions = range(7 * GLOBAL_BATCH, 9 * GLOBAL_BATCH)
    # A loader fetches a micro-batch ahead at most.
    assert dataset.read[: 2 * GLOBAL_BATCH] == [order(position) for position in positions]
    assert len(dataset.read) <= 2 * GLOBAL_BATCH + 3
    assert trainer.state.epoch == 9 * GLOBAL_BATCH / LENGTH


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    trained("language", tmp_path, save_strategy="steps", save_steps=1, max_steps=1)
    with pytest.raises(ValueError, match=r"seed=6 differs from seed=5"):
        trained("language", tmp_path, tmp_path / "checkpoint-1", data_seed=6)
    with pytest.raises(ValueError, match=r"global_batch_size=7 differs from global_batch_size=14"):
        ExactTrainer(
            model_of("language"),
            arguments(tmp_path),
            train_dataset=Texts(),
            global_batch_size=7,
        ).train(tmp_path / "checkpoint-1")


def test_the_newest_checkpoint_is_compared_too(tmp_path: Path) -> None:
    trained("language", tmp_path, save_strategy="steps", save_steps=1, max_steps=1)
    other = ExactTrainer(
        model_of("language"), arguments(tmp_path), train_dataset=Texts(), global_batch_size=7
    )
    with pytest.raises(ValueError, match=r"global_batch_size=7 differs from"):
        other.train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-1" / "exact_sampler.json").unlink()
    with pytest.raises(ValueError, match=r"has no exact_sampler\.json"):
        other.train(resume_from_checkpoint=True)


class Generating(ExactTrainer):
    """A trainer that computes the evaluation loss itself, like `Seq2SeqTrainer`."""

    def prediction_step(self, *_: Any, **__: Any) -> tuple[Any, Any, Any]:
        return torch.tensor(2.5), None, None


def test_a_loss_that_a_trainer_computes_by_itself_stays(tmp_path: Path) -> None:
    made = Generating(
        model_of("language"), arguments(tmp_path), eval_dataset=Texts(), global_batch_size=7
    )
    assert made.evaluate()["eval_loss"] == 2.5


@pytest.mark.parametrize("name", ["save_strategy", "logging_strategy"])
def test_strategies_by_epoch_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name}='epoch': legal are"):
        trained("language", tmp_path, None, **{name: "epoch"})


def test_a_data_set_without_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="list_iterator has no length; legal"):
        ExactTrainer(
            model_of("language"),
            arguments(tmp_path),
            train_dataset=iter([]),
            global_batch_size=4,
        )


def test_steps_follow_from_epochs_and_evaluation_has_no_weights(tmp_path: Path) -> None:
    made = ExactTrainer(
        model_of("language"),
        arguments(tmp_path, max_steps=-1, num_train_epochs=2.0),
        train_dataset=Texts(),
        eval_dataset=Texts(),
        global_batch_size=GLOBAL_BATCH,
    )
    assert made.args.max_steps == 4  # 50 samples in batches of 14
    assert made.args.gradient_accumulation_steps == 5
    assert made.evaluate()["eval_loss"] == pytest.approx(loss_of_one_batch("language", tmp_path))


def loss_of_one_batch(name: str, folder: Path) -> float:
    """Return the loss of all samples, by the library's own trainer on one rank."""
    dataset = Points() if name == "regression" else Texts()
    whole = arguments(folder, per_device_eval_batch_size=LENGTH)
    loss: float = Trainer(model_of(name), whole, eval_dataset=dataset).evaluate()["eval_loss"]
    return loss


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", ["language", "regression"])
def test_an_evaluation_does_not_depend_on_the_ranks(name: str, size: int, tmp_path: Path) -> None:
    """With 25 samples in batches of 4 the last ones are repeated: on 3 ranks a whole batch."""
    found = run_ranks(size, _evaluated_there, name, tmp_path)
    (loss,) = {loss for loss, _ in found}
    assert loss == pytest.approx(loss_of_one_batch(name, tmp_path), rel=1e-6)
    assert {labels for _, labels in found} == {LENGTH}


def _evaluated_there(name: str, folder: Path) -> tuple[float, int]:
    """Evaluate on this rank; return the loss, and the number of predictions of all ranks."""
    dataset = Points() if name == "regression" else Texts()
    trainer = ExactTrainer(
        model_of(name),
        arguments(folder, per_device_eval_batch_size=4),
        eval_dataset=dataset,
        global_batch_size=GLOBAL_BATCH,
    )
    found = trainer.predict(dataset)
    assert found.metrics is not None
    assert isinstance(found.label_ids, np.ndarray)
    assert found.metrics["test_loss"] == trainer.evaluate()["eval_loss"]
    return found.metrics["test_loss"], len(found.label_ids)


def in_job(run: Run, folder: Path, steps: int) -> None:
    """Train in a job."""
    ExactTrainer(
        model_of("language"),
        arguments(folder, max_steps=steps),
        train_dataset=Texts(),
        eval_dataset=Texts(),
        global_batch_size=GLOBAL_BATCH,
        run=run,
    ).train()


def test_a_job_stops_saves_and_resumes_where_it_stopped(tmp_path: Path) -> None:
    losses, digests, _, _ = trained("language", tmp_path / "whole", max_steps=6)
    first = job_run(tmp_path)
    stop(first)
    in_job(first, tmp_path / "output", 6)
    before = losses_of(first)
    stopped = max(before)
    assert stopped < 6
    saved = tmp_path / "checkpoints" / "job" / "a1" / f"step-{stopped}"
    assert (saved / "COMMITTED").exists()
    assert not any((tmp_path / "output").iterdir())
    second = job_run(tmp_path, 2, stopped)
    in_job(second, tmp_path / "output", 6)
    after = losses_of(second)
    assert after.keys() == set(range(stopped + 1, 7))
    assert before | after == pytest.approx(losses, abs=1e-6)
    records = [*records_of(first), *records_of(second)]
    found = {r["step"]: r["data_digest"] for r in records if r.get("data_digest")}
    assert found == dict(enumerate(digests, start=1))


def test_metrics_and_progress_of_the_run(tmp_path: Path) -> None:
    run = job_run(tmp_path)
    made = ExactTrainer(
        model_of("language"),
        arguments(tmp_path / "out", max_steps=2),
        train_dataset=Texts(),
        eval_dataset=Texts(),
        global_batch_size=GLOBAL_BATCH,
        run=run,
    )
    made.train()
    made.evaluate()
    logged = [e["loss"] for e in made.state.log_history if "loss" in e]
    assert losses_of(run) == {1: logged[0], 2: logged[1]}
    assert any("eval/loss" in record["values"] for record in records_of(run))
    assert run.directory is not None
    heartbeat = json.loads((run.directory / "heartbeat.json").read_text())
    assert (heartbeat["step"], heartbeat["steps"]) == (2, 2)


def test_a_checkpoint_of_another_program_is_refused_by_name(tmp_path: Path) -> None:
    with job_run(tmp_path).checkpoint(3) as folder:
        (folder / "weights").write_bytes(b"w")
    with pytest.raises(ValueError, match=r"step-3 has no checkpoint-\*: legal is"):
        in_job(job_run(tmp_path, 2, 3), tmp_path / "output", 6)
