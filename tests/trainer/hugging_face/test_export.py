"""Export of checkpoints: type, files, and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open

from tests.trainer.runs import JOB, SmallJob
from trainer.errors import CheckpointError, LaunchError
from trainer.hugging_face.export import LoggedProgress, export
from trainer.hugging_face.tokenizer import FolderFiles
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.spec.layout import Layout


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
    assert written == ["config.json", "export.json", "model.safetensors", "tokenizer.json"]
    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1, "whoever may read one file may read all"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["torch_dtype"], config["num_hidden_layers"]) == ("bfloat16", 2)
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("model.norm.weight").dtype == torch.bfloat16

    options[-1] = "byte"
    again = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert f"{tmp_path / 'out'} is there already, with job-1.a1.step-1 as bfloat16" in again.stderr


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
        export(checkpoint, tmp_path / "out", tokenizer=FolderFiles(tmp_path))
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
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_the_same_export_is_left_as_it_is_and_another_is_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    first = export(checkpoint, tmp_path / "out")
    made_at = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert export(checkpoint, tmp_path / "out") == first
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == made_at
    with pytest.raises(LaunchError, match=r"as float32 .* not .* as float16"):
        export(checkpoint, tmp_path / "out", dtype="float16")
    (tmp_path / "out" / "config.json").write_text("{}")
    with pytest.raises(LaunchError, match="is there already"):
        export(checkpoint, tmp_path / "out")
    (tmp_path / "else").touch()
    with pytest.raises(LaunchError, match="no whole export"):
        export(checkpoint, tmp_path / "else")


KILLED = """
import os, signal, sys
from pathlib import Path
from trainer.hugging_face import export
whole = export._save
def half(tensors, path):
    whole(tensors, path)
    os.kill(os.getpid(), signal.SIGKILL)
export._save = half
export.export(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_what_was_cut_off_is_no_export_and_goes_at_the_next_try(
    checkpoint: Path, tmp_path: Path
) -> None:
    arguments = [str(checkpoint), str(tmp_path / "out")]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert killed.returncode == -9
    left, lock = sorted(tmp_path.iterdir())
    assert (left.name[:5], left.name[-8:]) == (".out.", ".partial")
    assert lock.name == f"{left.name}.lock"
    other = tmp_path / ".out.too.00000000.partial"
    other.mkdir()
    export(checkpoint, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "out"]


def test_of_two_at_once_one_is_whole_and_both_are_done(checkpoint: Path, tmp_path: Path) -> None:
    """Like after an expired lease: the old command still runs when the next claim starts."""

    def again(_total: int) -> LoggedProgress:
        export(checkpoint, tmp_path / "out")
        return LoggedProgress(0)

    found = export(checkpoint, tmp_path / "out", track=again)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert found.files["model.safetensors"] > 0
    assert found == export(checkpoint, tmp_path / "out")


def test_a_file_that_another_process_takes_away_is_noticed(
    checkpoint: Path, tmp_path: Path
) -> None:
    class Thief(LoggedProgress):
        def advance(self, done: int) -> None:
            super().advance(done)
            for file in tmp_path.glob(".out.*.partial/model-00001-of-*.safetensors"):
                file.unlink()

    with pytest.raises(CheckpointError, match=r"its index names \d+: model-00001-of-.* differ"):
        export(checkpoint, tmp_path / "out", shard_bytes=60_000, track=Thief)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_left_full(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("trainer.hugging_face.export.save_file", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*No space left"):
        export(checkpoint, tmp_path / "out")
    assert not list(tmp_path.iterdir())
