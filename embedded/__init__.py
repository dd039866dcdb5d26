"""`trainyard up`: starts broker, server, scheduler and one worker as subprocesses."""
