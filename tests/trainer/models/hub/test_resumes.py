"""Hub models resume from layout to layout, and generate the same text in `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.models.hub.architectures import (
    ARCHITECTURES,
    WITH_TENSOR_PLAN,
    hub_job,
    save_published,
)
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob
from trainer.data.tokenizer import ByteTokenizer
from trainer.hugging_face.export import export
from trainer.hugging_face.tokenizer import ByteFiles
from trainer.sample import generate, load_weights
from trainyard.protocol.attempt import Overrides
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout

STEPS_OF_ATTEMPT = 2
LOSS_TOLERANCE = 1e-6  # relative
LOGITS_TOLERANCE = 1e-5
PROMPT, TOKENS = "sheep ", 20
TIED = "gemma3_text"
FSDP, PP = Layout(dp_shard=2), Layout(pp=2)
Chain = tuple[str, dict[str, Any], list[Layout]]
"""An architecture, changes of its config, and a layout for each attempt."""


def layouts_of(kind: str) -> list[Layout]:
    """Return the layouts of an architecture's chain."""
    tensor = [Layout(tp=2)] if kind in WITH_TENSOR_PLAN else []
    stages = [PP] if kind != TIED else []
    return [FSDP, Layout(), Layout(dp_replicate=2, dp_shard=2), *tensor, *stages]


CHAINS: dict[str, Chain] = {
    **{kind: (kind, {}, layouts_of(kind)) for kind in ARCHITECTURES},
    f"{TIED}, untied": (TIED, {"tie_word_embeddings": False}, [FSDP, PP]),
}


def job_of(folder: Path, kind: str, config: dict[str, Any], *, steps: int) -> SmallJob:
    """Return a job that starts from published weights."""
    save_published(folder / "data" / "weights", kind, **config)
    return hub_job(folder, kind, config=config).changed(
        folder, model={"initial_weights": "data:weights"}, training={"steps": steps}
    )


def resumed(job: SmallJob, layouts: list[Layout]) -> list[Attempt]:
    """Run one attempt on each layout; each resumes from the checkpoint of the previous one."""
    attempts, resume = list[Attempt](), None
    for number, layout in enumerate(layouts, start=1):
        step = STEPS_OF_ATTEMPT * number
        attempt = job.launch(
            number,
            layout,
            Meddling(stop_after=step - 1),
            resume=resume,
            # Few micro-batches, because the time of a step is that of its operations' calls.
            overrides=Overrides(micro_batch_size=2 if layout.dp == 4 else 4),
        )
        assert attempt.outcome.step == step
        assert attempt.outcome.checkpoint_id is not None
        resume = job.committed()[attempt.outcome.checkpoint_id]
        assert (resume.layout, resume.train_state.step) == (layout, step)
        attempts.append(attempt)
    return attempts


def joined(attempts: list[Attempt], name: str) -> dict[int, float]:
    return {step: value for each in attempts for step, value in each.values(name).items()}


def count(attempt: Attempt, kind: str) -> int:
    return sum(event.kind == kind for event in attempt.events)


def assert_same_course(attempts: list[Attempt], whole: Attempt) -> None:
    """Compare a chain of attempts with an uninterrupted attempt."""
    assert whole.outcome.outcome == attempts[-1].outcome.outcome == "succeeded"
    assert [count(each, "weights_loaded") for each in (whole, *attempts[:2])] == [1, 1, 0]
    assert [count(each, "resumed") for each in attempts] == [0] + [1] * (len(attempts) - 1)
    assert {step: d for each in attempts for step, d in each.digests.items()} == whole.digests
    for name in ("train/lr", "train/tokens", "train/sequences"):
        assert joined(attempts, name) == whole.values(name), name
    losses, expected = joined(attempts, "train/loss"), whole.values("train/loss")
    assert len(expected) == STEPS_OF_ATTEMPT * len(attempts)
    assert losses == pytest.approx(expected, rel=LOSS_TOLERANCE)
    assert losses[len(losses)] < 0.9 * losses[1], "it learns, so that equal losses mean something"


@torch.no_grad()
def assert_same_model(job: SmallJob, checkpoint: Path, out: Path) -> None:
    """Compare a checkpoint with its export in `transformers`: logits, and greedy text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    roots = {"data": str(job.folder / "data")}
    export(checkpoint, out, tokenizer=ByteFiles(), roots=roots)
    config = json.loads((out / "config.json").read_text())
    assert (config["dtype"], config["eos_token_id"]) == ("float32", ByteTokenizer.eos)
    auto: Any = AutoModelForCausalLM  # its functions have no types
    theirs, loaded = auto.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not any(loaded.values()), loaded
    ours = load_weights(parse_job_spec(job.spec), checkpoint, roots)
    drawn = generate(ours, ByteTokenizer(), PROMPT, tokens=TOKENS, temperature=0, seed=0)
    assert drawn.tokens == TOKENS
    tokenizer = AutoTokenizer.from_pretrained(out)
    line = theirs.generate(
        **tokenizer(PROMPT, return_tensors="pt"), max_new_tokens=TOKENS, do_sample=False
    )
    assert tokenizer.decode(line[0], skip_special_tokens=True) == drawn.text
    assert (ours(line) - theirs(line).logits).abs().max() < LOGITS_TOLERANCE


@pytest.mark.parametrize("name", CHAINS)
def test_a_job_resumes_on_each_layout_and_its_export_generates_the_same_text(
    name: str, tmp_path: Path
) -> None:
    kind, config, layouts = CHAINS[name]
    steps = STEPS_OF_ATTEMPT * len(layouts)
    job = job_of(tmp_path / "chain", kind, config, steps=steps)
    attempts = resumed(job, layouts)
    whole = job_of(tmp_path / "whole", kind, config, steps=steps).launch(1, Layout())
    assert_same_course(attempts, whole)
    checkpoint = job.storage / checkpoint_path(JOB, len(layouts), steps)
    assert_same_model(job, checkpoint, tmp_path / "out")
