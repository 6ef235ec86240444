"""Packages and units, as far as nothing has to be built for it: what belongs together agrees. bench/run.sh packages builds and installs them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEBIAN = ROOT / "deploy" / "debian"
UNITS = ROOT / "deploy" / "systemd"
SCRIPTS = sorted(p for p in DEBIAN.iterdir() if p.suffix in (".postinst", ".prerm", ".postrm"))


def packages() -> list[str]:
    return re.findall(r"^Package: (.*)$", (DEBIAN / "control").read_text(), re.M)


def settings(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.M):
        found.setdefault(name, []).append(value)
    return found


def installed() -> set[str]:
    files = [path.read_text().split() for path in DEBIAN.glob("*.install")]
    return {f"/{name}" for names in files for name in names}


def removed(script: str) -> list[str]:
    """What a maintainer script removes."""
    words = re.findall(r"^\s*(?:rm|rmdir|unlink|find) (.*)$", script, re.M)
    return [word for line in words for word in line.split() if word.startswith("/")]


def exposure(unit: Path) -> float:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
    )
    return float(re.search(r"exposure level for .*: ([0-9.]+)", done.stdout)[1])


def test_the_installation_page_lists_the_packages():
    page = (ROOT / "docs" / "install.md").read_text()
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.M) == packages()


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda unit: unit.name)
def test_a_unit_is_of_a_package_and_starts_what_is_installed(unit):
    assert unit.stem in packages()
    assert all(line.split()[0] in installed() for line in settings(unit)["ExecStart"])


def test_each_file_belongs_to_a_package():
    names = {path.name.split(".")[0] for path in DEBIAN.iterdir() if "." in path.name}
    assert names <= set(packages())


def test_stopping_the_agent_leaves_jobs_alone():
    unit = settings(UNITS / "muster-agent.service")
    assert unit["KillMode"] == ["process"]
    assert unit["Delegate"] == ["yes"]
    assert unit["RuntimeDirectoryPreserve"] == ["yes"]
    assert "User" not in unit  # root: each job runs as its owner
    assert "--single-user" not in unit["ExecStart"][0]


def test_join_starts_the_agents_unit_and_hears_its_status():
    unit = settings(UNITS / "muster-agent.service")
    assert unit["NotifyAccess"] == ["main"]
    source = (ROOT / "agent" / "host" / "unit.h").read_text()
    assert f'state_directory = "/var/lib/{unit["StateDirectory"][0]}"' in source
    assert "/lib/systemd/system/muster-agent.service" in source


def test_the_scheduler_is_shut_in():
    unit = settings(UNITS / "musterd.service")
    assert unit["User"] == ["muster"]
    assert unit["CapabilityBoundingSet"] == [""]
    assert unit["LoadCredentialEncrypted"] == ["musterd.master-key"]  # scheduler/musterd.cc
    source = (ROOT / "scheduler" / "musterd.cc").read_text()
    assert 'kMasterKeyName[] = "musterd.master-key"' in source


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze isn't here")
def test_the_schedulers_exposure_is_low():
    assert exposure(UNITS / "musterd.service") <= 3.0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_maintainer_script_is_a_script_and_removes_nobodys_files(path):
    text = path.read_text()
    assert text.startswith("#!/bin/sh\n") and "\nset -e\n" in text and "\n#DEBHELPER#\n" in text
    subprocess.run(["sh", "-n", path], check=True)
    # The trainer's environment can be made again; stores, records, logs and jobs' files can't.
    assert set(removed(text)) <= {"/var/lib/muster-trainer"}


def test_a_script_that_removes_the_store_is_found():
    assert removed("if true; then\n  rm -rf /var/lib/muster\nfi\n") == ["/var/lib/muster"]


def test_packages_sh_says_what_it_takes():
    done = subprocess.run(
        [ROOT / "deploy" / "packages.sh", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "--version" in done.stdout
    done = subprocess.run(
        [ROOT / "deploy" / "packages.sh", "--what"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "--help" in done.stderr
