"""A store in which something is wrong: what musterd says of it, and what an operator makes of a plan that was refused."""

import sqlite3

from local_system import wait_for
from small_system import configure

DAMAGED = "the store is damaged: stop musterd and restore a backup"


def test_musterd_says_that_its_store_is_damaged_in_a_page_that_its_start_does_not_read(bare):
    configure(bare)
    bare.start_musterd()
    bare.processes["musterd"].terminate()
    assert bare.processes["musterd"].wait(20) == 0
    file = bare.folder / "store" / "muster.db"
    store = sqlite3.connect(file)
    page, = store.execute("SELECT rootpage FROM sqlite_master WHERE name = 'history_by_owner'").fetchone()
    page_bytes, = store.execute("PRAGMA page_size").fetchone()
    store.close()
    assert DAMAGED not in bare.log_tail("musterd", 100)
    with open(file, "r+b") as content:
        content.seek((page - 1) * page_bytes)
        content.write(b"damaged.")
    bare.start_musterd()
    said = wait_for("musterd to say that its store is damaged", lambda: next((line for line in bare.log_tail("musterd", 100).splitlines() if DAMAGED in line), ""), 20)
    assert "quick_check" in said


def test_replay_takes_the_folder_of_a_refused_plan(bare):
    configure(bare)
    folder = bare.folder / "refused-plans" / "1-2"
    folder.mkdir(parents=True)
    (folder / "rows").touch()                  # of a Muster without anything, for which nothing is decided
    (folder / "plan.txt").write_text("refused: FAILED_PRECONDITION: event 0: there is no such job\nnow_ns: 1000\nevent 0:\n")
    words = ["admin", "replay", folder, "--config", bare.folder / "etc" / "musterd.yaml"]
    done = bare.run(words, check=False)
    assert done.returncode != 0
    assert "0 events, is not refused. Then it was: FAILED_PRECONDITION: event 0: there is no such job" in done.stderr, done.stderr
    (folder / "plan.txt").write_text("a poem\n")
    assert "doesn't begin with why" in bare.run(words, check=False).stderr
