"""run.py NAME: one attack, as a job. Its verdict is a line of its log: what it gained, or why it was refused; its end is 0 either way."""

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]
import files  # noqa: F401
import others  # noqa: F401
import rights  # noqa: F401
from base import ATTACKS, say_verdict

gained = refused = ""
if "workdir" not in sys.argv[1]:
    os.chdir(os.environ["MUSTER_JOB_DIR"])
try:
    gained = ATTACKS[sys.argv[1]]() or ""
except (OSError, ValueError) as error:  # the latter: of a limit that may not be raised
    refused = str(error)
say_verdict(gained, refused)
