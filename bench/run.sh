#!/usr/bin/env bash
# Measures one row of an issue's table.
#
#   bench/run.sh list | SLUG [--quick] [--record] [-- OPTIONS OF THE ROW'S PROGRAM]
#
# Prints machine and commit, ends with one JSON line a figure: {"figure":…,"value":…,"unit":…,"peer":…,"bar":…,"holds":…}.
# --quick takes at most 60 s and measures less. --record writes the figures into bench/RESULTS.md. Exit 1 when one falls short.
# What some rows' programs take beside --quick: `federation -- --trace-times`; `partitions` and `kill-*` `-- --unix` or `-- --tls`.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh
python=$(muster_python_env)/bin/python
[[ -x $python ]] || python=python3
export MUSTER_BIN_DIR=${MUSTER_BIN_DIR:-$PWD/build/release/bin}
export MUSTER_TRAINER_BIN=${MUSTER_TRAINER_BIN:-$MUSTER_BIN_DIR/muster-trainer}
export MUSTER_PYTHON=$python PYTHONDONTWRITEBYTECODE=1
exec "$python" bench/run.py "$@"
