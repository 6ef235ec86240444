"""What an operator does with the store: back it up, check it, decide it again, go on from a backup."""

import os
import shutil
import subprocess

from local_system import job_processes, wait_for
from small_system import let_go, marks, rank_pid, submit_waiting, wait_ended, wait_started


def admin(system, *words, check: bool = True) -> subprocess.CompletedProcess:
    return system.run(
        ["admin", *words, "--config", system.folder / "etc" / "musterd.yaml"], check=check
    )


def end_musterd(system) -> None:
    system.processes["musterd"].kill()
    system.processes["musterd"].wait(10)


def replace_store(system, file) -> None:
    shutil.rmtree(system.folder / "store")
    (system.folder / "store").mkdir(mode=0o700)
    shutil.copy(file, system.folder / "store" / "muster.db")


def adopt(system) -> None:
    system.spawn(
        "musterd",
        [
            system.bin_dir / "muster",
            "admin",
            "adopt-restored",
            "--config",
            system.folder / "etc" / "musterd.yaml",
        ],
    )
    wait_for(
        "musterd on the adopted store",
        lambda: system.run(["ping"], check=False).returncode == 0,
        20,
    )


def test_a_backup_of_a_running_store_is_sound_and_decides_the_same_again(system):
    for index in range(3):
        let_go(system, f"j{index}")
        wait_ended(system, submit_waiting(system, f"j{index}"))
    end_musterd(system)
    system.start_musterd()  # a journal over two epochs
    running = submit_waiting(system, "runs")
    wait_started(system, "runs", 1)
    copy = system.folder / "copy.db"
    assert "checked" in admin(system, "backup", copy).stdout
    bare = system.folder / "bare.db"  # as `muster up` has it, without a musterd.yaml
    assert (
        "checked"
        in system.run(["admin", "backup", bare, "--data-dir", system.folder / "store"]).stdout
    )
    assert "sound" in system.run(["admin", "verify", bare]).stdout
    again = admin(system, "backup", copy, check=False)
    assert again.returncode != 0 and "exists" in again.stderr
    for words in (["verify"], ["verify", copy]):
        assert "sound" in admin(system, *words).stdout
    for words in (["replay"], ["replay", copy]):
        assert "bit for bit" in admin(system, *words).stdout
    let_go(system, "runs")
    assert wait_ended(system, running)["state"] == "SUCCEEDED"


def test_verify_finds_a_changed_byte(system):
    let_go(system, "one")
    wait_ended(system, submit_waiting(system, "one"))
    copy = system.folder / "copy.db"
    admin(system, "backup", copy)
    content = copy.read_bytes()
    at = content.find(b"run: |") if b"run: |" in content else content.find(b"one.marks")
    assert at > 0
    copy.write_bytes(content[:at] + b"X" + content[at + 1 :])
    done = admin(system, "verify", copy, check=False)
    assert done.returncode != 0 and str(copy) in done.stderr, done.stderr + done.stdout


def test_a_backup_is_served_only_once_adopted_and_what_it_does_not_know_is_stopped(system):
    known = submit_waiting(system, "known")
    wait_started(system, "known", 1)
    pid = rank_pid(system, known)
    copy = system.folder / "copy.db"
    admin(system, "backup", copy)
    unknown = submit_waiting(system, "unknown")
    wait_started(system, "unknown", 1)
    later = rank_pid(system, unknown)
    end_musterd(system)
    replace_store(system, copy)

    refused = subprocess.run(
        [system.bin_dir / "musterd", "--config", system.folder / "etc" / "musterd.yaml"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert refused.returncode != 0 and "--adopt-restored" in refused.stderr

    adopt(system)
    wait_for(
        "what the backup doesn't know to be stopped",
        lambda: later not in job_processes(system.folder),
        30,
    )
    assert pid in job_processes(system.folder), "what the backup shows as running was stopped"
    after = submit_waiting(system, "after")
    wait_started(system, "after", 1)
    for name in ("known", "after"):
        let_go(system, name)
    for number in (known, after):
        assert wait_ended(system, number)["state"] == "SUCCEEDED"
    assert [attempt for _, attempt, _ in marks(system, "known")] == [1]
    assert {job["spec"]["name"] for job in system.jobs()} == {"known", "after"}
    end_musterd(system)
    system.start_musterd()  # it is the store now: no flag any more


def test_an_older_store_is_read_only_once_an_agent_tells_that_it_has_seen_more(system):
    let_go(system, "old")
    wait_ended(system, submit_waiting(system, "old"))
    end_musterd(system)
    kept = system.folder / "kept"
    kept.mkdir()
    for name in ("muster.db", "muster.db-wal"):
        if (system.folder / "store" / name).exists():
            shutil.copy(system.folder / "store" / name, kept)
    system.start_musterd()
    running = submit_waiting(system, "new")
    wait_started(system, "new", 1)
    pid = rank_pid(system, running)
    end_musterd(system)
    system.start_musterd()  # an epoch that the copy will not reach by one start
    system.wait_hosts_up({"lab/h01", "lab/h02"})
    end_musterd(system)
    for name in ("muster.db-wal", "muster.db-shm"):
        (system.folder / "store" / name).unlink(missing_ok=True)
    for name in os.listdir(kept):
        shutil.copy(
            kept / name, system.folder / "store"
        )  # into the file that is there: a copy of its own would be refused at once
    system.start_musterd()

    path = system.folder / "next.yaml"
    path.write_text(
        "name: next\nqueue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: 'true'\n"
    )

    def refused() -> str:
        done = system.run(["submit", path, "-y", "--detach"], check=False)
        return done.stderr if done.returncode != 0 else ""

    said = wait_for("the older store to be read-only", refused, 30)
    assert "backup" in said
    assert pid in job_processes(system.folder), "it stopped what it doesn't know"
