"""docs/commands.md is what the programs say."""

import os
from pathlib import Path

import pytest
from commands_reference import reference

COMMITTED = Path(__file__).resolve().parent.parent.parent / "docs" / "commands.md"


def test_the_reference_of_commands_is_what_they_say(bin_dir):
    if not os.access(bin_dir / "muster-trainer", os.X_OK):
        pytest.skip("built without the trainer")
    assert COMMITTED.read_text() == reference(bin_dir), (
        "run: tests/system/commands_reference.py build/release/bin > docs/commands.md"
    )
