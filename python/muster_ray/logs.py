"""Ray's logs, which lie in its temporary directory on the host, copied into the job's directory as they grow: they are there after the end, also of what was killed."""

import contextlib
import shutil
from pathlib import Path


class Logs:
    def __init__(self, temporary: Path, kept: Path):
        self.temporary, self.kept = temporary, kept

    def follow(self) -> None:
        """Copies what is new. A file that cannot be read or written now is tried again the next time."""
        with contextlib.suppress(OSError):  # a directory went while it was listed
            for path in self.temporary.glob("session_2*/logs/**/*"):
                with contextlib.suppress(OSError):
                    if path.is_file() and not path.is_symlink():
                        self._append(path, self.kept / path.relative_to(self.temporary))

    @staticmethod
    def _append(source: Path, target: Path) -> None:
        there = target.stat().st_size if target.exists() else 0
        size = source.stat().st_size
        if size == there and target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as old, target.open("ab" if size > there else "wb") as new:
            if size > there:  # else Ray began the file anew
                old.seek(there)
            shutil.copyfileobj(old, new)
