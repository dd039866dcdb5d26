"""Programs in a container, by a stand-in for Apptainer that records its words."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Attempt, Place
from tests.worker.launchers.process_launcher import PROGRAM
from worker.launchers.container import Container

ENGINE = """#!{python}
import json, os, sys
words = sys.argv[1:]
with open({words!r}, "a") as file:
    file.write(json.dumps(words) + "\\n")
image = next(i for i, word in enumerate(words) if word.endswith(".sif"))
os.chdir(words[words.index("--pwd") + 1])
command = words[image + 1:]
if command[0] == "python":
    command[0] = {python!r}
os.execvp(command[0], command)
"""
SAY = """
import json, os
print(json.dumps({"rank": os.environ.get("RANK"), "cwd": os.getcwd(), "env": dict(os.environ)}))
"""


@pytest.fixture
def words(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with an image and the stand-in; the file of its words."""
    place.local = replace(place.local, allow_code=True)
    data = Path(place.local.roots["data"])
    (data / "mine").mkdir()
    (data / "mine" / "train.py").write_text(SAY)
    (data / "image.sif").write_text("")
    programs = tmp_path / "programs"
    programs.mkdir()
    engine, words = programs / "apptainer", tmp_path / "words"
    engine.write_text(ENGINE.format(python=sys.executable, words=str(words)))
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return words


def start(place: Place, *, ranks: int = 1, **program: Any) -> Attempt:
    given = {
        "command": ["train.py", "one"],
        "launcher": "command",
        "code": {"folder": "data:mine"},
        "environment": {"container": "data:image.sif"},
        **program,
    }
    return place.start(launcher=PROGRAM, ranks=ranks, program=given)


def test_each_rank_runs_in_the_image_with_what_it_needs_bound(place: Place, words: Path) -> None:
    attempt = start(place, ranks=2, launcher="torchrun")
    record = attempt.exit()
    assert (record.outcome, [end.exit_code for end in record.ranks]) == ("succeeded", [0, 0])
    found = [json.loads(attempt.log(rank).splitlines()[-1]) for rank in (0, 1)]
    data, checkpoints = (place.local.roots[name] for name in ("data", "checkpoints"))
    assert [each["rank"] for each in found] == ["0", "1"]
    assert found[0]["cwd"] == f"{data}/mine"
    assert "PYTHONPATH" not in found[0]["env"]
    first, second = map(json.loads, words.read_text().splitlines())
    assert first == second
    assert first[:3] == ["exec", "--contain", "--no-home"]
    assert "--nv" not in first
    assert "--pid" not in first
    binds = [first[i + 1] for i, word in enumerate(first) if word == "--bind"]
    run = str(attempt.run.root)
    assert binds == [checkpoints, data, run, f"{data}/mine", "/dev/shm"]
    inner = ["--pwd", f"{data}/mine", f"{data}/image.sif", "python", f"{data}/mine/train.py", "one"]
    assert first[-6:] == inner


def test_a_program_of_the_image_is_not_looked_up_on_the_node(place: Place, words: Path) -> None:
    assert start(place, command=["env", "-0"]).exit().outcome == "succeeded"
    (seen,) = map(json.loads, words.read_text().splitlines())
    assert seen[-2:] == ["env", "-0"]


def test_gpus_are_added_on_gpu_slots(words: Path, place: Place) -> None:
    roots = {**place.local.roots, "bucket": "s3://bucket/prefix"}
    made = Container.of(
        "data:image.sif", roots, folders=[], gpus=True, path=str(words.parent / "programs")
    )
    assert made.words(["x"], folder="/f")[1:5] == ["exec", "--contain", "--no-home", "--nv"]
    assert not any(bind.startswith("s3:") for bind in made.binds)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("image", "image.sif is no file"),
        ("link", "image.sif leads out of its root"),
        ("engine", "this node has no apptainer on PATH"),
    ],
)
def test_what_the_node_lacks_is_named(
    place: Place, words: Path, damage: str, expected: str
) -> None:
    image = Path(place.local.roots["data"], "image.sif")
    if damage == "engine":
        (words.parent / "programs" / "apptainer").unlink()
    else:
        image.unlink()
    if damage == "link":
        image.symlink_to("/etc/passwd")
    failure = start(place).exit().failure
    assert failure is not None
    assert failure.reason == "launch_error"
    assert failure.message.startswith("environment.container='data:image.sif': ")
    assert expected in failure.message


def test_a_folder_that_cannot_be_bound_is_named(tmp_path: Path, words: Path, place: Place) -> None:
    odd = tmp_path / "a:b"
    odd.mkdir()
    with pytest.raises(ValueError, match=r"a:b cannot be bound, as its name holds ':' or ','"):
        Container.of(
            "data:image.sif",
            place.local.roots,
            folders=[odd],
            gpus=False,
            path=str(words.parent / "programs"),
        )
