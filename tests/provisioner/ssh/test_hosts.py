"""Options of an ssh source: names of machines, and options that weaken the connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from provisioner.base import Place
from provisioner.engines import open_engine
from provisioner.settings import read_sources
from provisioner.ssh.hosts import SshOptions, expand_hosts
from provisioner.ssh.source import SshSource

SOURCES = """
[[sources]]
name = "lab"
kind = "ssh"
slots = 8
roots = { checkpoints = "/shared/checkpoints" }
options = { hosts = ["gpu-[1-2]"], ssh = ["ssh", "-F", "/etc/ssh_config"] }
"""


def test_a_file_of_sources_may_have_machines(tmp_path: Path) -> None:
    path = tmp_path / "sources.toml"
    path.write_text(SOURCES)
    (config,) = read_sources(path)
    place = Place(name=config.name, python=config.python, folder=tmp_path)
    assert isinstance(open_engine(config, place), SshSource)
    path.write_text(SOURCES.replace("gpu-[1-2]", "gpu-[2-1]"))
    (config,) = read_sources(path)
    with pytest.raises(ValueError, match=r"/sources/lab/options/hosts.*range 2-1"):
        open_engine(config, place)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu", ["gpu"]),
        ("me@gpu-[08-10].lab", ["me@gpu-08.lab", "me@gpu-09.lab", "me@gpu-10.lab"]),
        ("r[1,3]n[1-2]", ["r1n1", "r1n2", "r3n1", "r3n2"]),
    ],
)
def test_ranges_name_machines(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hosts": []}, "at least 1 item"),
        ({"hosts": ["-oProxyCommand=x"]}, "is no name of a machine"),
        ({"hosts": ["gpu-[4-1]"]}, "range 4-1 names 0 machines"),
        ({"hosts": ["gpu-[1-99999]"]}, "names 99999 machines"),
        ({"hosts": ["gpu-[1-2]", "gpu-2"]}, "hosts has gpu-2 twice"),
        ({"hosts": ["a"], "base": "relative"}, "should match pattern"),
        ({"hosts": ["a"], "base": "/tmp/$(reboot)"}, "should match pattern"),
        ({"hosts": ["a"], "ssh": ["ssh", "-oStrictHostKeyChecking=no"]}, "host keys are verified"),
        ({"hosts": ["a"], "password": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_other_values_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SshOptions.model_validate(values)
