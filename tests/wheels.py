"""A package that a test makes, so that uv installs it without a network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

NAME, VERSION = "yardsticks", "1.0"


def make_wheel(folder: Path) -> str:
    """Write the wheel of a module `yardsticks` with `LENGTH = 91`; return its SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"{NAME}-{VERSION}-py3-none-any.whl", f"{NAME}-{VERSION}.dist-info"
    files = {
        f"{NAME}.py": "LENGTH = 91\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def requirements(digest: str) -> str:
    """Return pip's requirements of the wheel with a digest."""
    return f"{NAME}=={VERSION} --hash=sha256:{digest}\n"


def project() -> str:
    """Return a `pyproject.toml` that needs the wheel."""
    return (
        f'[project]\nname = "mine"\nversion = "0.1"\nrequires-python = ">=3.11"\n'
        f'dependencies = ["{NAME}=={VERSION}"]\n'
    )


def variables(folder: Path) -> dict[str, str]:
    """Return the variables by which uv takes wheels from a folder, and nothing from elsewhere."""
    return {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(folder)}
