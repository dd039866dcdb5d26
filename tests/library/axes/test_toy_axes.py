"""One library module and one trainer module add an axis: two toy axes show it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")

WIDE = '''
"""A toy axis that multiplies the world size."""
from collections.abc import Iterator

from trainyard.axes.base import Axis, AxisFields, LayoutFacts, problem
from trainyard.base.model_base import Ranks
from trainyard.base.problems import Problem, divisors, nearest


class WideFields(AxisFields):
    """Fields of the toy."""

    wide: Ranks = 1
    """Toy: ranks that share the layers."""


def rule(facts: LayoutFacts) -> Iterator[Problem]:
    """Each rank has as many layers."""
    size, layers = facts.size("wide"), facts.architecture.n_layers
    if layers % size:
        detail = f"wide={size} does not divide n_layers={layers}"
        yield problem("wide", f"{detail}; {nearest(size, divisors(layers))}")


FIELDS = WideFields
AXES = (
    Axis(
        name="wide", label="WIDE", order=45, mesh_order=45, help="Toy.", divides="matrices",
        scope="sequence", shards_weights=True, rules=(rule,),
    ),
)
'''
LOAN = '''
"""A toy axis that regroups the ranks of dp_shard, as expert parallelism does."""
from trainyard.axes.base import Axis, AxisFields
from trainyard.base.model_base import Ranks


class LoanFields(AxisFields):
    """Fields of the toy."""

    loan: Ranks = 1
    """Toy: ranks of dp_shard that are regrouped."""


FIELDS = LoanFields
AXES = (
    Axis(
        name="loan", label="LOAN", order=60, mesh_order=60, help="Toy.", divides="matrices",
        scope="batch", borrows_from=("dp_shard",),
    ),
)
'''
APPLY = '''
"""How a toy axis is applied: it leaves a note on the model."""


def apply(model, mesh, spec, layout):
    """Note the sizes."""
    model.applied = [*getattr(model, "applied", []), ("NAME", layout.size("NAME"))]
'''
LIBRARY = """
import json
from trainyard.planner.legal_layouts import LegalLayouts
from trainyard.planner.plan import plan
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.base.problems import SpecError

def job(**axes):
    training = {"seq_len": 64, "global_batch_size": 8, "micro_batch_size": 1}
    world = axes.pop("world_size")
    return parse_job_spec({"model": {"size": "debug"}, "training": training,
                           "parallelism": axes, "resources": {"world_size": world}})

def refused(**axes):
    try:
        plan(job(**axes))
    except SpecError as error:
        return str(error)

old = Layout.model_validate_json('{"dp_replicate":1,"dp_shard":2,"cp":1,"tp":1,"pp":1}')
options = LegalLayouts(job(world_size=2), slots=()).on(4)
print(json.dumps({
    "old": old.model_dump(),
    "world": plan(job(world_size=4, wide=2, loan=2)).name,
    "weights": [plan(job(world_size=2, **axes)).memory.weights for axes in ({}, {"wide": 2})],
    "whole": plan(job(world_size=1)).memory.weights,
    "refused": [refused(world_size=3, wide=3), refused(world_size=4, loan=3)],
    "options": [option.name for option in options.layouts],
}))
"""
TRAINER = """
import json
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
import torch.distributed as dist
from trainer.models.families import build_model
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainyard.spec.job import parse_job_spec

spec = parse_job_spec({"model": {"size": "debug"}, "resources": {"world_size": 4, "device": "cpu"},
                       "compile": {"enabled": False},
                       "training": {"global_batch_size": 8, "micro_batch_size": 1},
                       "parallelism": {"wide": 2, "loan": 2}})
layout = spec.layout()
dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
mesh = build_mesh(layout, "cpu")
with torch.device("meta"):
    model = build_model(spec)
parallelize(model, mesh, spec=spec, layout=layout)
print(json.dumps({"mesh": dict(zip(mesh.mesh_dim_names, mesh.shape)), "applied": model.applied}))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of library and trainer with two more files in each."""
    root = tmp_path_factory.mktemp("six-axes")
    shutil.copytree(ROOT / "library", root / "library", ignore=IGNORED)
    shutil.copytree(ROOT / "trainer", root / "trainer", ignore=IGNORED)
    for name, text in (("wide", WIDE), ("loan", LOAN)):
        (root / "library" / "trainyard" / "axes" / f"{name}.py").write_text(text)
        applied = APPLY.replace("NAME", name)
        (root / "trainer" / "parallel" / f"{name}.py").write_text(applied)
    return root


def run(tree: Path, code: str) -> dict[str, Any]:
    """Return the JSON object that a script prints with the copy on its path."""
    path = os.pathsep.join([str(tree / "library"), str(tree)])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_layouts_rules_plans_and_options_list_an_axis_that_only_its_module_knows(
    tree: Path,
) -> None:
    found = run(tree, LIBRARY)
    assert found["old"] == {
        "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 1, "wide": 1, "pp": 1, "loan": 1
    }  # fmt: skip
    assert found["world"] == "FSDP 2 x WIDE 2 x LOAN 2"
    sharded, split = found["weights"]
    assert sharded == split == pytest.approx(found["whole"] / 2, rel=1e-3)
    wide, loan = found["refused"]
    assert "/parallelism/wide: wide=3 does not divide n_layers=" in wide
    assert "/parallelism/loan: loan=3 does not divide dp_shard = 4" in loan
    assert "nearest legal: 2, 4" in loan
    assert {"FSDP 4", "FSDP 2 x WIDE 2", "FSDP 4 x LOAN 2"} <= set(found["options"])


def test_the_trainer_meshes_and_applies_them_in_order(tree: Path) -> None:
    found = run(tree, TRAINER)
    assert found["mesh"] == {"dp_shard": 2, "wide": 2}
    assert found["applied"] == [["wide", 2], ["loan", 2]]
