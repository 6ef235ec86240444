"""Ends musterd, muster-agent and muster-shim at named points: tests/faults/fault_points.cc."""

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

from local_system import CommandFailed, LocalSystem, kill_all, system_folder, wait_for
from small_system import configure

NOT_THERE_NOW = 6  # exit code of `muster` without a daemon


class Point:
    """Where a program is to end; `path` is the file that says so."""

    def __init__(self, path: Path):
        self.path, self.text = path, ""

    def set(self, call: str, when: str, number: int, pattern: str) -> None:
        self.text = f"{call} {when} {number} {pattern}"
        for suffix in (".reached", ".calls"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(self.text + "\n")
        new.rename(self.path)

    def reached(self) -> bool:
        return Path(f"{self.path}.reached").exists()

    def calls(self) -> list[str]:
        """`CALL PATH` of each that matched so far; that of a point that was reached is the n-th of its process."""
        path = Path(f"{self.path}.calls")
        return path.read_text().splitlines() if path.exists() else []


class FaultySystem(LocalSystem):
    """A small system, of whose programs one at a time ends at `point` when it is started by faulty(); revive() starts it again without."""

    def __init__(self, folder: Path, bin_dir: Path):
        super().__init__(folder, bin_dir)
        tests = bin_dir.parent / "tests"
        self.library, self.shims = tests / "libfault_points.so", tests / "fault_points_bin"
        self.point = Point(folder / "etc" / "fault-point")
        self._before: dict[str, list[str]] = {}  # words in front of a program's command line

    def spawn(self, name: str, command: list) -> subprocess.Popen:
        return super().spawn(name, ["env", *self._before.get(name, []), *command])

    def faulty(self, name: str) -> None:
        """The next start of this program is with the point."""
        assert self.library.exists(), f"{self.library} isn't there: deploy/build.sh"
        self._before[name] = [f"LD_PRELOAD={self.library}", f"FAULT_POINT={self.point.path}"]

    def faulty_shims(self, name: str, bin_dir: Path) -> None:
        """Shims of this agent are those with the point inside, copied to bin_dir; the point lies beside them."""
        bin_dir.mkdir()
        (bin_dir / "muster-shim").write_bytes((self.shims / "muster-shim").read_bytes())
        (bin_dir / "muster-shim").chmod(0o700)
        self.point = Point(bin_dir / "fault-point")
        self._before[name] = [f"MUSTER_BIN_DIR={bin_dir}"]

    def spawn_musterd(self) -> None:
        """As start_musterd, but it is not waited for: it may end at once."""
        self.spawn(
            "musterd", [self.bin_dir / "musterd", "--config", self.folder / "etc" / "musterd.yaml"]
        )

    def revive(self) -> None:
        """Starts what has ended at the point, and nothing else may have ended."""
        for name, process in list(self.processes.items()):
            if process.poll() is None:
                continue
            assert process.returncode == -signal.SIGKILL and self.point.reached(), (
                f"{name} ended with {process.returncode}"
            )
            self._before.pop(name, None)
            if name == "musterd":
                self.start_musterd()
            else:
                self.start_agent("lab", name.rpartition("-")[2])

    def end(self, name: str) -> None:
        self.processes[name].kill()
        self.processes.pop(name).wait(10)

    def submit_through(self, name: str, text: str) -> str:
        """Submits it once, however often a daemon dies meanwhile: the number that was acknowledged."""
        path = self.folder / f"{name}.yaml"
        path.write_text(text)
        command = [self.bin_dir / "muster", "submit", path, "-y", "--detach", "-o", "name"]
        command += ["--idempotency-key", name]
        while True:
            with subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self.environment(),
                cwd=self.folder,
            ) as client:
                wait_for(
                    f"{name} to be submitted",
                    lambda: self.revive() or client.poll() is not None,
                    60,
                    0.005,
                )
                out, err = client.communicate()
            if client.returncode == 0:
                return out.strip()
            assert client.returncode == NOT_THERE_NOW, err

    def ask(self, *arguments) -> dict | None:
        """None: nobody is there to answer."""
        self.revive()
        try:
            return self.json(*arguments)
        except CommandFailed as error:
            if error.code != NOT_THERE_NOW:
                raise
            return None

    def attempts_kept(self, host: str) -> list[str]:
        return [
            entry
            for entry in os.listdir(self.folder / "agents" / f"lab-{host}" / "attempts")
            if not entry.startswith(".")
        ]


@contextmanager
def faulty_system(bin_dir: Path, **options):
    """Configured, nothing started. What goes wrong in it is told with the point and the ends of its logs."""
    with system_folder() as folder:
        system = FaultySystem(folder, bin_dir)
        configure(system, **options)
        try:
            yield system
        except Exception as error:
            logs = "\n".join(
                f"---- {name}.log\n{system.log_tail(name, 12)}"
                for name in [*system.processes, "musterd"]
            )
            raise AssertionError(
                f"with the point `{system.point.text}` ({'' if system.point.reached() else 'not '}reached; "
                f"{system.point.calls()[-1:]}): {error}\n{logs}"
            ) from error
        finally:
            kill_all(folder)
            for process in system.processes.values():
                process.wait(10)
