"""Lets the folder be run: `python trainer/prepare ARGS`, which is what `muster-trainer prepare` does."""

import sys

from muster_prepare.cli import main

sys.exit(main())
