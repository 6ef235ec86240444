"""An upgrade of a host: the agent's programs are replaced while its tasks run."""

import os
import shutil

from local_system import LocalSystem, job_processes, processes_of, wait_for
from small_system import let_go, marks, start, submit_waiting, task, wait_ended, wait_started

HOST_PROGRAMS = ("muster-agent", "muster-shim")


def replace(system: LocalSystem, bin_dir) -> None:
    """As a package does: the name goes, and a new file takes it."""
    for name in HOST_PROGRAMS:
        (system.bin_dir / name).unlink()
        shutil.copy2(bin_dir / name, system.bin_dir / name)


def shims_of_the_old_file(system: LocalSystem) -> set[int]:
    def file_of(pid: int) -> str:
        try:
            return os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return ""

    return {
        pid
        for pid, program in processes_of(system.folder).items()
        if program == "muster-shim" and file_of(pid).endswith("muster-shim (deleted)")
    }


def test_agents_programs_are_replaced_while_tasks_run_which_go_on_under_the_new_ones(bare, bin_dir):
    copied = bare.folder / "bin"
    copied.mkdir()
    for name in ("musterd", "muster"):
        (copied / name).symlink_to(bin_dir / name)
    for name in HOST_PROGRAMS:
        shutil.copy2(bin_dir / name, copied / name)
    bare.bin_dir = copied
    start(bare)
    wanted = {"good": 0, "bad": 7, "ends-while-away": 3}
    numbers = {
        name: submit_waiting(bare, name, exit_code=code, more="max_restarts: 0\n")
        for name, code in wanted.items()
    }
    for name in wanted:
        wait_started(bare, name, 1)
    before = set(job_processes(bare.folder))

    replace(bare, bin_dir)
    assert shims_of_the_old_file(bare)
    between = submit_waiting(bare, "between")  # the old agent's, of new files
    wait_started(bare, "between", 1)
    before |= set(job_processes(bare.folder))
    for host in ("h01", "h02"):
        bare.processes[f"agent-lab-{host}"].kill()
        bare.processes[f"agent-lab-{host}"].wait(10)
    let_go(bare, "ends-while-away")
    wait_for(
        "the one that ends while no agent is there",
        lambda: len(job_processes(bare.folder)) == len(before) - 1,
        10,
    )
    for host in ("h01", "h02"):
        bare.start_agent("lab", host)
    bare.wait_hosts_up({"lab/h01", "lab/h02"})
    assert set(job_processes(bare.folder)) < before, "others run than before"

    later = submit_waiting(bare, "later")
    wait_started(bare, "later", 1)  # the new agent's, beside those of the old
    for name in ("good", "bad", "between", "later"):
        let_go(bare, name)
    for name, number in {**numbers, "between": between, "later": later}.items():
        job, code = wait_ended(bare, number), wanted.get(name, 0)
        assert len(marks(bare, name)) == 1 and len(task(job)["attempts"]) == 1, f"{name} ran again"
        assert job["state"] == ("SUCCEEDED" if code == 0 else "FAILED"), job
        assert code == 0 or f"exit {code}" in task(job)["attempts"][-1]["detail"], job
    wait_for("the shims of the old file to end", lambda: not shims_of_the_old_file(bare), 20)
