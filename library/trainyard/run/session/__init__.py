"""API for training scripts: the run of a job. Outside a job its calls store only checkpoints.

Imports only the standard library. docs/programs-script.md has the contract.
"""

from trainyard.run.session.open_request import OpenRequest
from trainyard.run.session.process_run import init, log
from trainyard.run.session.script_run import Run

__all__ = ["OpenRequest", "Run", "init", "log"]
