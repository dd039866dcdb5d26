"""Export of checkpoints: type, files, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from specs.checkpoint import checkpoint_path
from specs.layout import Layout
from tests.trainer.runs import JOB, SmallJob
from trainer.errors import CheckpointError, LaunchError
from trainer.hugging_face.export import export


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    job = SmallJob(folder).changed(folder, training={"steps": 1}, lr_schedule={"warmup_steps": 0})
    job.launch(1, Layout(dp_shard=2))
    return job.storage / checkpoint_path(JOB, 1, 1)


def test_the_command_writes_one_file_in_the_type_asked_for(
    checkpoint: Path, tmp_path: Path
) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "model.safetensors").write_text("not a tokenizer's")
    command = [sys.executable, "-m", "trainer", "export", str(checkpoint)]
    options = ["--to", str(tmp_path / "out"), "--dtype", "bfloat16", "--tokenizer", str(tokenizer)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["config.json", "model.safetensors", "tokenizer.json"]
    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1, "whoever may read one file may read all"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["torch_dtype"], config["num_hidden_layers"]) == ("bfloat16", 2)
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("model.norm.weight").dtype == torch.bfloat16

    again = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert f"{tmp_path / 'out'} is there already" in again.stderr


def test_files_stay_below_the_limit_and_the_index_knows_them(
    checkpoint: Path, tmp_path: Path
) -> None:
    export(checkpoint, tmp_path / "out", shard_bytes=60_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    total = 0
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            size = sum(file.get_tensor(name).nbytes for name in names)
        assert {index["weight_map"].pop(name) for name in names} == {path.name}
        assert size <= 60_000 or len(names) == 1
        total += size
    assert not index["weight_map"]
    assert total == index["metadata"]["total_size"]


def test_what_cannot_be_exported_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="holds no tokenizer"):
        export(checkpoint, tmp_path / "out", tokenizer=tmp_path)
    assert not (tmp_path / "out").exists()
    with pytest.raises(CheckpointError, match="is no committed checkpoint"):
        export(checkpoint.parent, tmp_path / "out")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in checkpoint.iterdir():
        content = bytearray(path.read_bytes())
        if path.suffix == ".distcp":
            content[len(content) // 2] ^= 1
        (damaged / path.name).write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged: its checksum"):
        export(damaged, tmp_path / "out")
