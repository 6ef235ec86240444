"""`python -m muster_prepare ARGS`."""

import sys

from muster_prepare.cli import main

sys.exit(main())
