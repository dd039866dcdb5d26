"""The spec of a probe is legal, and its values are read from the rows of the API."""

from __future__ import annotations

import math

import pytest

from trainyard.protocol.rank_probe.probe_values import MAX_RANKS, ProbeValue
from trainyard.prove.rank_probe.probe_job import probe_spec, read_values
from trainyard.run.session.step_records import MAX_SERIES
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_new_job


@pytest.mark.parametrize("nodes", [None, 2])
def test_the_spec_is_legal(nodes: int | None) -> None:
    spec = parse_job_spec(probe_spec(4, device="cpu", nodes=nodes, seconds=90, root="shared"))
    check_new_job(spec)
    assert spec.program is not None
    words = spec.program.words(Layout(dp_shard=4), begun_before=False, checkpoint=None)
    assert " ".join(words) == (
        "python -m trainer.rank_probe --seconds 90 --disk-mib 256 --root shared"
    )
    assert (spec.resources.world_size, spec.checkpoint.root) == (4, "shared")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots=0: a probe has 1 to 2000 ranks"),
        ({"slots": MAX_RANKS + 1}, "slots=2001"),
        ({"slots": 2, "seconds": 10}, "seconds=10: a probe needs at least 60 s"),
        ({"slots": 2, "seconds": math.nan}, "seconds=nan"),
        ({"slots": 2, "disk_mib": 0}, "disk_mib=0"),
    ],
)
def test_illegal_arguments_are_named(options: dict[str, int | float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        probe_spec(**options)  # type: ignore[arg-type]


def test_each_rank_fits_into_a_series_of_its_own() -> None:
    assert MAX_RANKS <= MAX_SERIES


def test_values_rise_so_that_none_is_dropped() -> None:
    numbers = [int(value) for value in ProbeValue]
    assert numbers == sorted(set(numbers))


def test_values_are_read_by_rank_and_others_are_omitted() -> None:
    rows = [
        "attempt,step,time,name,value\n",
        "1,1,5.0,probe/rank-0,7.0\n",
        "1,1,5.0,probe/rank-12,8.5\n",
        "1,10,5.0,probe/rank-0,nan\n",
        "1,999,5.0,probe/rank-0,1.0\n",
        "1,1,5.0,probe/mean,1.0\n",
        "1,1,5.0,loss/rank-0,1.0\n",
        "1,1,,data_digest,ab\n",
    ]
    assert read_values(rows) == {ProbeValue.KIND: {0: 7.0, 12: 8.5}}
