"""Text that a checkpoint generates: reproducible, from verified weights, or a clear refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer.data.tokenizer import ByteTokenizer
from trainer.models.base import Model
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.sample import generate
from trainyard.spec.job import parse_job_spec

SPEC = parse_job_spec({"training": {"seq_len": 32}})


@pytest.fixture
def model() -> Model:
    model = build_model(SPEC)
    model.to_empty(device="cpu")
    init_weights(model, 0)
    return model


def draw(model: Model, *, seed: int = 0, temperature: float = 1.0, prompt: str = "x") -> str:
    tokenizer = ByteTokenizer()
    drawn = generate(model, tokenizer, prompt, tokens=40, temperature=temperature, seed=seed)
    assert drawn.tokens == 40
    return drawn.text


def test_the_seed_decides_the_text(model: Model) -> None:
    assert draw(model) == draw(model)
    assert draw(model) != draw(model, seed=1)


def test_without_temperature_the_likeliest_token_is_taken(model: Model) -> None:
    assert draw(model, temperature=0, seed=1) == draw(model, temperature=0, seed=2)


def test_a_prompt_longer_than_the_window_goes_on(model: Model) -> None:
    prompt = "0123456789" * 10
    text = draw(model, prompt=prompt)
    assert text.startswith(prompt)
    assert len(text) > len(prompt)


def test_a_trained_checkpoint_speaks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    short = {"training": {"seq_len": 32, "steps": 2}, "lr_schedule": {"warmup_steps": 1}}
    spec = parse_job_spec(short)
    (run / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "trainer", str(run)], check=True, capture_output=True)
    folder = run / "checkpoints" / spec.name / "a1" / "step-2"

    spoken = sample(run, folder)
    assert spoken.returncode == 0, spoken.stderr
    assert spoken.stdout.startswith("def ")
    assert spoken.stdout == sample(run, folder).stdout

    (folder / "COMMITTED").unlink()
    refused = sample(run, folder)
    assert refused.returncode == 1
    assert str(folder) in refused.stderr
    assert "Traceback" not in refused.stderr


def sample(run: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer.sample", str(run), "--checkpoint", str(folder)]
    return subprocess.run(
        [*command, "--prompt", "def ", "--tokens", "20"],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
