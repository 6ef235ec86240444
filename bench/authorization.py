#!/usr/bin/env python3
"""Row `authorization`: every RPC x eleven callers, thirteen certificates and five tokens x {own, foreign, missing}, and the HTTP routes, against the model in tests/system/authorization.py, and five holes that it has to find.

    authorization.py [--quick]

The holes are tests/mutants/authorization/*.patch, each planted in a copy of the tree, built, and asked the same. --quick: the tree as it is.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from authorization import (
    CERTIFICATES,
    MODEL,
    ROUTES,
    TOKENS,
    Asked,
    AskedByCertificates,
    AskedByTokens,
)
from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, system_folder

HOLES = sorted((ROOT / "tests" / "mutants" / "authorization").glob("*.patch"))


def ask(bin_dir: Path) -> tuple[int, list[str]]:
    """How many cells, and those that aren't as the model says."""
    cells, wrong = 0, []
    for callers in (Asked, AskedByTokens, AskedByCertificates):
        with system_folder() as folder:
            asked = callers(LocalSystem(folder, bin_dir))
            try:
                asked.start()
                more, unexpected = asked.ask_all()
                cells, wrong = cells + more, wrong + unexpected
            except (Failed, subprocess.CalledProcessError) as error:
                return 0, [f"musterd doesn't serve: {str(error)[:300]}"]
    return cells, wrong


def planted() -> list[str]:
    """The holes that were found."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests" / "mutants" / "run.py")
    mutants = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutants)
    programs = {"musterd", "muster", "muster-agent", "call_rpcs"}
    mutants.copy_tree()
    found = []
    for hole in HOLES:
        subprocess.run(["patch", "-p1", "-s", "-i", hole], cwd=mutants.TREE, check=True)
        try:
            mutants.build(programs)
            _, wrong = ask(mutants.BUILD / "bin")
        finally:
            subprocess.run(["patch", "-p1", "-s", "-R", "-i", hole], cwd=mutants.TREE, check=True)
        print(
            f"{hole.stem}: {len(wrong)} unexpected, e.g. {wrong[0] if wrong else 'none'}",
            flush=True,
        )
        if wrong:
            found.append(hole.stem)
    return found


def main() -> int:
    if os.geteuid() != 0:
        return say_failed(Failed("needs root, to be several users"))
    cells, wrong = ask(BIN)
    print("\n".join(wrong))
    ok = figure(
        "calls answered otherwise than the model says",
        len(wrong),
        f"of {cells:,}",
        0,
        not wrong and cells > 0,
    )
    figure("RPCs asked", len(MODEL), "", "all", True)
    figure("HTTP routes asked", len(ROUTES), "", "all", True)
    figure("tokens with scopes that asked", len(TOKENS), "", "", True)
    figure(
        "certificates that asked",
        len(CERTIFICATES),
        "users', hosts', an expired and a revoked one, and none at the join door",
        "",
        True,
    )
    if "--quick" in sys.argv:
        return 0 if ok else 1
    found = planted()
    ok &= figure(
        "planted holes found", len(found), f"of {len(HOLES)}", 3, len(found) == len(HOLES) >= 3
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
