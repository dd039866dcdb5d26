"""References to jobs and checkpoints, against the real API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.library.conftest import Yard
from trainyard.client.errors import UnknownReferenceError
from trainyard.client.references import Target, beginning_with, resolve, resolve_job


def test_a_job_goes_by_id_prefix_name_and_as_the_last(yard: Yard) -> None:
    first = yard.harness.submit(name="llama-7")
    second = yard.harness.submit(name="other")
    with yard.connect() as sdk:
        assert resolve_job(sdk, first) == first
        assert resolve_job(sdk, "llama-7") == first
        assert resolve_job(sdk, "@last") == second
        unique = next(first[:n] for n in range(1, 27) if first[:n] != second[:n])
        assert resolve_job(sdk, unique) == first


@pytest.mark.parametrize("reference", ["nope", "a b", "zzzz", "@first", "ü", "x" * 300, "%"])
def test_a_name_that_nothing_has_is_refused(yard: Yard, reference: str) -> None:
    yard.harness.submit(name="tiny")
    with yard.connect() as sdk, pytest.raises(UnknownReferenceError, match="No job is called"):
        resolve_job(sdk, reference)


@pytest.mark.parametrize("reference", ["tiny@40", "tiny@step-x", "tiny@a1", "tiny@"])
def test_a_malformed_reference_is_refused_with_the_legal_form(yard: Yard, reference: str) -> None:
    yard.harness.submit(name="tiny")
    with yard.connect() as sdk, pytest.raises(UnknownReferenceError, match="JOB@step-400"):
        resolve(sdk, reference)


def test_there_is_no_last_job_before_the_first(yard: Yard) -> None:
    with yard.connect() as sdk, pytest.raises(UnknownReferenceError, match="trainyard submit"):
        resolve_job(sdk, "@last")


def test_what_fits_two_jobs_is_refused_and_both_are_named(yard: Yard) -> None:
    ids = [yard.harness.submit(name="twin") for _ in range(2)]
    with yard.connect() as sdk:
        for reference in ("twin", "01"):
            with pytest.raises(UnknownReferenceError) as caught:
                resolve_job(sdk, reference)
            assert all(job_id in str(caught.value) for job_id in ids)


def test_a_checkpoint_goes_by_its_step_on_the_current_lineage(yard: Yard) -> None:
    job_id, supervisors = yard.harness.running(name="tree", step=20)
    older = yard.harness.commit_checkpoint(job_id, 10)
    left = yard.harness.commit_checkpoint(job_id, 20)
    with yard.connect() as sdk:
        assert resolve(sdk, "tree@step-10") == Target(job_id, older)
        assert resolve(sdk, "tree@step-20") == Target(job_id, left)
        assert resolve(sdk, left) == Target(job_id, left)
        assert resolve(sdk, "tree") == Target(job_id)

        sdk.stop(job_id)
        supervisors[0].end("stopped")
        sdk.resume(job_id, checkpoint_id=older)
        yard.harness.place()
        yard.harness.claim_all(job_id)[0].train(20)
        newer = yard.harness.commit_checkpoint(job_id, 20)
        assert resolve(sdk, "@last@step-20") == Target(job_id, newer)
        assert resolve(sdk, "tree@a1.step-20") == Target(job_id, left)
        assert resolve(sdk, "tree@a1.step-20", exact=True) == Target(job_id, left)
        assert resolve(sdk, "tree@step-10", exact=True) == Target(job_id, older)
        with pytest.raises(UnknownReferenceError, match=r"tree@a2.step-20, tree@a1.step-20: name"):
            resolve(sdk, "tree@step-20", exact=True)
        with pytest.raises(UnknownReferenceError, match="no checkpoint of this step"):
            resolve(sdk, "tree@step-15")


def test_the_only_item_whose_id_begins_so_is_found() -> None:
    found: list[Any] = [SimpleNamespace(id=each) for each in ("01ab", "01ac", "02")]
    assert beginning_with("02", found, "open operation") is found[2]
    with pytest.raises(UnknownReferenceError, match=r"^2 open operations have an id .* '01a'"):
        beginning_with("01a", found, "open operation")
    with pytest.raises(UnknownReferenceError, match=r"^no open operation has an id .* '3'"):
        beginning_with("3", found, "open operation")
