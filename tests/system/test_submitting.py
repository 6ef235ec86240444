"""A submission counts once, however often it is repeated."""

from concurrent.futures import ThreadPoolExecutor

from small_system import let_go, marks, submit_waiting, wait_ended, wait_started, waiting_job


def keyed(system, path, key: str, check: bool = True):
    return system.run(
        ["submit", path, "-y", "--detach", "-o", "name", "--idempotency-key", key], check=check
    )


def test_the_same_key_gives_the_same_job_and_runs_it_once(system):
    path = system.folder / "once.yaml"
    path.write_text(waiting_job(system, "once"))
    with ThreadPoolExecutor(6) as pool:
        numbers = list(
            pool.map(lambda _: keyed(system, path, "nightly 2026-11-21").stdout.strip(), range(12))
        )
    assert len(set(numbers)) == 1, numbers
    wait_started(system, "once", 1)
    let_go(system, "once")
    assert wait_ended(system, numbers[0])["state"] == "SUCCEEDED"
    assert keyed(system, path, "nightly 2026-11-21").stdout.strip() == numbers[0], (
        "the key is forgotten once the job has ended"
    )
    assert len(system.jobs()) == 1 and len(marks(system, "once")) == 1


def test_the_same_key_for_another_job_is_refused(system):
    path = system.folder / "first.yaml"
    path.write_text(waiting_job(system, "first"))
    number = keyed(system, path, "key").stdout.strip()
    path.write_text(waiting_job(system, "second"))
    refused = keyed(system, path, "key", check=False)
    assert (
        refused.returncode == 2
        and f"job {number}" in refused.stderr
        and "another spec" in refused.stderr
    ), refused.stderr
    assert [job["spec"]["name"] for job in system.jobs()] == ["first"]


def test_a_key_outlives_the_daemon(system):
    path = system.folder / "kept.yaml"
    path.write_text(waiting_job(system, "kept"))
    number = keyed(system, path, "key").stdout.strip()
    system.processes["musterd"].kill()
    system.processes["musterd"].wait(10)
    system.start_musterd()
    assert keyed(system, path, "key").stdout.strip() == number
    assert len(system.jobs()) == 1


def test_without_a_key_each_submission_is_a_job_of_its_own(system):
    assert submit_waiting(system, "same") != submit_waiting(system, "same")
    assert len(system.jobs()) == 2
