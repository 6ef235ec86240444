"""The environment of programs/two_tower.py."""

from pathlib import Path

from environments import environment, own_packages


def environment_of_two_tower(may_make: bool) -> Path | None:
    """Its directory: TorchRec and Lightning beside the torch and transformers of this python."""
    beside = own_packages()
    requirements = "bench/requirements-two-tower.txt"
    return environment("two-tower", requirements, may_make, more=("--no-deps",), beside=beside)
