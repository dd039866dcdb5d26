"""Reads of people with the scope of the system, which sees all projects."""

from __future__ import annotations

from functools import partial

from server.cluster.nodes import queries as nodes
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs import queries as jobs
from server.jobs.jobs import resume
from server.telemetry.logs import pages
from server.telemetry.metrics import csv

preview = partial(resume.preview, scope=SYSTEM_SCOPE)
options = partial(resume.options, scope=SYSTEM_SCOPE)
list_attempts = partial(jobs.list_attempts, scope=SYSTEM_SCOPE)
list_nodes = partial(nodes.list_nodes, scope=SYSTEM_SCOPE)
page = partial(pages.page, scope=SYSTEM_SCOPE)
csv_rows = partial(csv.csv_rows, scope=SYSTEM_SCOPE)
