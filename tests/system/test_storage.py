"""`muster storage`: what a job has written, and the room and quota that its owner has left there."""

import re
import subprocess
from pathlib import Path

from local_system import wait_for
from small_system import submit, wait_ended

# As the tool of that name prints it: past the soft limit, which it marks.
QUOTA = """\
#!/bin/sh
echo "Disk quotas for user ann (uid 1001):"
echo "     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace"
echo "      /dev/sda1  512000* 409600 1048576  86400       5       0       0       0"
exit 1
"""
JOB = """\
name: writes
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
env: {{PATH: "{folder}/tools:/usr/bin:/bin"}}
run: |
  head -c 3145728 /dev/zero > "$MUSTER_JOB_DIR/big"
  touch "$MUSTER_JOB_DIR/wrote"
  while [ ! -e "$MUSTER_JOB_DIR/go" ]; do sleep 0.1; done
"""


def storage(system, number) -> subprocess.CompletedProcess:
    return subprocess.run(
        [system.bin_dir / "muster", "storage", str(number)],
        capture_output=True,
        text=True,
        timeout=60,
        env=system.environment(),
    )


def test_what_a_job_wrote_and_what_is_left_is_told(system):
    number = submit(system, JOB.format(folder=system.folder))
    folder = Path(system.job(number)["directory"])
    wait_for("the file", (folder / "wrote").exists, 20)
    # The file may be there before musterd has heard that its process has started.
    wait_for("its start", lambda: system.job(number)["state"] == "RUNNING", 20)
    done = storage(system, number)
    assert done.returncode == 0, done.stderr
    assert f"directory         {folder}\n" in done.stdout
    assert re.search(r"^files in it +3(\.\d)?MiB$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^free there +\S+ of \S+$", done.stdout, re.MULTILINE), done.stdout
    tool = system.folder / "tools" / "quota"
    tool.parent.mkdir()
    tool.write_text(QUOTA)
    tool.chmod(0o755)
    limited = storage(system, number)
    assert re.search(r"^quota of \S+ +500MiB of 1GiB$", limited.stdout, re.MULTILINE), limited
    (folder / "go").touch()
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    after = storage(system, number)
    assert after.returncode == 2 and f"du -sh {folder}" in after.stderr, after.stderr
