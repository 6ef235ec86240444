"""muster_score's vllm engine with the real vLLM, which has an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"
sys.path.append(str(BENCH))

from vllm_environment import PINNED, environment_of_vllm

PLACE = environment_of_vllm(may_make=False)


@pytest.mark.skipif(
    PLACE is None, reason="vLLM has an environment of its own, which bench/run.sh score makes"
)
def test_greedy_tokens_are_those_of_bare_vllm(tmp_path):
    done = subprocess.run(
        [PLACE / "bin" / "python", BENCH / "score_vllm.py", "tokens", tmp_path, "64"],
        env=os.environ | PINNED | {"PATH": f"{PLACE}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    assert found["prompts"] > 50 and found["differ"] == 0
