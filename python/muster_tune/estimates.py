"""What `muster-trainer estimate` says of settings: whether they are possible, what memory they take, what they compute and send."""

import json
import os
import random
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from muster_score import files

from muster_tune.attempt import with_fields
from muster_tune.space import Space, SpaceError, key_of

MOST = 400  # candidates of a space; of a larger one so many are drawn
_CHUNK = 16  # settings whose estimates are one file
IMPOSSIBLE, TOO_LARGE = 2, 3  # exit codes
_AGAIN = "the worker's next start asks again; if it comes to the same, give the worker more memory or CPUs"


class NoAnswer(Exception):
    """An estimate was ended before it said anything: by a signal, for want of memory or time. Asked again it may answer."""


class Estimator:
    """Candidates of a space with their estimates, which workers make together and keep in the study's directory."""

    def __init__(self, trainer: str, config: dict, ranks: int, device: str, memory: str):
        """`device`: a GPU's name for memory and time, or empty: CPUs. `memory`: what such a GPU has, if its name doesn't say."""
        self.words = [trainer, "estimate", "--ranks", str(ranks), "--json", "true"]
        self.words += ["--device", device] if device else []
        self.words += ["--device-memory", memory] if memory else []
        self.config = config

    def ask(self, setting: dict) -> dict:
        """{"estimate": …}, or {"why": …} where the setting is none, or {"why": …, "memory": true} where it doesn't fit. NoAnswer: none of these is known."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(with_fields(self.config, setting), file)
            file.flush()
            try:
                done = subprocess.run(
                    [*self.words, "--config", file.name], capture_output=True, text=True, timeout=60
                )
            except OSError as error:
                raise SpaceError(
                    f"{self.words[0]}: {error.strerror}; --trainer-bin names it"
                ) from error
            except subprocess.TimeoutExpired as error:
                raise NoAnswer(
                    f"muster-trainer estimate took longer than 60 s; {_AGAIN}"
                ) from error
        if done.returncode == 0:
            return {"estimate": json.loads(done.stdout)}
        why = [line.strip() for line in done.stderr.splitlines() if line.strip()][1:]
        if done.returncode == TOO_LARGE:
            return {"why": " ".join(why) or "a rank doesn't fit", "memory": True}
        if any("no such field" in line for line in why):  # no trial could ever be right
            raise SpaceError(f"--knob: {'; '.join(why)}")
        if done.returncode != IMPOSSIBLE:
            raise NoAnswer(
                f"muster-trainer estimate ended with {done.returncode}; {_AGAIN}: {done.stderr[-500:]}"
            )
        return {"why": "; ".join(why) or f"exit {done.returncode}"}

    def ask_all(self, space: Space, folder: Path, between=lambda: None) -> dict:
        """The same candidates for every worker: setting's key to what ask() said. `between` is called every now and then, and may raise."""
        folder.mkdir(exist_ok=True)
        settings = candidates(space)
        chunks = [settings[i : i + _CHUNK] for i in range(0, len(settings), _CHUNK)]
        order = list(range(len(chunks)))
        random.Random(os.getpid()).shuffle(order)  # so that workers begin at different ones
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
            for i in order:
                between()
                path = folder / f"{i:04}.json"
                if not path.exists():
                    try:
                        said = list(pool.map(self.ask, chunks[i]))
                    except NoAnswer:
                        between()  # a stop of this worker reaches the estimates, too
                        raise
                    files.create(path, {"said": said})
        told = {}
        for i, chunk in enumerate(chunks):
            said = files.read(folder / f"{i:04}.json")["said"]
            told |= {key_of(one): answer for one, answer in zip(chunk, said, strict=True)}
        return told


def candidates(space: Space) -> list[dict]:
    dice = random.Random(0)  # the same in each worker
    if space.size() is None:
        drawn = [space.draw(dice) for _ in range(MOST)]
        return list({key_of(setting): setting for setting in drawn}.values())
    listed = list(space.all())
    return listed if len(listed) <= MOST else dice.sample(listed, MOST)
