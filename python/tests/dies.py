"""A worker that dies before or after the Nth of what it asks of the disk, or puts into a store: dies.py muster_score|muster_tune before|after N WORDS."""

import importlib
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]


def main() -> int:
    module, when, left = sys.argv[1], sys.argv[2], int(sys.argv[3])

    def counted(call):
        def wrapped(*words, **named):
            nonlocal left
            left -= 1
            if left == 0 and when == "before":
                os._exit(99)
            result = call(*words, **named)
            if left == 0:
                os._exit(99)
            return result

        return wrapped

    os.link, os.fsync, os.unlink = counted(os.link), counted(os.fsync), counted(os.unlink)
    if module == "muster_score":
        from muster_score import objects

        objects.put_new, objects.put = counted(objects.put_new), counted(objects.put)
    return importlib.import_module(f"{module}.__main__").main(sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
