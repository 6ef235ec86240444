"""Python environments of rows: what a peer needs and Muster doesn't, outside the checkout, by the hash of its requirements."""

import hashlib
import os
import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment(
    name: str,
    requirements: str,
    may_make: bool,
    *,
    more: tuple[str, ...] = (),
    beside: str = "",
    without: tuple[str, ...] = (),
) -> Path | None:
    """Its directory, made if it isn't there; None: it would have to be. `requirements`: a file of the project. `more`: options of pip. `beside`: another
    environment's packages, which are found, too. `without`: packages that others ask for, which are taken out again."""
    file = ROOT / requirements
    cache = Path(os.environ.get("MUSTER_CACHE_DIR") or Path.home() / ".cache" / "muster")
    key = hashlib.sha256(file.read_bytes() + beside.encode()).hexdigest()[:12]
    place = cache / f"{name}-{key}"
    if (place / ".complete").exists():
        return place
    if not may_make:
        return None
    print(f"installing {requirements} into {place}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
    if beside:
        (site_of(place) / "beside.pth").write_text(beside)
    words = ["-q", "install", "--no-input", *more, "-r", file]
    subprocess.run([place / "bin" / "pip", *words], check=True)
    if without:
        subprocess.run([place / "bin" / "pip", "-q", "uninstall", "-y", *without], check=True)
    (place / ".complete").touch()
    return place


def own_packages() -> str:
    """`beside` of what is made beside this python's own packages: a line of a .pth file."""
    return site.getsitepackages()[0] + "\n"


def site_of(place: Path) -> Path:
    return next((place / "lib").glob("python3*/site-packages"))
