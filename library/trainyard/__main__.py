"""`python -m trainyard`: the command."""

from __future__ import annotations

from trainyard.cli.app import main

if __name__ == "__main__":
    main()
