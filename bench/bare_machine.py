"""A bare Debian 12 machine for a while: a minimal root file system made by debootstrap in a temporary folder, with this
repository's commit cloned to /muster/main and nothing installed. Its mounts and processes live in namespaces of their own,
so they end with each command; its root is that of its mounts, as on a machine: in a mere chroot the kernel tells a process that has mounts of its
own the paths of its files with the folder in front. Needs root and the package debootstrap; the machine's way to its packages (apt's sources,
certificates, pip's settings) is copied from this one."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from figures import shown

INSIDE = """
mount --bind {root} {root} && cd {root} && mount -t proc proc {root}/proc && mount -t sysfs sysfs {root}/sys && mount --rbind /dev {root}/dev && mount -t tmpfs tmpfs {root}/dev/shm &&
pivot_root . . && umount -l . && exec chroot . env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin {settings} sh -c 'cd /muster/main && {command}'
"""
COPIED = [
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/pip.conf",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/ssl/certs/ca-certificates.crt",
    "/usr/local/share/ca-certificates",
    "/usr/share/keyrings",
]


class BareMachine:
    INCLUDE = ("ca-certificates",)  # packages beside the minimal ones

    def __init__(self, source: Path):
        self.source = source

    def __enter__(self):
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            raise SystemExit(
                "a bare machine needs root and debootstrap: apt-get install debootstrap"
            )
        self.root = Path(tempfile.mkdtemp(prefix="muster-bare-", dir="/var/tmp"))
        self.root.chmod(0o755)  # it becomes everybody's /
        subprocess.run(
            [
                "debootstrap",
                "--variant=minbase",
                "--include=" + ",".join(self.INCLUDE),
                "bookworm",
                self.root,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for name in COPIED:
            path, copy = Path(name), self.root / name[1:]
            if path.is_dir():
                shutil.copytree(path, copy, dirs_exist_ok=True)
            elif path.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        (self.root / "muster").mkdir()
        subprocess.run(
            ["git", "clone", "-q", self.source, self.root / "muster" / "main"], check=True
        )
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.root, ignore_errors=True)

    def inside(self, command: str, settings: str) -> list[str]:
        """The words of a shell command on that machine."""
        # fmt: off
        return [
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
            INSIDE.format(root=self.root, settings=settings, command=command),
        ]
        # fmt: on

    def run(self, command: str) -> tuple[int, float, str]:
        """(exit status, seconds, what it said on stdout) of a shell command in the clone; all it says is shown as well."""
        settings = " ".join(
            f"{name}={value}"
            for name, value in os.environ.items()
            if name.startswith("PIP_") and " " not in value
        )
        began = time.monotonic()
        code, said = shown(self.inside(command, settings))
        return code, time.monotonic() - began, said
