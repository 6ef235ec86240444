"""The environment of programs/two_tower.py."""

import subprocess
import sys
from pathlib import Path

from environments import environment


def environment_of_two_tower(may_make: bool) -> Path | None:
    """Its directory: TorchRec and Lightning beside the torch and transformers of this python."""
    beside = subprocess.run(
        [sys.executable, "-c", "import site; print(site.getsitepackages()[0])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    requirements = "bench/requirements-two-tower.txt"
    return environment("two-tower", requirements, may_make, more=("--no-deps",), beside=beside)
