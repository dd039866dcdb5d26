"""The comparison of stored points with logged ones finds what is lost, doubled and changed."""

from __future__ import annotations

import pytest

from benchmarks.run_log.outage import deviations, expected

HEADER = "attempt,step,time,name,value"


def rows(*, processes: int = 16) -> list[str]:
    points = expected(processes=processes, values=2, steps=3)
    others = ["1,1,0.0,data_digest,abc"]
    return [*(f"1,{step},0.0,{name},{value!r}" for (name, step), value in points.items()), *others]


def found(lines: list[str], *, processes: int = 16) -> dict[str, int]:
    return dict(deviations([HEADER, *lines], processes=processes, values=2, steps=3))


@pytest.mark.parametrize(("processes", "series"), [(1, 2), (16, 8)])
def test_points_as_they_were_logged_are_counted(processes: int, series: int) -> None:
    whole = rows(processes=processes)
    assert found(whole, processes=processes) == {
        "points": 3 * series,
        "lost": 0,
        "doubled": 0,
        "other": 0,
    }


def test_each_deviation_is_found() -> None:
    first, second, *rest = rows()
    assert found([second, *rest]) == {"points": 23, "lost": 1, "doubled": 0, "other": 0}
    assert found([first, first, second, *rest])["doubled"] == 1
    changed = f"{first.rpartition(',')[0]},7.5"
    assert found([changed, second, *rest]) == {"points": 23, "lost": 0, "doubled": 0, "other": 1}
    strange = first.replace(",1,", ",9,", 1)
    assert found([strange, second, *rest]) == {"points": 23, "lost": 1, "doubled": 0, "other": 1}
