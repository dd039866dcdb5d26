"""`config`, `summary`, `tags` and `Table` of scripts of wandb."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import trainyard.wandb as wandb
from tests.library.wandb.test_wandb import artifacts, folder

__all__ = ["folder"]


def test_facts_are_what_the_script_sets(folder: Path) -> None:
    run = wandb.init(config={"net": {"width": 8}}, tags=("one",))
    run.log({"acc": 0.5, "loss": 1.0})
    run.summary["acc"] = 0.75
    run.log({"acc": 0.25})
    run.summary.update({"best": np.float32(0.5)})
    run.config.gone = 1
    del run.config["gone"]
    run.tags += ("two",)
    wandb.finish()
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["config"] == {"lr": 1, "net.width": 8}
    assert facts["summary"] == {"acc": 0.25, "best": 0.5}  # the last value, as in wandb
    assert facts["tags"] == ["one", "two"]
    assert run.tags == ("one", "two")


class Frame:
    """What is taken of a frame of pandas."""

    columns = ("id", "text")

    @staticmethod
    def itertuples(*, index: bool, name: None) -> Iterator[tuple[int, str]]:
        assert not index
        yield from ((1, "a"), (2, "b"))


def test_tables_are_artifacts(folder: Path) -> None:
    run = wandb.init()
    table = wandb.Table(columns=["id", "score", "image"], data=[[1, math.nan, None]])
    image = wandb.Image(np.zeros((2, 2), np.uint8))
    table.add_data(np.int64(2), torch.tensor(0.5), image)
    table.add_column("ok", [True, [1, "x"]])
    run.log({"predictions": table, "nested": {"frame": wandb.Table(dataframe=Frame())}})
    run.log({"defaults": wandb.Table(), "frame as data": wandb.Table(data=Frame())})
    with pytest.raises(ValueError, match="a row of 1 cells; legal: 4"):
        table.add_data(1)
    with pytest.raises(ValueError, match="a column of 1 cells; legal: 2"):
        table.add_column("more", [1])
    wandb.finish()
    found = {name: (kind, step, json.loads(c)) for name, kind, step, c in artifacts(folder)}
    assert found["predictions.json"] == (
        "table",
        0,
        {
            "columns": ["id", "score", "image", "ok"],
            "left_out": 0,
            "data": [[1, "NaN", None, True], [2, 0.5, "Image", '[1, "x"]']],
        },
    )
    for name in ("nested.frame.json", "frame as data.json"):
        assert found[name][2]["data"] == [[1, "a"], [2, "b"]]
    assert found["defaults.json"][2]["columns"] == ["Input", "Output", "Expected"]


def test_what_a_table_has_no_room_for_is_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = wandb.init()
    many = wandb.Table(columns=["n"], data=[[n] for n in range(10_050)])
    large = wandb.Table(columns=["n"], data=[["x" * 5000]] * 6000)
    for _ in range(2):
        run.log({"many": many, "large": large})
    wandb.finish()
    found = {name: json.loads(content) for name, _, _, content in artifacts(folder)}
    assert (len(found["many.json"]["data"]), found["many.json"]["left_out"]) == (10_000, 50)
    assert len(found["large.json"]["data"]) + found["large.json"]["left_out"] == 6000
    assert len(json.dumps(found["large.json"])) < 4.1 * 2**20
    assert caplog.text.count("50 rows of the table 'many' are left out") == 1
