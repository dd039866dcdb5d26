"""A command in an attempt runs code, so it needs the permission to run code, too."""

from __future__ import annotations

import pytest

from server.core.context import Context
from server.core.errors import ForbiddenError
from server.jobs.shells.service import open_shell
from tests.actors import ADA, limited_to
from tests.server.harness import BRINGS_CODE, Harness
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.shell_sessions.views import ShellRequest


@BRINGS_CODE
def test_a_command_is_code(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id, _ = harness.running()
    limited = limited_to(ADA, Permission.SHELL_RUN, Permission.JOBS_WRITE)
    before = harness.dump()
    with pytest.raises(ForbiddenError, match="this needs code:run, because of /argv"):
        open_shell(context, job_id, ShellRequest(argv=("ls", "-l")), actor=limited)
    assert harness.dump() == before
    assert open_shell(context, job_id, ShellRequest(argv=("ls", "-l")), actor=ADA).argv == (
        "ls",
        "-l",
    )
