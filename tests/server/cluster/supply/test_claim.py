"""Claims of requests: access to the broker alone submits nothing, and repeats are granted."""

from __future__ import annotations

import pytest

from server.core.context import Context
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from tests.server.cluster.supply.site import Site


def test_a_claim_returns_what_to_ask_for_and_may_be_repeated(site: Site) -> None:
    request_id = site.ask(2)
    order = site.claim(request_id)
    assert (order.nodes, order.seconds, order.purpose, order.wanted) == (2, 3600.0, "nodes", True)
    assert site.claim(request_id) == order
    assert site.told("nodes_requested") == ["2 nodes of slurm requested for tiny"]


def test_the_secrets_are_those_of_the_first_claim(site: Site) -> None:
    request_id = site.ask(2)
    site.claim(request_id)
    with pytest.raises(ConflictError, match="was claimed with other secrets"):
        site.claim(request_id, secrets=("a", "b"))
    other = site.ask(3)
    with pytest.raises(InvalidRequestError, match=r"/secret_hashes: 2 hashes; .* has 3 nodes"):
        site.claim(other, secrets=("a", "b"))
    third = site.ask(2)
    with pytest.raises(InvalidRequestError, match="two pilots have the same secret"):
        site.claim(third, secrets=("a", "a"))


def test_a_claim_without_secrets_finds_what_is_withdrawn_and_changes_nothing(site: Site) -> None:
    request_id = site.ask()
    for claimed in (False, True):  # a provisioner verifies the order to cancel with a claim
        with pytest.raises(InvalidRequestError, match=r"/secret_hashes: 0 hashes"):
            site.claim(request_id, secrets=())
        assert (site.request(request_id).claimed_at is not None) == claimed
        if not claimed:
            site.claim(request_id)
    site.withdraw(request_id)
    assert not site.claim(request_id, secrets=()).wanted


def test_secrets_beyond_the_number_of_nodes_are_not_kept(site: Site) -> None:
    first, second = site.ask(), site.ask()
    site.claim(first, secrets=("a", "b"))
    site.claim(first, secrets=("a", "c", "d"))
    site.claim(second, secrets=("b",))


def test_a_secret_belongs_to_one_pilot(site: Site) -> None:
    first, second = site.ask(), site.ask()
    site.claim(first, secrets=("a",))
    with pytest.raises(ConflictError, match="a pilot of another request has one of these"):
        site.claim(second, secrets=("a",))


def test_a_request_of_another_source_is_not_claimed(site: Site, context: Context) -> None:
    other = Site(context, name="other")
    with pytest.raises(NotFoundError, match=r"source 'other' has no request"):
        other.claim(site.ask(), secrets=("a",))


def test_a_withdrawn_request_is_not_wanted(site: Site) -> None:
    claimed, unclaimed = site.ask(), site.ask()
    site.claim(claimed)
    site.withdraw(claimed)
    site.withdraw(unclaimed)
    assert [site.request(each).state for each in (claimed, unclaimed)] == ["leaving", "ended"]
    assert not site.claim(claimed).wanted
    assert not site.claim(unclaimed).wanted
    assert site.told("nodes_released") == [
        "1 node of slurm withdrawn: not needed",
        "1 node of slurm ended: not needed",
    ]
