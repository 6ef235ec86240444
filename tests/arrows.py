"""The dependency arrows of docs/architecture.md, read off the #include lines: who may know whom."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folder -> folders whose headers it may include, besides its own. The longest prefix of a file's path decides.
MAY_INCLUDE = {
    "common/base": [],
    "common/objects": [],
    "common/pack": [],
    "common/pki": ["common/base"],
    "common/oidc": ["common/base", "common/pki"],
    "common/spec": ["common/base", "common/objects"],
    "network": ["common"],
    "network/https": ["common/base"],
    "network/log": ["common/base"],
    "scheduler/state": ["common/base", "common/spec"],
    "scheduler/access": ["common/base", "common/pki", "scheduler/state"],
    "scheduler/trust": ["common/base", "common/oidc", "common/pki", "scheduler/state"],
    "scheduler/decide": ["common/base", "common/spec", "scheduler/state"],
    "scheduler/ask": ["common/base", "common/spec", "scheduler/state", "scheduler/decide"],
    "scheduler/engine": ["common/base", "common/spec", "scheduler/state", "scheduler/decide"],
    "scheduler/store": [
        "common/base",
        "common/pack",
        "common/pki",
        "scheduler/state",
        "scheduler/decide",
        "scheduler/engine",
    ],
    "scheduler/agents": [
        "common/base",
        "common/pki",
        "scheduler/state",
        "scheduler/decide",
        "scheduler/engine",
    ],
    "scheduler/api": ["common", "scheduler"],
    "scheduler": ["common", "network/https", "network/log", "scheduler"],  # musterd.cc: wiring
    "agent/progress": ["common/base"],
    "agent/shim": ["common/pack", "agent/progress"],
    "agent/reconcile": ["common/base", "agent/progress"],
    "agent": ["common", "network", "agent"],
    "sim": [
        "common",
        "scheduler/state",
        "scheduler/decide",
        "scheduler/ask",
        "scheduler/engine",
        "scheduler/store",
        "agent/reconcile",
    ],
    "sim/agents": ["common", "scheduler/agents", "sim"],
    "sim/faults": [
        "common",
        "scheduler/state",
        "scheduler/decide",
        "scheduler/ask",
        "scheduler/engine",
        "scheduler/agents",
        "scheduler/api",  # submit.h, which needs no gRPC
        "scheduler/store",
        "agent/reconcile",
        "agent/host",
        "agent/daemon",
        "agent/shim",
        "sim",
    ],
    "sandbox": ["common", "scheduler", "sim"],
    "cli": ["common", "network"],
    "trainer": ["common/objects"],  # a header of the standard library alone (decision 004)
}
NO_GRPC = [
    "common",
    "scheduler/state",
    "scheduler/access",
    "scheduler/trust",
    "scheduler/decide",
    "scheduler/ask",
    "scheduler/engine",
    "scheduler/store",
    "agent/reconcile",
    "agent/shim",
    "sim",
    "trainer",
]
NO_PROTO = [
    "common/base",
    "common/objects",
    "common/oidc",
    "common/pack",
    "common/pki",
    "agent/progress",
    "agent/shim",
    "trainer",
]
PURE = ["scheduler/state", "scheduler/decide", "agent/reconcile"]
IMPURE_HEADERS = [
    "<chrono>",
    "<ctime>",
    "<time.h>",
    "<random>",
    "<thread>",
    "<mutex>",
    "<atomic>",
    "<fstream>",
    "<iostream>",
    "<unistd.h>",
    "<fcntl.h>",
    "<unordered_map>",
    "<unordered_set>",
    '"absl/container/flat_hash_map.h"',
    '"absl/container/flat_hash_set.h"',
    '"absl/random/random.h"',
    '"common/base/clock.h"',
]
TOPS = ("common", "network", "scheduler", "agent", "sim", "sandbox", "cli", "trainer")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])', re.MULTILINE)


def sources():
    for folder in TOPS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu"):
                yield path.relative_to(ROOT).as_posix()


def includes(path):
    return INCLUDE.findall((ROOT / path).read_text())


def is_test(path):
    return re.search(r"_(test|bench)\.|/testing/", path) is not None


def under(path, folder):
    return path.startswith(folder + "/")


def owner(path):
    return max((folder for folder in MAY_INCLUDE if under(path, folder)), key=len)


def test_includes_follow_the_arrows():
    wrong = []
    for path in sources():
        folder = owner(path)
        for include in includes(path):
            name = include[1:-1]
            if include[0] == "<" or not any(under(name, top) for top in TOPS):
                continue
            allowed = [folder, *MAY_INCLUDE[folder]]
            if is_test(path):
                allowed += (
                    ["common", "network", "scheduler"]
                    if under(path, "scheduler")
                    else ["common", folder.split("/")[0]]
                )
            if not any(under(name, a) for a in allowed):
                wrong.append(f"{path} includes {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", NO_GRPC)
def test_no_grpc_below_the_edges(folder):
    wrong = [
        f"{p}: {i}"
        for p in sources()
        if under(p, folder)
        for i in includes(p)
        if "grpc" in i.lower()
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", NO_PROTO)
def test_no_protobuf(folder):
    wrong = [
        f"{p}: {i}"
        for p in sources()
        if under(p, folder)
        for i in includes(p)
        if ".pb.h" in i or "google/protobuf" in i
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", PURE)
def test_pure_folders_know_no_clock_no_threads_no_unordered_containers(folder):
    wrong = [
        f"{p}: {i}"
        for p in sources()
        if under(p, folder) and not is_test(p)
        for i in includes(p)
        if i in IMPURE_HEADERS
    ]
    assert not wrong, "\n".join(wrong)


def test_every_folder_with_sources_is_known_here():
    for path in sources():
        owner(path)


def test_files_stay_readable():
    long = [
        f"{p}: {n} lines" for p in sources() if (n := (ROOT / p).read_text().count("\n")) > 1100
    ]
    assert not long, "\n".join(long)


def test_the_contracts_name_files_and_tests_that_exist():
    """docs/contracts.md: each `path/file.cc` and each `Suite.Test` or `test_name` in it is there."""
    words = re.findall(r"`([^`]+)`", (ROOT / "docs/contracts.md").read_text())
    texts = [
        p.read_text()
        for folder in ("common", "scheduler", "agent", "sim")
        for p in (ROOT / folder).rglob("*_test.cc")
    ]
    known = {
        f"{suite}.{name}"
        for text in texts
        for suite, name in re.findall(r"\bTEST(?:_F|_P)?\((\w+), (\w+)\)", text)
    }
    python = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("*.py"))
    wrong = [
        w for w in words if "/" in w and re.search(r"\.(cc|h|py)$", w) and not (ROOT / w).exists()
    ]
    wrong += [w for w in words if re.fullmatch(r"[A-Z]\w+\.[A-Z]\w+", w) and w not in known]
    wrong += [w for w in words if re.fullmatch(r"test_\w+", w) and f"def {w}(" not in python]
    assert not wrong, wrong
