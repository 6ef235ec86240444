"""A bare Debian 12 machine that systemd boots, beside what bare_machine.py says: units run there as they do anywhere, with what shuts
them in, their credentials and their control groups. Once it has booted it has a network of its own: none but loopback."""

import os
import subprocess
import time
from pathlib import Path

from bare_machine import BareMachine

# What a container's manager does: control groups of its own, file systems, PID 1.
ENTER = """
for group in GROUPS; do echo $$ > "$group/cgroup.procs"; done 2> /dev/null
exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup sh -c "$1"
"""
BOOT = """
set -e
cd ROOT
mount --make-rprivate /
mount --bind . .
cd ROOT
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do : > dev/$name; mount --bind /dev/$name dev/$name; done
: > dev/console
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
for name in dev/shm tmp; do mount -t tmpfs -o mode=1777 tmpfs $name; done
mount -t tmpfs -o mode=755 tmpfs run
BINDS
mkdir -p old
pivot_root . old
umount -l /old
mount --make-rshared /
exec env -i container=muster PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system systemd.unit=multi-user.target
"""


def own_groups() -> list[Path]:
    """This process's control groups, one of each hierarchy that is mounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    groups = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for _, place, kind, options, *_ in mounts:
            if kind == "cgroup2" and not names:
                groups.append(Path(place + path))
            elif kind == "cgroup" and names and set(names.split(",")) <= set(options.split(",")):
                groups.append(Path(place + path))
    return groups


class BootedMachine(BareMachine):
    INCLUDE = (*BareMachine.INCLUDE, "systemd", "dbus", "procps")

    def __init__(self, source: Path, shown: dict[Path, str] | None = None):
        """`shown`: folders of this machine, and the paths in the root file system where they can be read."""
        super().__init__(source)
        self.shown = shown or {}
        self.groups = [group / f"muster-booted-{os.getpid()}" for group in own_groups()]
        self.outer: subprocess.Popen | None = None
        self.first = 0

    def boot(self) -> None:
        """Until then commands run there as on any bare machine, with this machine's network."""
        self.root.chmod(0o755)  # "/" is everybody's there
        no_console = self.root / "etc" / "systemd" / "system" / "console-getty.service"
        no_console.symlink_to("/dev/null")
        binds = []
        for folder, place in self.shown.items():
            (self.root / place).mkdir(parents=True)
            binds.append(f"mount --bind -o ro {folder} {place}")
        boot = BOOT.replace("ROOT", str(self.root)).replace("BINDS", "\n".join(binds))
        for group in self.groups:
            group.mkdir()
        enter = ENTER.replace("GROUPS", " ".join(map(str, self.groups)))
        self.outer = subprocess.Popen(["sh", "-c", enter, "sh", boot], stdin=subprocess.DEVNULL)
        self.first = self._first()
        # "running", or "degraded": units that only a real machine can have.
        done = subprocess.run(self.inside("systemctl is-system-running --wait"), timeout=120)
        if done.returncode not in (0, 1):
            raise SystemExit("systemd did not boot there")

    def _first(self) -> int:
        """PID 1, as this machine numbers it, once systemd answers."""
        children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children")
        end = time.monotonic() + 30
        while time.monotonic() < end and self.outer.poll() is None:
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/root/run/systemd/private").is_socket():
                    return int(pid)
            time.sleep(0.1)
        raise SystemExit("no systemd started on the bare machine")

    def inside(self, command: str, settings: str = "") -> list[str]:
        if self.first == 0:
            return super().inside(command, settings)
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup"]
        enter = ["nsenter", "-t", str(self.first), *spaces]
        words = ["env", "-i", "HOME=/root", "TERM=dumb", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        return [*enter, *words, *settings.split(), "sh", "-c", f"cd /muster/main && {command}"]

    def __exit__(self, *_):
        if self.outer is not None:
            self.outer.kill()
            self.outer.wait()
        for group in self.groups:
            self._remove(group)
        super().__exit__()

    def _remove(self, group: Path) -> None:
        end = time.monotonic() + 10
        while group.exists():
            try:
                for path, _, _ in os.walk(group, topdown=False):
                    os.rmdir(path)
            except OSError:  # what was killed isn't gone yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
