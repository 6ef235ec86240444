"""The run that the demo's is compared with: the same model, data and steps, undisturbed, without Muster. And how many
steps make a demo of about 90 s on this machine. Both are kept, named by the hash of data, trainer and settings."""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

from local_system import Failed

MODEL = {
    "model_type": "llama",
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
MAX_LENGTH, BATCH = 64, 64
RANKS = 4
STEP = re.compile(r"^step=(\d+) .*?\bloss=([0-9.eE+-]+)", re.M)


def training(data: Path, steps: int) -> dict:
    """The `trainer:` map of job tiny-llama, as files/tiny-llama.yaml has it."""
    return {
        "model": MODEL,
        "data": str(data),
        "max_length": MAX_LENGTH,
        "global_batch_size": BATCH,
        "max_steps": steps,
        "learning_rate": 1e-3,
        "warmup_steps": 0.05,
        "threads": 1,
    }


def losses(log: str) -> dict[int, float]:
    """{step: loss} of the lines that the trainer says on stdout."""
    return {int(step): float(loss) for step, loss in STEP.findall(log)}


class Reference:
    def __init__(self, cache: Path, bin_dir: Path, source_dir: Path):
        self.cache, self.trainer, self.source_dir = cache, bin_dir / "muster-trainer", source_dir
        self.corpus = cache / "corpus"
        cache.mkdir(parents=True, exist_ok=True)

    def prepare_data(self) -> None:
        """The corpus and its hash; what `prepare` makes of it is the job's own first task."""
        if not (self.corpus / ".muster-corpus.json").exists():
            checked(
                [
                    self.source_dir / "deploy" / "corpus.py",
                    "--output",
                    self.corpus,
                    "--max-bytes",
                    "2000000",
                ],
                "collecting text",
                120,
            )
        digest = hashlib.sha256()
        for path in sorted(self.corpus.rglob("*")):
            if path.is_file():
                digest.update(
                    str(path.relative_to(self.corpus)).encode() + b"\0" + path.read_bytes()
                )
        for part in (
            self.trainer.read_bytes(),
            json.dumps(training(Path("tokens"), 0), sort_keys=True).encode(),
        ):
            digest.update(hashlib.sha256(part).digest())
        self.key = digest.hexdigest()[:16]
        self.folder = self.cache / f"reference-{self.key}"
        self.tokens = self.folder / "tokens"
        self.folder.mkdir(exist_ok=True)
        for old in self.cache.glob("reference-*"):
            if old != self.folder:
                shutil.rmtree(old, ignore_errors=True)
        if not (self.tokens / "index.json").exists():
            checked(
                [
                    self.trainer,
                    "prepare",
                    "--input",
                    self.corpus,
                    "--tokenizer",
                    "bytes",
                    "--max-length",
                    MAX_LENGTH,
                    "--output",
                    self.tokens,
                ],
                "tokenising",
                120,
            )

    def steps_for(self, seconds: float, least: int, most: int) -> tuple[int, float]:
        """(steps, seconds a step): the steps that take so long on this machine, measured once and kept."""
        path = self.folder / "step-time.json"
        if not path.exists():
            times = []
            self._train(
                30, 3600, lambda step, *_: times.append(time.monotonic()) if step > 5 else None
            )
            path.write_text(json.dumps((times[-1] - times[0]) / (len(times) - 1)))
        step_time_s = json.loads(path.read_text())
        return max(least, min(most, int(seconds / step_time_s) // 20 * 20)), step_time_s

    def run(self, steps: int, on_step) -> tuple[dict[int, float], bool]:
        """({step: loss}, whether it was known already). on_step(step, steps) is called as it goes."""
        path = self.folder / f"losses-{steps}.json"
        cached = path.exists()
        if not cached:
            log = self._train(steps, steps, on_step)
            found = losses(log)
            if sorted(found) != list(range(1, steps + 1)):
                raise Failed(f"the reference run said {len(found)} of {steps} steps")
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(found))
            temporary.rename(path)
        return {int(step): loss for step, loss in json.loads(path.read_text()).items()}, cached

    def loss_of_model(self, model_dir: Path, folder: Path) -> tuple[float, Path, int]:
        """The trainer's own loss of an exported model on one batch; the file with the batch's ids, and a row's length."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        ids = folder / "ids.i32"
        config = {
            key: value for key, value in training(self.tokens, 1).items() if key != "model"
        } | {"init": str(model_dir), "warmup_steps": 0}
        log = self._ranks(
            config, 1, folder, ["--dump-tokens", ids], stop_after=None, on_step=None, timeout_s=60
        )
        return losses(log)[1], ids, MAX_LENGTH + 1

    def _train(self, stop_after: int, steps: int, on_step) -> str:
        folder = self.folder / "work"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            return self._ranks(
                training(self.tokens, steps), RANKS, folder, [], stop_after, on_step, timeout_s=900
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _ranks(
        self,
        config: dict,
        ranks: int,
        folder: Path,
        more: list,
        stop_after,
        on_step,
        timeout_s: float,
    ) -> str:
        """Rank 0's stdout. Ended at step `stop_after` by SIGTERM; killed whatever happens."""
        (folder / "train.json").write_text(json.dumps(config))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        base = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
        # The folder's name in the environment lets `clean` find these processes, too.
        base |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MUSTER_CHECKPOINT_DIR": f"{folder}/checkpoints",
            "MUSTER_CHECKPOINT_INTERVAL_S": "0",
        }
        running, said = [], ""
        deadline = time.monotonic() + timeout_s
        try:
            for rank in range(ranks):
                with open(folder / f"{rank}.log", "wb") as log:
                    running.append(
                        subprocess.Popen(
                            [self.trainer, "train", "--config", folder / "train.json", *more],
                            cwd=folder,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                            env=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                        )
                    )
            told, stopped = 0, False
            while True:
                ended = all(process.poll() is not None for process in running)
                said = (folder / "0.log").read_text(errors="replace")
                for step in sorted(losses(said)):
                    if step > told:
                        told = step
                        if on_step:
                            on_step(step, stop_after or ranks)
                if ended:
                    break
                if (
                    stop_after
                    and told >= stop_after
                    and not stopped
                    and stop_after < config["max_steps"]
                ):
                    stopped = True
                    for process in running:
                        process.terminate()
                if any(process.poll() not in (None, 0) for process in running) and not stopped:
                    break
                if time.monotonic() > deadline:
                    raise Failed(f"training without Muster had not ended after {timeout_s:g} s")
                time.sleep(0.02)
            for rank, process in enumerate(running):
                if process.poll() != 0:
                    raise Failed(_how_it_ended(rank, process, folder / f"{rank}.log"))
            return said
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                process.wait()


def _how_it_ended(rank: int, process: subprocess.Popen, log: Path) -> str:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    return f"training without Muster: rank {rank} ended with {process.poll()}:\n{tail}"


def checked(command: list, what: str, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{what} had not ended after {timeout_s:g} s") from error
    if done.returncode != 0:
        raise Failed(
            f"{what}: {command[0]} ended with {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
        )
