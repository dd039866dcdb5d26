"""What a training script calls: its run in a job, or one that does nothing outside of jobs.

Imports nothing but the standard library. The contract: docs/programs-script.md.
"""

from trainyard.run.session.open_request import OpenRequest
from trainyard.run.session.process_run import init, log
from trainyard.run.session.script_run import Run

__all__ = ["OpenRequest", "Run", "init", "log"]
