"""deploy/: the corpus and the examples do what they say."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from harness import PREPARE, Gang, clean_environment, free_port

DEPLOY = PREPARE.parent.parent / "deploy"


def corpus(output: Path, max_bytes: int) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, DEPLOY / "corpus.py", "--output", output, "--max-bytes", str(max_bytes)],
        capture_output=True,
        text=True,
    )


def test_corpus_is_capped_repeatable_utf8_and_prepares(tmp_path):
    for name in ("one", "two"):
        done = corpus(tmp_path / name, 500_000)
        assert done.returncode == 0, done.stderr
    files = sorted(
        path.relative_to(tmp_path / "one")
        for path in (tmp_path / "one").rglob("*")
        if path.is_file()
    )
    texts = [path for path in files if not path.name.startswith(".")]
    assert len(texts) > 10 and "docstrings/docstrings.jsonl" in map(str, texts)
    assert all(
        (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()
        for path in files
    )
    sizes = [len((tmp_path / "one" / path).read_bytes().decode("utf-8").encode()) for path in texts]
    assert 250_000 < sum(sizes) <= 500_000
    subprocess.run(
        [
            sys.executable,
            PREPARE,
            "--input",
            tmp_path / "one",
            "--tokenizer",
            "bytes",
            "--output",
            tmp_path / "tokens",
        ],
        check=True,
        capture_output=True,
        env=clean_environment(),
    )


def test_corpus_leaves_a_strangers_folder_alone(tmp_path):
    (tmp_path / "precious").write_text("x")
    done = corpus(tmp_path, 1000)
    assert (
        done.returncode == 2
        and "holds other files" in done.stderr
        and (tmp_path / "precious").read_text() == "x"
    )


def test_tiny_llama_example_trains(trainer_bin, tokens, tmp_path):
    """Its trainer: map, typed by the schema as Muster does (YAML 1.1 takes 3e-3 for text), for three steps."""
    spec = yaml.safe_load((DEPLOY / "examples" / "tiny-llama.yaml").read_text())
    assert [task["name"] for task in spec["tasks"]] == ["prepare", "train"]
    schema = json.loads(
        subprocess.run([trainer_bin, "--schema"], check=True, capture_output=True, text=True).stdout
    )
    config = {
        key: float(value) if schema["properties"][key]["type"] == "number" else value
        for key, value in spec["tasks"][1]["trainer"].items()
    }
    config |= {"data": str(tokens), "max_steps": 3, "warmup_steps": 1}
    with Gang(trainer_bin, config, 2, tmp_path / "run") as gang:
        gang.finish()
    assert sorted(gang.metric("loss")) == [1, 2, 3] and 5 < gang.metric("loss")[1] < 6
    assert (gang.folder / "model" / "config.json").exists()


def test_dpo_example_prepares_trains_and_prefers(trainer_bin, tmp_path):
    """Its three tasks as they are, but for the number of steps, one after another."""
    tasks = yaml.safe_load((DEPLOY / "examples" / "dpo.yaml").read_text())["tasks"]
    assert [task["name"] for task in tasks] == ["prepare", "complete", "prefer"]
    assert [task.get("after") for task in tasks] == [None, ["prepare"], ["complete"]]
    job = tmp_path / "job"
    job.mkdir()
    path = f"{Path(trainer_bin).parent}:{os.environ['PATH']}"
    environment = clean_environment(
        MUSTER_JOB_DIR=str(job), PATH=path, MUSTER_PYTHON=sys.executable
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", tasks[0]["run"]],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for task in tasks[1:]:
        config = task["trainer"] | {"learning_rate": float(task["trainer"]["learning_rate"])}
        with Gang(trainer_bin, config, 1, tmp_path / task["name"], MUSTER_JOB_DIR=str(job)) as gang:
            gang.finish()
    first, last = gang.lines[0], gang.lines[-1]
    assert first["rewards/margins"] == 0 and abs(first["loss"] - math.log(2)) < 1e-6
    assert last["rewards/accuracies"] > 0.9 and last["loss"] < 0.6 and last["eval_loss"] < 0.6
    assert (job / "prefers" / "config.json").exists()


def start_ddp(folder: Path, steps: int) -> list[subprocess.Popen]:
    port = str(free_port())
    return [
        subprocess.Popen(
            [
                sys.executable,
                DEPLOY / "examples" / "ddp.py",
                "--steps",
                str(steps),
                "--checkpoint",
                folder / "ddp.pt",
            ],
            env=clean_environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_plain_torch_script_saves_on_sigterm_and_goes_on(tmp_path):
    ranks = start_ddp(tmp_path, 1_000_000)
    try:
        for line in ranks[0].stdout:
            if line.startswith("step=40 "):
                break
        ranks[1].send_signal(signal.SIGTERM)  # one is told, all stop
        said = ranks[0].stdout.read()
        assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
        saved = int(re.search(r"saved step (\d+)", said)[1])
        assert saved >= 40
        ranks += start_ddp(tmp_path, saved + 20)
        said = ranks[2].stdout.read()
        assert [rank.wait(timeout=60) for rank in ranks] == [0] * 4
        assert f"starts at step {saved} " in said and f"saved step {saved + 20} " in said
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()


@pytest.mark.parametrize("name", ["hello", "tiny-llama", "ddp", "dpo"])
def test_examples_ask_for_cpu_slots_only(name):
    spec = yaml.safe_load((DEPLOY / "examples" / f"{name}.yaml").read_text())
    for task in spec.get("tasks", [spec]):
        assert task["resources"] == {"gpus": 1, "gpu_types": ["cpu-slot"]}
    assert spec["name"] == name
