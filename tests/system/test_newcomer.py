"""What people who were new to it stumbled over, on a whole system: what they see must say what happened and what to do."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from local_system import wait_for
from small_system import start, submit, wait_ended

ROOT = Path(__file__).resolve().parent.parent.parent
SLOT = "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\n"


def test_a_drained_host_is_named_and_its_cores_are_not_missing(bare):
    start(bare, hosts=("h01",), slots=4)
    bare.run(["host", "drain", "lab/h01", "--reason", "a fan is replaced"])
    number = submit(bare, "queue: research\nrun: hostname\n")
    shown = wait_for(
        "its verdict",
        lambda: (
            "lab/h01 is drained: a fan is replaced"
            in (text := bare.run(["explain", number]).stdout)
            and text
        ),
        10,
    )
    assert re.search(r"(?m)^held +- +-$", shown), shown
    assert "if lab/h01 resumed" in shown, shown


def test_what_failed_is_told_with_its_line_and_its_field(system):
    setup = submit(
        system,
        SLOT
        + "max_restarts: 0\nsetup: |\n  true\n  echo no such distribution >&2\n  test -e /nowhere\nrun: 'true'\n",
        "setup",
    )
    program = submit(system, SLOT + "max_restarts: 0\nrun: [python-of-mine, train.py]\n", "program")
    place = submit(system, SLOT + "max_restarts: 0\nworkdir: /nowhere\nrun: ls\n", "place")
    for number, wanted in (
        (setup, "setup: exit 1, line 3: test -e /nowhere; it said: no such distribution"),
        (
            program,
            "exec python-of-mine: No such file or directory (a job has its host's PATH, not the submitter's",
        ),
        (place, "workdir /nowhere: No such file or directory (it has to be there on every host)"),
    ):
        assert wait_ended(system, number)["state"] == "FAILED"
        shown = system.run(["show", number]).stdout
        assert wanted in shown, shown
        assert wanted in system.run(["attach", number], check=False).stdout


def test_validate_and_submit_agree_on_what_no_host_can_hold(system):
    path = system.folder / "large.yaml"
    path.write_text(
        "queue: research\nresources: {gpus: 64, gpu_types: [cpu-slot]}\nrun: hostname\n"
    )
    for command in (["validate", path], ["submit", "-y", path]):
        done = system.run(command, check=False)
        assert done.returncode == 2 and "the largest host has 2 cpu-slot" in done.stderr, (
            done.stderr
        )
    assert system.jobs() == []


def test_who_cancelled_a_job_is_said_once(system):
    number = submit(system, SLOT + "run: sleep 60\n")
    system.run(["cancel", number, "--wait"])
    said = system.run(["attach", number], check=False).stdout
    assert re.search(r"was cancelled by \S+\.", said) and "cancel:" not in said, said
    assert "cancelled, cancel" not in system.run(["show", number]).stdout


def test_a_cpu_job_counts_alike_in_queue_list_and_top(system):
    number = submit(system, "queue: research\nrun: sleep 60\n")
    wait_for("it to run", lambda: system.job(number)["state"] == "RUNNING", 20)
    top = system.json("top")
    queue = next(q for q in system.json("queue", "list")["queues"] if q["path"] == "research")
    assert int(top["running_jobs"]) == int(queue["running_jobs"]) == 1
    for command, wanted in ((["queue", "list"], "JOBS RUN"), (["top", "-1"], "RUN HERE")):
        assert wanted in system.run(command).stdout


def test_the_demo_builds_what_it_proposes_to_try_next():
    build = next(
        line
        for line in (ROOT / "deploy" / "demo.sh").read_text().splitlines()
        if "deploy/build.sh" in line and line.startswith("if")
    )
    assert {"muster-sandbox", "muster-sim", "muster"} <= set(re.findall(r"[\w-]+", build))
    assert "muster sandbox" in (ROOT / "deploy" / "demo" / "story.py").read_text()


def test_nothing_is_skipped_for_want_of_a_package_that_can_be_pinned():
    wanted = (ROOT / "deploy" / "requirements.txt").read_text()
    assert re.search(r"(?m)^matplotlib==\d", wanted)
    for folder in ("tests", "trainer/tests"):
        for path in (ROOT / folder).rglob("test_*.py"):
            text = path.read_text()
            assert not re.search(r"importorskip\(|skip\([^)]*is missing", text), path


def text_width(text: str, size: float, bold: bool) -> float:
    """In Helvetica, by its metrics; what it doesn't have counts as wide as it is high."""
    import matplotlib

    name = "Helvetica-Bold.afm" if bold else "Helvetica.afm"
    metrics = Path(matplotlib.get_data_path()) / "fonts" / "pdfcorefonts" / name
    widths = {}
    for line in metrics.read_text(errors="replace").splitlines():
        if found := re.match(r"C (\d+) ; WX (\d+) ;", line):
            widths[chr(int(found[1]))] = int(found[2])
    return sum(widths.get(c, 1000) for c in text) * size / 1000


def test_every_line_of_the_architectures_picture_stays_in_its_box():
    root = ElementTree.parse(ROOT / "docs" / "architecture.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    boxes = [
        tuple(float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{svg}rect")
    ]
    sizes = {child: group for group in root.iter(f"{svg}g") for child in group}
    checked = 0
    for text in root.iter(f"{svg}text"):
        x, y = float(text.get("x")), float(text.get("y"))
        inside = [(bx, w, h) for bx, by, w, h in boxes if bx <= x <= bx + w and by <= y <= by + h]
        left, width, _ = min(inside, key=lambda box: box[1] * box[2])
        size = float(text.get("font-size") or sizes[text].get("font-size") or root.get("font-size"))
        end = x + text_width("".join(text.itertext()), size, text.get("font-weight") == "bold")
        assert end <= left + width, (
            f"{''.join(text.itertext())!r} ends at {end:.0f} of {left + width:.0f}"
        )
        checked += 1
    assert checked > 20
