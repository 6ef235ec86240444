"""Container images for tests: a root of a few programs of this machine's own, and one made by mmdebstrap."""

import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = (
    "bash",
    "cat",
    "env",
    "id",
    "ls",
    "mkdir",
    "printenv",
    "setsid",
    "sleep",
    "stat",
    "touch",
    "true",
)


def libraries(program: Path) -> set[Path]:
    """What the loader wants for it, and the loader."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = (word for line in said.splitlines() for word in line.split())
    return {Path(word) for word in words if word.startswith("/")}


def copy(root: Path, path: Path, at: Path | None = None) -> None:
    target = root / (at or path).relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(path.resolve(), target)


def small_image(root: Path, python: bool = False) -> Path:
    """A directory that others may read. `python`: with Debian's python3 and its library."""
    for name in PROGRAMS:
        program = Path(shutil.which(name, path="/usr/bin:/bin")).resolve()
        copy(root, program, Path("/usr/bin") / name)
        for library in libraries(program):
            copy(root, library)
    copy(root, Path("/usr/bin/bash"), Path("/bin/bash"))
    if python:
        add_python(root)
    (root / "etc").mkdir()
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "home").mkdir()
    (root / "only-in-the-image").write_text("yes\n")
    subprocess.run(["chmod", "-R", "a+rX", root], check=True)
    return root


def add_python(root: Path) -> None:
    program = Path("/usr/bin/python3").resolve()
    version = program.name
    copy(root, program, Path("/usr/bin/python3"))
    library = Path("/usr/lib") / version
    shutil.copytree(
        library,
        root / library.relative_to("/"),
        symlinks=True,
        ignore_dangling_symlinks=True,
        ignore=shutil.ignore_patterns(
            "test", "config-*", "idlelib", "lib2to3", "__pycache__", "ensurepip", "pydoc_data"
        ),
    )
    for part in (program, *(library / "lib-dynload").glob("*.so")):
        for needed in libraries(part):
            copy(root, needed)


def debian_image(root: Path) -> Path:
    """By mmdebstrap, from where this machine has its packages."""
    sources = [
        *Path("/etc/apt").glob("sources.list"),
        *Path("/etc/apt/sources.list.d").glob("debian.sources"),
    ]
    subprocess.run(
        [
            "mmdebstrap",
            "--variant=minbase",
            "--include=python3,libstdc++6",
            "bookworm",
            root,
            *sources,
        ],
        check=True,
        stdout=sys.stderr,
        timeout=300,
    )
    root.chmod(0o755)
    return root
