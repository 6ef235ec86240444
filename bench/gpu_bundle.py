"""Row `gpu-bundle`: a bundle is made here, and its cases for CPUs run in a root that has Python, torch and the C library, and
nothing else: no compiler, no shell, no network, nothing of this checkout or its caches. Then one program of it is made to crash."""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from figures import at_most, figure, none, shown

MOST_MIB = 64
LIMIT_S = 1500
# Needs no privilege where users may make namespaces. "$1" is the root's folder, "$2" Python's library, "$3" torch's packages,
# "$4" the bundle; what follows is run there.
INSIDE = """
set -e
root=$1 library=$2 packages=$3 bundle=$4
shift 4
for place in "$library" /opt/torch /bundle /proc /dev /tmp; do mkdir -p "$root$place"; done
mount --rbind "$library" "$root$library"
mount --rbind "$packages" "$root/opt/torch"
mount --rbind "$bundle" "$root/bundle"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot "$root" "$@"
"""
# As Python, as the root has no tools: the loopback of a new network namespace is down.
START = """
import fcntl, os, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 1))
os.execve(sys.executable, [sys.executable, *sys.argv[1:]], dict(os.environ))
"""
CRASHES = """#!{python}
import os, signal, sys
if "{filter}" in " ".join(sys.argv):
    os.kill(os.getpid(), signal.SIGSEGV)
os.execv("/bundle/bin/whole", sys.argv)
"""


def libraries_of(files: list[Path]) -> set[Path]:
    """What the dynamic loader takes for them from outside torch's packages."""
    found: set[Path] = set()
    for file in files:
        said = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
        for line in said.splitlines():
            path = line.split("=>")[-1].split("(")[0].strip()
            if path.startswith("/") and "site-packages" not in path:
                found.add(Path(path))
    return found


def make_root(root: Path) -> Path:
    """Fills it; the path of Python in it."""
    python, packages = Path(sys.executable).resolve(), Path(sysconfig.get_paths()["purelib"])
    library = Path(sysconfig.get_paths()["stdlib"])
    needed = libraries_of(
        [python, *(library / "lib-dynload").glob("*.so"), *(packages / "torch/lib").glob("*.so*")]
    )
    for path in [python, *needed]:
        copy = root / path.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o755)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/false\n")
    return python


def run_there(root: Path, python: Path, bundle: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and what was said, which is shown as well."""
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    environment = {
        "HOME": "/root",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": "/opt/torch",
        "PYTHONUNBUFFERED": "1",
    }
    command = [
        *("unshare", *own, "--mount", "--net", "--pid", "--fork", "--kill-child"),
        *("sh", "-c", INSIDE, "sh", root, sysconfig.get_paths()["stdlib"]),
        *(sysconfig.get_paths()["purelib"], bundle),
        *(python, "-c", START, "/bundle/tests/gpu_cases.py", *arguments),
    ]
    return shown([str(word) for word in command], env=environment)


def plant_crash(bundle: Path, python: Path, word: str) -> None:
    program = bundle / "bin/trainer_engine_test"
    program.rename(bundle / "bin/whole")
    program.write_text(CRASHES.format(python=python, filter=word))
    program.chmod(0o755)


def main() -> int:
    quick = ["--case", "loads", "--case", "cpu: AdamW", "--case", "cpu: Fused.*/emulated"]
    chosen = quick if "--quick" in sys.argv else []
    with tempfile.TemporaryDirectory(prefix="muster-bundle-", dir="/var/tmp") as folder:
        bundle, root = Path(folder) / "bundle", Path(folder) / "root"
        subprocess.run(["deploy/gpu-bundle.sh", bundle], check=True)
        size_mib = sum(f.stat().st_size for f in bundle.rglob("*") if f.is_file()) / 2**20
        root.mkdir()
        python = make_root(root)
        tools = [
            p.name
            for p in root.rglob("*")
            if p.name in ("gcc", "cc", "g++", "clang", "nvcc", "pip", "sh")
        ]
        code, said = run_there(root, python, bundle, *chosen)
        closing = said.strip().splitlines()[-1] if said.strip() else "nothing was said"
        plant_crash(bundle, python, "AdamW.")
        planted, said = run_there(root, python, bundle, *quick)
        told = [
            line for line in said.splitlines() if line.startswith("FAILED") or "SIGSEGV" in line
        ]
        others = [line for line in said.splitlines() if line.startswith("passed")]
    return (
        0
        if all(
            [
                at_most("gpu-bundle.size", size_mib, "MiB", MOST_MIB, places=1),
                none("gpu-bundle.tools_in_root", len(tools)),
                figure("gpu-bundle.cases_without_gpu", closing, "", "0 failed", code == 0),
                figure(
                    "gpu-bundle.planted_crash",
                    f"exit {planted}, {len(told) // 2} named, {len(others)} others pass",
                    "",
                    "exit 1, 1 named, others pass",
                    planted == 1 and len(told) == 2 and len(others) >= 3,
                ),
            ]
        )
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
