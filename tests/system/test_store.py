"""A store in which something is wrong: what musterd says of it, and what an operator makes of a plan that was refused."""

import json
import sqlite3

from local_system import wait_for
from small_system import configure, let_go, submit_waiting, wait_ended

DAMAGED = "the store is damaged: stop musterd and restore a backup"


def test_musterd_says_that_its_store_is_damaged_in_a_page_that_its_start_does_not_read(bare):
    configure(bare)
    bare.start_musterd()
    bare.processes["musterd"].terminate()
    assert bare.processes["musterd"].wait(20) == 0
    file = bare.folder / "store" / "muster.db"
    store = sqlite3.connect(file)
    (page,) = store.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'history_by_owner'"
    ).fetchone()
    (page_bytes,) = store.execute("PRAGMA page_size").fetchone()
    store.close()
    assert DAMAGED not in bare.log_tail("musterd", 100)
    with open(file, "r+b") as content:
        content.seek((page - 1) * page_bytes)
        content.write(b"damaged.")
    bare.start_musterd()
    said = wait_for(
        "musterd to say that its store is damaged",
        lambda: next(
            (line for line in bare.log_tail("musterd", 100).splitlines() if DAMAGED in line), ""
        ),
        20,
    )
    assert "quick_check" in said


def test_replay_takes_the_folder_of_a_refused_plan(bare):
    configure(bare)
    folder = bare.folder / "refused-plans" / "1-2"
    folder.mkdir(parents=True)
    (folder / "rows").touch()  # of a Muster without anything, for which nothing is decided
    (folder / "plan.txt").write_text(
        "refused: FAILED_PRECONDITION: event 0: there is no such job\nnow_ns: 1000\nevent 0:\n"
    )
    words = ["admin", "replay", folder, "--config", bare.folder / "etc" / "musterd.yaml"]
    done = bare.run(words, check=False)
    assert done.returncode != 0
    assert (
        "0 events, is not refused. Then it was: FAILED_PRECONDITION: event 0: there is no such job"
        in done.stderr
    ), done.stderr
    (folder / "plan.txt").write_text("a poem\n")
    assert "doesn't begin with why" in bare.run(words, check=False).stderr


def test_a_job_that_only_the_history_still_has_is_shown_as_it_ended(system):
    for index in range(3):
        let_go(system, f"j{index}")
        wait_ended(system, submit_waiting(system, f"j{index}"))
    whole = system.run(["show", "2", "-o", "json"]).stdout
    system.processes["musterd"].terminate()
    assert system.processes["musterd"].wait(20) == 0
    store = sqlite3.connect(
        system.folder / "store" / "muster.db"
    )  # as a State that holds fewer finished jobs forgets
    with store:
        store.execute("DELETE FROM rows WHERE kind = 'job' AND id = ?", (f"{2:020}",))
    store.close()
    system.start_musterd()
    assert system.run(["show", "2", "-o", "json"]).stdout == whole
    assert [
        job["number"] for job in json.loads(system.run(["history", "-o", "json"]).stdout)["jobs"]
    ] == [3, 2, 1]
    assert [
        job["number"]
        for job in json.loads(system.run(["jobs", "-a", "-o", "json", "--limit", "2"]).stdout)[
            "jobs"
        ]
    ] == [3, 2]
    assert json.loads(system.run(["cancel", "2", "-o", "json"]).stdout)["state"] == "SUCCEEDED"
    assert system.run(["wait", "2"]).returncode == 0
    assert system.run(["logs", "2"]).returncode == 0
    assert 'there is no job "4"' in system.run(["show", "4"], check=False).stderr
