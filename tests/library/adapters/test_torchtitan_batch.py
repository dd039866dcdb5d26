"""The rows of each rank, the names of metrics, and the list of layouts; without torchtitan."""

from __future__ import annotations

import itertools
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from trainyard.adapters.torchtitan.__main__ import main
from trainyard.adapters.torchtitan.batch_split import (
    required_batch_size,
    split_batch,
    unpadded_degrees,
)
from trainyard.adapters.torchtitan.program_layouts import AXES, program_layouts, toml_of
from trainyard.adapters.torchtitan.recipe import BuiltBy, check_order, may_end, order_facts
from trainyard.adapters.torchtitan.step_logger import renamed
from trainyard.spec.job import parse_job_spec
from trainyard.spec.sections.program import MAX_LAYOUTS

COMMAND = ("layouts", "--module", "mine", "--config", "mine", "--world-size")


@dataclass
class Listing:
    """Layouts by number of ranks, and what the command wrote."""

    written: pytest.CaptureFixture[str]
    layouts: dict[int, list[dict[str, int]]] = field(default_factory=dict)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Listing:
    """The command with stand-ins for torchtitan and for its legal layouts."""
    listing = Listing(capsys)
    recipe = SimpleNamespace(parallelism=SimpleNamespace(**dict.fromkeys(AXES.values(), 1)))
    manager = SimpleNamespace(parse_args=lambda words: recipe)
    stand_ins: dict[str, Any] = {
        "torchtitan": SimpleNamespace(),
        "torchtitan.config": SimpleNamespace(ConfigManager=lambda: manager),
        "trainyard.adapters.torchtitan.layout_list": SimpleNamespace(
            legal_layouts=lambda config, size: {
                "world_size": size,
                "layouts": listing.layouts.get(size, []),
                "reasons": [] if size in listing.layouts else [f"{size} is odd"],
            }
        ),
    }
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    return listing


@dataclass
class Loading:
    """Stands for a loader's config."""

    dataset: str = "c4"
    num_workers: int = 0
    sources: list[Any] = field(default_factory=list)
    processor: Any = len


def test_ranks_divide_the_rows_with_the_least_padding() -> None:
    for batch, most in itertools.product(range(1, 25), (1, 3, 8)):
        for dp in range(1, min(batch, 8) + 1):
            check_split(batch, most, dp)


def check_split(batch: int, most: int, dp: int) -> None:
    split = split_batch(batch, most, dp=dp)
    rows = [split.rows(rank) for rank in range(dp)]
    assert sorted(row for parts in rows for part in parts for row in part) == list(range(batch))
    assert all(len(parts) == split.accumulation_steps for parts in rows)
    assert all(any(parts) for parts in rows), "each rank has a row of its own"
    assert 1 <= split.local_batch_size <= most
    assert split.padded_rows == -batch % dp


def test_of_equal_splits_the_one_with_the_largest_micro_batch_is_taken() -> None:
    split = split_batch(64, 8, dp=4)
    assert (split.local_batch_size, split.accumulation_steps, split.padded_rows) == (8, 2, 0)
    split = split_batch(12, 2, dp=4)
    assert (split.local_batch_size, split.accumulation_steps) == (1, 3)


def test_more_ranks_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="global_batch_size=3: legal is up to 3 ranks"):
        split_batch(3, 8, dp=4)


def test_padding_is_refused_with_the_nearest_legal_numbers() -> None:
    with pytest.raises(ValueError, match="the nearest legal numbers are 4 and 6"):
        split_batch(12, 8, dp=5, may_pad=False)
    assert split_batch(12, 8, dp=6, may_pad=False).padded_rows == 0
    assert unpadded_degrees(12, dp=7) == [6, 12]
    assert unpadded_degrees(12, dp=12) == [6]


def test_a_recipe_without_a_global_batch_size_is_refused() -> None:
    assert required_batch_size(12) == 12
    with pytest.raises(ValueError, match=r"config\.training\.global_batch_size"):
        required_batch_size(-1)


def test_the_order_of_the_data_has_no_facts_of_loading() -> None:
    facts = order_facts(Loading(), global_batch_size=12, seq_len=64)
    workers = Loading(num_workers=2, sources=[])
    check_order(facts, order_facts(workers, global_batch_size=12, seq_len=64))
    assert facts["dataloader.processor"] == "builtins.len"


def test_a_set_is_the_same_in_each_order() -> None:
    one, other = ({"a": set(numbers), "b": frozenset(numbers)} for numbers in ([0, 8], [8, 0]))
    assert [*one["a"]] != [*other["a"]], "both numbers have the same place in the table"
    facts = [
        order_facts(Loading(processor=each), global_batch_size=12, seq_len=64)
        for each in (one, other)
    ]
    check_order(*facts)
    assert facts[0]["dataloader.processor"] == {"a": [0, 8], "b": [0, 8]}
    mixed = order_facts(Loading(processor={None, "a", 1}), global_batch_size=12, seq_len=64)
    assert sorted(map(str, mixed["dataloader.processor"])) == ["1", "None", "a"]


def test_a_mixture_whose_end_no_state_contains_is_refused() -> None:
    def mixture(infinite: bool, strategy: str) -> Any:
        sources = [SimpleNamespace(infinite=infinite)] * 2
        return SimpleNamespace(sources=sources, stopping_strategy=strategy)

    assert may_end(SimpleNamespace(infinite=False))
    assert may_end(mixture(False, "on_first_exhausted"))
    assert not may_end(mixture(True, "all_exhausted"))
    with pytest.raises(ValueError, match="legal is 'on_first_exhausted', or sources with infinite"):
        may_end(mixture(False, "all_exhausted"))


@dataclass
class Letters:
    """Stands for a tokenizer."""

    first: int

    def encode(self, text: str) -> list[int]:
        return [self.first + ord(letter) for letter in text]

    def get_vocab_size(self) -> int:
        return 70_000


def test_another_tokenizer_is_refused() -> None:
    ours, same, theirs = (
        order_facts(Loading(), global_batch_size=12, seq_len=64, tokenizer=Letters(first))
        for first in (0, 0, 1)
    )
    check_order(ours, same)
    with pytest.raises(ValueError, match=r"tokenizer='.*' differs"):
        check_order(ours, theirs)


class Tree(Loading):
    """Stands for a config that overrides can traverse."""

    def traverse(self, kind: type) -> Iterator[tuple[str, Any, Any, Any]]:
        if isinstance(self, kind):
            yield "dataloader", self, None, None
        for index, source in enumerate(self.sources):
            if isinstance(source, kind):
                yield f"dataloader.sources.{index}", source, self.sources, index


def test_an_override_of_a_wrapped_config_keeps_how_it_is_built() -> None:
    sources = ["first"]
    wrapped = BuiltBy(Tree(sources=sources), lambda config: config.dataset)
    ((_, _, parent, key),) = wrapped.traverse(str)
    assert (parent, key) == (sources, 0)
    ((_, _, parent, key),) = wrapped.traverse(Tree)
    setattr(parent, key, Tree("pile"))
    assert wrapped.build() == "pile"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"global_batch_size": 16}, "training.global_batch_size=16 differs .*=12 of the"),
        ({"seq_len": 32}, "training.seq_len=32 differs"),
        ({"config": Loading("pile")}, "dataloader.dataset='pile' differs .*'c4'"),
        ({"config": Loading(sources=[Loading("pile")])}, "dataloader.sources="),
    ],
)
def test_another_order_is_refused_with_its_name(other: dict[str, Any], words: str) -> None:
    mine: dict[str, Any] = {"config": Loading(), "global_batch_size": 12, "seq_len": 64}
    facts = [order_facts(each.pop("config"), **each) for each in (mine | other, dict(mine))]
    with pytest.raises(ValueError, match=words):
        check_order(*facts)


def test_metrics_have_the_names_of_the_built_in_trainer() -> None:
    found = renamed(
        {
            "loss_metrics/global_avg_loss": 2.0,
            "grad_norm": 1.0,
            "lr/AdamW/0": 0.1,
            "lr/AdamW/1": 0.2,
            "mfu(%)": 50.0,
            "memory/max_active(GiB)": -1.0,
            "memory/max_reserved(%)": 3.0,
            "throughput(tps)": 4.0,
            "validation_metrics/loss": 5.0,
            "own": 6.0,
        }
    )
    assert found == {
        "train/loss": 2.0,
        "train/grad_norm": 1.0,
        "train/lr": 0.1,
        "lr/AdamW/0": 0.1,
        "lr/AdamW/1": 0.2,
        "perf/mfu": 0.5,
        "validation/loss": 5.0,
        "train/own": 6.0,
    }


ONE_RANK = {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1, "ep": 1, "padded_rows": 0}


def test_layouts_become_a_program_with_the_recipes_own_first() -> None:
    recipe = {"cp": 1, "tp": 2, "pp": 1, "ep": 1}
    layouts = [
        ONE_RANK | {"dp_shard": 4, "ep": 2},
        ONE_RANK | {"dp_shard": 4},
        ONE_RANK | {"dp_replicate": 2, "tp": 2},
        ONE_RANK | {"dp_shard": 2, "tp": 2},
        ONE_RANK | {"dp_shard": 3, "padded_rows": 1},
    ]
    text = toml_of(program_layouts(layouts, recipe))
    program = {
        "command": ["train.py"],
        "resume": "any_world_size",
        **tomllib.loads(text)["program"],
    }
    spec = parse_job_spec({"program": program, "resources": {"world_size": 4}})
    assert spec.program is not None
    found = [(each.axes, each.arguments) for each in spec.program.layouts]
    assert [(a.dp_replicate, a.dp_shard, a.tp) for a, _ in found] == [
        (1, 2, 2),
        (2, 1, 2),
        (1, 4, 1),
        (1, 3, 1),
    ]
    assert found[2][1]["parallelism.expert_parallel_degree"] == 1, "as in the recipe"
    assert found[0][1]["parallelism.tensor_parallel_degree"] == 2


def test_a_table_without_layouts_has_the_reasons(command: Listing) -> None:
    command.layouts = {2: [ONE_RANK | {"micro_batch_size": 3, "accumulation_steps": 4}]}
    assert main([*COMMAND, "2", "5"]) == 1
    written = command.written.readouterr()
    lines = written.out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        [*AXES, "micro_batch_size", "accumulation_steps", "padded_rows"],
        [*"111111", "3", "4", "0"],
    ]
    assert lines[2:] == ["No layout of 5 ranks is legal:", "  5 is odd"]
    assert written.err == ""


def test_a_program_without_layouts_of_a_size_has_the_reasons_as_an_error(command: Listing) -> None:
    command.layouts = {2: [ONE_RANK | {"dp_shard": 2}]}
    assert main([*COMMAND, "2", "5", "--toml"]) == 1
    written = command.written.readouterr()
    assert tomllib.loads(written.out)["program"]["layouts"][0]["dp_shard"] == 2
    assert written.err == "No layout of 5 ranks is legal:\n  5 is odd\n"

    assert main([*COMMAND, "5", "--toml"]) == 1
    assert command.written.readouterr().out == ""


def test_more_layouts_than_a_spec_may_have_are_refused(command: Listing) -> None:
    command.layouts = {n: [ONE_RANK | {"dp_shard": n}] for n in range(1, MAX_LAYOUTS + 2)}
    sizes = [str(size) for size in command.layouts]
    assert main([*COMMAND, *sizes[1:], "--toml"]) == 0
    assert len(tomllib.loads(command.written.readouterr().out)["program"]["layouts"]) == MAX_LAYOUTS
    assert main([*COMMAND, *sizes, "--toml"]) == 1
    written = command.written.readouterr()
    assert written.out == ""
    assert "program.layouts has 513 layouts: legal are up to 512" in written.err
