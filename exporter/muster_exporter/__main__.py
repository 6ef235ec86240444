"""muster-exporter --config FILE [--muster COMMAND] [--server SERVER] [--status]"""

import argparse
import fcntl
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from muster_exporter import config as settings
from muster_exporter.exporter import Exporter
from muster_exporter.store import Store


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="muster-exporter",
        description="Writes what jobs report to experiment trackers, and tells people of jobs' ends.",
    )
    parser.add_argument("--config", type=Path, required=True, help="exporter.toml")
    parser.add_argument("--muster", help="the muster command; default: as the file says")
    parser.add_argument("--server", help="where musterd is; default: as muster finds it")
    parser.add_argument("--status", action="store_true", help="what is left to write, and exit")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = settings.read(options.config)
    except settings.ConfigError as error:
        print(f"muster-exporter: {error}", file=sys.stderr)
        return 2
    config.muster = options.muster or config.muster
    if options.server:
        os.environ["MUSTER_SERVER"] = options.server
    if options.status:
        file = config.data_dir / "spool.db"
        for row in Store(file).status() if file.exists() else []:
            print(json.dumps(row))
        return 0
    config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(config.data_dir / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(
                f"muster-exporter: another one runs with {config.data_dir}; end it, or give this one a data_dir of its own",
                file=sys.stderr,
            )
            return 6
        return serve(config)


def serve(config: settings.Config) -> int:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    exporter = Exporter(config)
    pause_s = 0.0
    while not stopped.wait(pause_s):
        pause_s = exporter.turn()
    exporter.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
