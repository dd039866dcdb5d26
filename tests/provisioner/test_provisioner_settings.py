"""The file of sources: each error names the field, its value and what is legal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioner.base import Place
from provisioner.engines import open_engine
from provisioner.settings import SourceConfig, read_sources

GOOD = """
[[sources]]
name = "slurm-a100"
kind = "slurm"
slots = 8
python = "/shared/venv/bin/python"
request_seconds = 14400
url = "https://trainyard.example.org"
labels = { gpu = "a100" }
roots = { checkpoints = "/shared/checkpoints", data = "s3://bucket/data" }
limits = { pending = 2, nodes = 12 }
worker = { allow_code = true, notice_seconds = 60 }
options = { options = ["--partition=gpu", "-A", "--qos=low"], setup = "module load cuda" }
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sources.toml"
    path.write_text(text)
    return path


def test_a_source_becomes_its_registration_and_the_environment_of_its_pilots(
    tmp_path: Path,
) -> None:
    (source,) = read_sources(written(tmp_path, GOOD))
    registration = source.registration(version="1")
    assert registration.shape.labels == {"gpu": "a100", "source": "slurm-a100"}
    assert registration.shape.roots == ("checkpoints", "data")
    assert registration.limits.nodes == 12
    environment = source.pilot_environment(url="http://s:1", request_id="r", purpose="nodes")
    assert environment["TRAINYARD_ROOTS"] == "checkpoints=/shared/checkpoints,data=s3://bucket/data"
    assert environment["TRAINYARD_ALLOW_CODE"] == "true"
    assert environment["TRAINYARD_NOTICE_SECONDS"] == "60.0"
    assert environment["TRAINYARD_PILOT_REQUEST"] == "r"
    assert not {key for key in environment if "TOKEN" in key or "BROKER" in key}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("slots = 8", "slots = 0"), ["/sources/0/slots", "0"]),
        (("slots = 8", 'slots = "8"'), ["/sources/0/slots", "'8'"]),
        (('kind = "slurm"', 'kind = "pbs"'), ["/sources/0/kind", "'kubernetes'", "'pbs'"]),
        (("pending = 2", "waiting = 2"), ["/sources/0/limits/waiting", "unknown field"]),
        (("slots = 8", "slot = 8"), ["/sources/0/slot", "unknown field"]),
        (("= 14400", "= 600"), ["leave_seconds=300", "request_seconds=600", "above 600"]),
        (('"/shared/checkpoints"', '"shared"'), ["/sources/0/roots/checkpoints", "'shared'"]),
        (("https://t", "ftp://t"), ["/sources/0/url"]),
        (('{ gpu = "a100" }', '{ source = "x" }'), ["labels.source='x'", "'slurm-a100'"]),
        (("[[sources]]", "[[sources"), ["sources.toml"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"sources\.toml") as error:
        read_sources(written(tmp_path, GOOD.replace(*change)))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_no_file_and_no_source_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        read_sources(tmp_path / "sources.toml")
    with pytest.raises(ValueError, match="/sources"):
        read_sources(written(tmp_path, "sources = []"))
    with pytest.raises(ValueError, match="'slurm-a100' twice"):
        read_sources(written(tmp_path, GOOD + GOOD))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "gpu"}, "/sources/pool/options/partition: unknown field"),
        ({"options": ["gpu"]}, "'gpu' is no option"),
        ({"options": ["--requeue"]}, "'--requeue' is set by the provisioner"),
        ({"options": ["-N4"]}, "'-N4' is set by the provisioner"),
        ({"options": ["--job-name=x"]}, "'--job-name' is set by the provisioner"),
        ({"options": ["--arr=0-3"]}, "'--arr' is set by the provisioner, or the beginning"),
        ({"options": ["-Qa0-3"]}, "'-Qa0-3' is set by the provisioner"),
        ({"options": ["--"]}, "'--' is no option"),
        ({"setup": "module load x\n#SBATCH --array=0-3"}, "setup has a line #SBATCH"),
        ({"ssh": ["ssh", "login1"]}, "options.ssh needs options.folder"),
        ({"signal_seconds": 70_000}, "/sources/pool/options/signal_seconds"),
    ],
)
def test_options_of_slurm_are_checked(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    config = SourceConfig(name="pool", kind="slurm", slots=1, roots={"data": "/d"}, options=options)
    with pytest.raises(ValueError, match="pool") as error:
        open_engine(config, Place(name="pool", python="python3", folder=tmp_path))
    assert words in str(error.value)
