"""API for training scripts: the run in a job; outside of jobs its calls do nothing.

Imports only the standard library. The contract: docs/programs-script.md.
"""

from trainyard.run.session.open_request import OpenRequest
from trainyard.run.session.process_run import init, log
from trainyard.run.session.script_run import Run

__all__ = ["OpenRequest", "Run", "init", "log"]
