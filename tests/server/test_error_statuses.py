"""Clients map each refusal status of the server to their own error."""

from __future__ import annotations

from server.core import errors as refusals
from trainyard.protocol.rest import errors


def test_a_refusal_and_the_error_of_its_status_have_one_name() -> None:
    kinds = [kind for kind in vars(refusals).values() if isinstance(kind, type)]
    named = {k.__name__: k for k in kinds if issubclass(k, refusals.RefusalError)}
    shared = set(named) & set(vars(errors))
    assert shared >= {"UnauthenticatedError", "ForbiddenError", "NotFoundError", "ConflictError"}
    assert {name: errors.BY_STATUS[named[name].status].__name__ for name in shared} == {
        name: name for name in shared
    }
