"""Layouts: axes that fill the slots, and names."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.base.problems import SpecError
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout, data_parallel_layouts

axis = st.integers(1, 6)


@given(axis, axis, axis, axis, axis)
def test_filling_gives_what_the_others_leave(
    dp_replicate: int, dp_shard: int, cp: int, tp: int, pp: int
) -> None:
    whole = Layout(dp_replicate=dp_replicate, dp_shard=dp_shard, cp=cp, tp=tp, pp=pp)
    for given_shard in (-1, dp_shard):
        filled = Layout.fill(
            world_size=whole.world_size,
            dp_replicate=dp_replicate,
            dp_shard=given_shard,
            cp=cp,
            tp=tp,
            pp=pp,
        )
        assert filled == whole
    assert whole.world_size == dp_replicate * dp_shard * cp * tp * pp
    assert whole.dp == dp_replicate * dp_shard


@pytest.mark.parametrize(
    ("world_size", "dp_shard", "message"),
    [
        (
            3,
            -1,
            "/parallelism/dp_replicate: dp_replicate=2 makes dp_replicate x cp x tp x pp = 2, "
            "which does not divide world_size=3; nearest legal: 1, 3, or as world_size: 2, 4",
        ),
        (
            4,
            3,
            "/parallelism/dp_shard: dp_shard=3 makes dp_replicate x dp_shard x cp x tp x pp = "
            "6, but world_size=4; legal: 2, -1, or world_size=6",
        ),
        (
            4,
            0,
            "/parallelism/dp_shard: dp_shard=0 must be positive, or -1 to fill the slots; "
            "nearest legal: -1, 1",
        ),
    ],
)
def test_axes_that_do_not_fill_the_slots(world_size: int, dp_shard: int, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        Layout.fill(world_size=world_size, dp_replicate=2, dp_shard=dp_shard, cp=1, tp=1, pp=1)


@pytest.mark.parametrize(
    ("world_size", "axes", "message"),
    [
        (  # the largest axis with another legal size is named, not the first
            12,
            {"dp_replicate": 2, "dp_shard": -1, "cp": 1, "tp": 5, "pp": 1},
            "/parallelism/tp: tp=5 makes dp_replicate x cp x tp x pp = 10, which does not divide "
            "world_size=12; nearest legal: 3, 6, or as world_size: 10, 20",
        ),
        (
            4,
            {"dp_replicate": 2, "dp_shard": -1, "cp": 1, "tp": 4, "pp": 1},
            "/parallelism/tp: tp=4 makes dp_replicate x cp x tp x pp = 8, which does not divide "
            "world_size=4; nearest legal: 2, or as world_size: 8",
        ),
        (  # no other size of a single axis is enough
            7,
            {"dp_replicate": 2, "dp_shard": -1, "cp": 2, "tp": 1, "pp": 1},
            "/resources/world_size: world_size=7 is no multiple of dp_replicate x cp x tp x pp = "
            "4; nearest legal: 4, 8",
        ),
        (
            7,
            {"dp_replicate": 2, "dp_shard": 2, "cp": 1, "tp": 1, "pp": 1},
            "/resources/world_size: world_size=7, but dp_replicate x dp_shard x cp x tp x pp = 4; "
            "legal: 4, or other axes",
        ),
    ],
)
def test_the_axis_or_the_world_size_is_named(
    world_size: int, axes: dict[str, int], message: str
) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        Layout.fill(world_size=world_size, **axes)


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (Layout(), "1 rank"),
        (Layout(dp_shard=4), "FSDP 4"),
        (Layout(dp_replicate=2, dp_shard=2), "HSDP 2x2"),
        (Layout(dp_replicate=2, dp_shard=2, tp=2, pp=3), "HSDP 2x2 x TP 2 x PP 3"),
        (Layout(dp_replicate=4), "DDP 4"),
        (Layout(dp_replicate=2, tp=2), "DDP 2 x TP 2"),
        (Layout(tp=2), "TP 2"),
        (Layout(cp=2, pp=3), "CP 2 x PP 3"),
        (Layout(dp_shard=2, tp=2, pp=3), "FSDP 2 x TP 2 x PP 3"),
    ],
)
def test_names(layout: Layout, name: str) -> None:
    assert str(layout) == name


@pytest.mark.parametrize(("dp_shard", "words"), [(1, "1 slot"), (4, "4 slots")])
def test_slots_are_counted_in_words(dp_shard: int, words: str) -> None:
    assert Layout(dp_shard=dp_shard).slots_in_words == words


@pytest.mark.parametrize(
    ("layout", "sections", "sharded"),
    [
        (Layout(), {}, False),
        (Layout(pp=4), {}, False),
        (Layout(pp=2, tp=2), {}, True),
        (Layout(dp_replicate=2), {}, True),
        (Layout(), {"training": {"param_dtype": "bfloat16"}}, True),
        (
            Layout(),
            {"training": {"param_dtype": "bfloat16", "weight_dtype": "bfloat16"}},
            False,
        ),
        (Layout(pp=4), {"optimizer": {"cpu_offload": True}}, True),
    ],
)
def test_fsdp_holds_what_is_shared_cast_or_fetched(
    layout: Layout, sections: dict[str, Any], sharded: bool
) -> None:
    assert parse_job_spec(sections).is_sharded(layout) == sharded


def test_an_axis_that_is_not_given_has_one_rank() -> None:
    assert Layout.fill(world_size=6, dp_shard=-1, tp=2) == Layout(dp_shard=3, tp=2)


@pytest.mark.parametrize(
    ("layout", "units"),
    [
        (Layout(dp_shard=8, pp=2), ()),
        (Layout(dp_shard=2, tp=4), (4,)),
        (Layout(dp_shard=2, cp=2), (2,)),
        (Layout(cp=2, tp=4, pp=2), (8, 4)),
    ],
)
def test_ranks_of_tp_and_cp_share_a_node(layout: Layout, units: tuple[int, ...]) -> None:
    assert layout.node_units == units
    assert all(layout.world_size % unit == 0 for unit in units)


@pytest.mark.parametrize(
    ("axes", "world_size", "names"),
    [
        ({}, 4, ["FSDP 4"]),
        ({"dp_shard": 1, "dp_replicate": 6}, 4, ["DDP 4", "FSDP 4"]),
        ({"dp_shard": 3, "dp_replicate": 2}, 4, ["HSDP 2x2", "FSDP 4"]),
        ({"dp_shard": 2, "dp_replicate": 3}, 4, ["HSDP 2x2", "FSDP 4"]),
        ({"tp": 2}, 6, ["FSDP 3 x TP 2"]),
        ({"tp": 2}, 5, []),
        ({"pp": 2, "cp": 2}, 4, ["CP 2 x PP 2"]),
    ],
)
def test_another_number_of_ranks_changes_data_parallelism_alone(
    axes: dict[str, int], world_size: int, names: list[str]
) -> None:
    sizes = parse_job_spec({"parallelism": axes}).parallelism.sizes
    layouts = data_parallel_layouts(sizes, world_size)
    assert [str(layout) for layout in layouts] == names
    assert {layout.world_size for layout in layouts} <= {world_size}
