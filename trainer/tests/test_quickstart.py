"""docs/trainer.md's quickstart, word for word."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from harness import PREPARE, clean_environment

PAGE = PREPARE.parent.parent / "docs" / "trainer.md"


def test_the_quickstart_does_what_it_says(trainer_bin, tmp_path):
    section = PAGE.read_text().split("\n## Quickstart\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.S)
    assert len(blocks) == 7
    script = tmp_path / "quickstart.sh"
    script.write_text(
        "set -euo pipefail\n"
        + "\n".join(f"echo '== {number}'\n{block}" for number, block in enumerate(blocks))
    )
    path = f"{Path(trainer_bin).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", script],
        cwd=tmp_path,
        env=clean_environment(PATH=path, MUSTER_PYTHON=sys.executable, HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = dict(zip(range(7), done.stdout.split("== ")[1:]))
    assert "kept apart for evaluation" in done.stderr
    assert "memory of a rank:" in said[2] and "step=40 total_steps=40 " in said[2]
    losses = json.loads(said[3].splitlines()[1])
    assert (
        len(losses) == 4
        and losses[-1] < losses[0] - 0.5
        and said[3].split()[-2:] == ["step-00000020", "step-00000040"]
    )
    assert (
        f"exported step=40 to model, with the tokenizer of {tmp_path}/tokens/tokenizer" in said[4]
        and "def " in said[4]
    )
    for number, folder in ((5, "two-ranks"), (6, "by-hand")):
        assert "ranks=2 backend=gloo" in said[number] and "step=40 " in said[number], said[number]
        assert (tmp_path / folder / "step-00000040" / "rank-00001-of-00002.safetensors").exists()
