"""Programs in a container: command lines for Apptainer and Podman, recorded by stand-ins."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.other_users import needs_root
from tests.worker.conftest import Attempt, Place
from tests.worker.launchers.process_launcher import PROGRAM
from worker.launchers.container import container_of
from worker.launchers.podman import SCRATCH, PodmanContainer, remove_image, scratch_prefix

IMAGE = "sha256:of-an-image"
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
    made = container_of(
        "data:image.sif",
        roots,
        run=words.parent,
        user=None,
        folders=[],
        gpus=True,
        path=str(words.parent / "programs"),
    )
    given = made.words(made.loaded(), ["x"], folder="/f", variables={})
    assert given[given.index("exec") :][:4] == ["exec", "--contain", "--no-home", "--nv"]
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
    assert failure.message.startswith("program.environment.container='data:image.sif': ")
    assert expected in failure.message


def test_a_folder_that_cannot_be_bound_is_named(tmp_path: Path, words: Path, place: Place) -> None:
    odd = tmp_path / "a:b"
    odd.mkdir()
    with pytest.raises(ValueError, match=r"a:b cannot be bound, as its name holds ':' or ','"):
        container_of(
            "data:image.sif",
            place.local.roots,
            run=tmp_path,
            user=None,
            folders=[odd],
            gpus=False,
            path=str(words.parent / "programs"),
        )


@pytest.fixture
def podman(tmp_path: Path, place: Place) -> Path:
    """A node with an archive of an image and stand-ins for Podman; the folder of its programs."""
    Path(place.local.roots["data"], "image.tar").write_text("")
    programs = tmp_path / "of-podman"
    programs.mkdir()
    for name in ("podman", "crun", "unshare"):
        (programs / name).write_text(f"#!/bin/sh\necho {IMAGE}\n")
        (programs / name).chmod(0o755)
    return programs


def archive(place: Place, programs: Path, **changes: Any) -> PodmanContainer:
    """Return the container of the archive, with its run directory made."""
    run = programs.parent / "run"
    run.mkdir(exist_ok=True)
    given = {"run": run, "user": None, "folders": [run], "gpus": False, **changes}
    made = container_of("data:image.tar", place.local.roots, path=str(programs), **given)
    assert isinstance(made, PodmanContainer)
    return made


def test_podman_gets_what_it_needs_and_no_value_of_a_variable(place: Place, podman: Path) -> None:
    made = archive(place, podman, gpus=True)
    try:
        load = made.prepare()
        assert load[-4:] == ["load", "--quiet", "--input", f"{place.local.roots['data']}/image.tar"]
        variables = {
            "SECRET": "secret",
            "PATH": "/of/the/node",
            "PYTHONPATH": "/x",
            "HOME": "/home",
        }
        given = made.words(IMAGE, ["sh", "-c", "true"], folder="/f", variables=variables)
        assert given[-4:] == [IMAGE, "sh", "-c", "true"]
        assert {"--pid=host", "--network=host", "--ipc=host", "--read-only"} <= {*given}
        assert {"--security-opt=no-new-privileges", "--device=nvidia.com/gpu=all"} <= {*given}
        assert {"--env=SECRET", "--env=RANK", "--env=TRAINYARD_*", "--env=HOME=/home"} <= {*given}
        assert not any("secret" in w or "/of/the/node" in w or "PYTHONPATH" in w for w in given)
        volumes = [word for word in given if word.startswith("--volume=")]
        seen = [*place.local.roots.values(), str(made.run)]
        assert volumes == [f"--volume={path}:{path}" for path in seen]
        assert not {"--privileged", "--group-add=keep-groups"} & {*given}
        (scratch,) = [w.partition("=")[2] for w in given if w.startswith("--runroot=")]
        assert len(scratch) < 50, "Podman takes no longer path"
    finally:
        remove_image(made.run, None)
    assert not Path(scratch).parent.exists()
    assert not made.store.exists()


@needs_root
def test_a_folder_that_another_user_has_put_in_the_way_is_passed_over(
    place: Place, podman: Path
) -> None:
    made = archive(place, podman)
    foreign = SCRATCH / f"{scratch_prefix(made.run)}aaaa"
    foreign.mkdir()
    os.chown(foreign, 61_000, 61_000)
    try:
        assert str(foreign) not in " ".join(made.prepare())
        remove_image(made.run, None)
        assert [*SCRATCH.glob(f"{scratch_prefix(made.run)}*")] == [foreign]
    finally:
        foreign.rmdir()


@pytest.mark.parametrize("missing", ["podman", "crun"])
def test_what_podman_needs_is_named(place: Place, podman: Path, missing: str) -> None:
    (podman / missing).unlink()
    with pytest.raises(ValueError, match=f"this node has no {missing} on PATH"):
        archive(place, podman)


def test_an_archive_of_several_images_is_refused(place: Place, podman: Path) -> None:
    for name in ("podman", "unshare"):  # root starts the one by the other
        (podman / name).write_text(f"#!/bin/sh\necho {IMAGE}; echo {IMAGE}2\n")
    made = replace(archive(place, podman), engine=str(podman / "podman"))
    try:
        made.prepare()
        with pytest.raises(ValueError, match=r"image\.tar holds 2 images; legal: one"):
            made.loaded()
    finally:
        remove_image(made.run, None)
