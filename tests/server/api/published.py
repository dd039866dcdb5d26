"""The published OpenAPI document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT: dict[str, Any] = json.loads((ROOT / "web" / "openapi.json").read_text())
"""`tools.generate --check` proves that the file is fresh; generating it takes seconds."""
