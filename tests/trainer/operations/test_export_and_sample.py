"""Export and sample as operations: `transformers` loads the files, and continues like ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.data.inputs import DOCUMENTS, HUGGINGFACE_TOKENIZER, write_tokenizer
from tests.trainer.runs import JOB, SmallJob
from trainer.operations.__main__ import main
from trainyard.protocol.operations import (
    OUTCOME,
    PROGRESS,
    TASK,
    ExportTask,
    OperationKind,
    OperationOrder,
    OperationOutcome,
    OperationProgress,
    OperationTask,
    SampleEnd,
    SampleResult,
    SampleTask,
)
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
PROMPT = "line 7: "
TOKENS = 40


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    """A job that has learned the form of its lines."""
    folder = tmp_path_factory.mktemp("job")
    job = SmallJob(folder).changed(
        folder,
        training={"steps": 30, "seq_len": 64},
        optimizer={"lr": 5e-3},
        model={"dropout": 0.0},
        checkpoint={"preflight": False},
    )
    job.launch(1, Layout(dp_shard=2))
    (job.storage / ".trainyard-root").write_text("one\n")
    return job


def do(
    job: SmallJob, asked: ExportTask | SampleTask, operation: Path, **roots: Path
) -> OperationOutcome:
    """Export the job's checkpoint, or sample from it, like a node."""
    kind = OperationKind.EXPORT if isinstance(asked, ExportTask) else OperationKind.SAMPLE
    (manifest,) = job.committed().values()
    point = job.resume_point(manifest)
    task = OperationTask(
        kind=kind,
        job_id=JOB,
        root="checkpoints",
        paths=(point.path,),
        checkpoint=point,
        export=asked if isinstance(asked, ExportTask) else None,
        sample=asked if isinstance(asked, SampleTask) else None,
    )
    known = {"checkpoints": job.storage, **roots}
    order = OperationOrder(
        task=task,
        root_path=str(job.storage),
        root_id="one",
        roots={name: str(path) for name, path in known.items()},
    )
    operation.mkdir(exist_ok=True)
    (operation / TASK).write_text(order.model_dump_json())
    main(operation)
    return OperationOutcome.model_validate_json((operation / OUTCOME).read_bytes())


def a_text(job: SmallJob, **fields: Any) -> SampleTask:
    """Return the task to draw the likeliest text."""
    given: dict[str, Any] = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0.0, "seed": 0}
    return SampleTask(spec=parse_job_spec(job.spec), **given | fields)


def continued_by_transformers(folder: Path, prompt: str) -> str:
    """Return the prompt with the greedy continuation of `transformers`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer(prompt, return_tensors="pt")
    (line,) = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
    text: str = tokenizer.decode(line, skip_special_tokens=True)
    return text


def test_transformers_goes_on_as_we_do(job: SmallJob, tmp_path: Path) -> None:
    asked = ExportTask(root="checkpoints", name="first", dtype="float32", shard_gib=0.01)
    outcome = do(job, asked, tmp_path / "operation")
    result = outcome.export
    assert result is not None, outcome
    folder = job.storage / "exports" / "first"
    assert (result.place, result.path) == ("checkpoints:exports/first", str(folder))
    files = [path for path in folder.iterdir() if path.name != "export.json"]
    assert result.files == len(files) == 5
    assert result.size == sum(path.stat().st_size for path in files)
    progress = OperationProgress.model_validate_json(
        (tmp_path / "operation" / PROGRESS).read_bytes()
    )
    (manifest,) = job.committed().values()
    assert progress.total > manifest.size + (folder / "model.safetensors").stat().st_size * 0.9
    drawn = do(job, a_text(job), tmp_path / "operation").sample
    assert drawn is not None
    assert (drawn.tokens, drawn.ended) == (TOKENS, SampleEnd.MAX_TOKENS)
    assert len(drawn.text) > len(PROMPT) + 10
    assert continued_by_transformers(folder, PROMPT) == drawn.text

    again = do(job, asked, tmp_path / "operation")
    assert again.export == result
    other = asked.model_copy(update={"dtype": "bfloat16"})
    refused = do(job, other, tmp_path / "operation")
    assert (refused.outcome, refused.export) == ("failed", None)
    assert f"{folder} is there already, with {JOB}.a1.step-30 as float32" in refused.message


def test_a_tokenizer_of_the_hub_goes_with_it(job: SmallJob, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    models = tmp_path / "models"
    reference = write_tokenizer(models / "small")
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (models / "small" / "tokenizer_config.json").write_text(json.dumps(config))
    asked = ExportTask(
        root="checkpoints", name="hub", dtype="float32", tokenizer="models:small/tokenizer.json"
    )
    assert "'models' is not defined on this node" in do(job, asked, tmp_path / "operation").message
    outcome = do(job, asked, tmp_path / "operation", models=models)
    assert outcome.export is not None, outcome
    folder = Path(outcome.export.path)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    for text in DOCUMENTS:
        theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert theirs == reference.encode(text, add_special_tokens=False).ids
    assert PROMPT in continued_by_transformers(folder, PROMPT)


def test_it_stays_beneath_its_root(job: SmallJob, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    asked = ExportTask(root="other", name="stray", dtype="bfloat16")
    assert "'other' is not defined on this node" in do(job, asked, tmp_path / "operation").message
    unmounted = do(job, asked, tmp_path / "operation", other=other).message
    assert f"cannot read {other / '.trainyard-root'}" in unmounted
    (other / ".trainyard-root").write_text("two\n")
    (other / "exports").symlink_to(tmp_path)
    assert "leads out of the root" in do(job, asked, tmp_path / "operation", other=other).message
    (other / "exports").unlink()
    outcome = do(job, asked, tmp_path / "operation", other=other)
    assert outcome.export is not None, outcome
    config = json.loads((other / "exports" / "stray" / "config.json").read_text())
    assert (config["torch_dtype"], config["eos_token_id"]) == ("bfloat16", 257)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["operation", "other"]


def test_a_sample_keeps_to_its_seed_and_its_time(
    job: SmallJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(**fields: Any) -> SampleResult:
        outcome = do(job, a_text(job, temperature=1.0, **fields), tmp_path / "operation")
        assert outcome.sample is not None, outcome
        return outcome.sample

    assert drawn(seed=1) == drawn(seed=1)
    assert drawn(seed=1).text != drawn(seed=2).text
    monkeypatch.setattr("trainer.operations.sample.SAMPLE_SECONDS", 0.0)
    ended = drawn(seed=1)
    assert (ended.text, ended.tokens, ended.ended) == (PROMPT, 0, SampleEnd.TIME)


def test_a_sample_that_cannot_be_drawn_says_why(
    job: SmallJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = HUGGINGFACE_TOKENIZER | {"source": "text", "path": "data:text.txt"}
    hub = a_text(job.changed(tmp_path / "hub", data=data))
    missing = do(job, hub, tmp_path / "operation")
    assert (missing.outcome, missing.sample) == ("failed", None)
    assert "data.tokenizer_path='models:small': root 'models' is not defined" in missing.message
    full = tmp_path / "meminfo"
    full.write_text("MemTotal: 100 kB\nMemAvailable: 100 kB\n")
    monkeypatch.setattr("trainer.operations.sample.MEMORY", full)
    outcome = do(job, a_text(job), tmp_path / "operation")
    assert outcome.outcome == "failed"
    assert "0.0 GiB are free on this node" in outcome.message
