"""The environment of row `tune`: python/requirements-tune.txt, made when it is asked for."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "python" / "requirements-tune.txt"


def environment(may_make: bool) -> Path | None:
    cache = Path(os.environ.get("MUSTER_CACHE_DIR") or Path.home() / ".cache" / "muster")
    place = cache / f"tune-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    if not (place / ".complete").exists():
        if not may_make:
            return None
        print(f"installing {REQUIREMENTS.name} into {place}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        words = ["-q", "install", "--no-input", "-r", REQUIREMENTS]
        subprocess.run([place / "bin" / "pip", *words], check=True)
        (place / ".complete").touch()
    return place
