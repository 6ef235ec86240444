"""What a head runs in a test: says how many nodes there are each time that changes, until a file appears, or it is stopped. ray_program.py GO."""

import os
import signal
import sys
import time
from pathlib import Path

from stand_in_ray import nodes, token_of

go, before, stopped = Path(sys.argv[1]), 0, []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
while not go.exists() and not stopped:
    count = nodes(os.environ["RAY_ADDRESS"], token_of(os.environ))
    if count != before:
        print(f"nodes {count}", flush=True)
    before = count
    time.sleep(0.02)
if stopped:
    time.sleep(0.3)  # what saving takes
    print(f"saved beside {nodes(os.environ['RAY_ADDRESS'], token_of(os.environ))}", flush=True)
    sys.exit(0)
sys.exit(int(go.read_text() or 0))
