#!/usr/bin/env bash
# The first run, live: two clusters, three agents, a real model trained over borrowed, reclaimed and grown capacity, a
# killed trainer process, a killed daemon, and a summary whose every figure is read from the system and asserted.
#
#   deploy/demo.sh [--short] [--keep] [--no-build]
#   deploy/demo.sh --hosts 10 [--no-build]
#   deploy/demo.sh clean      ends and removes whatever the demo made
#
#   --short     fewer steps: under a minute, for CI
#   --keep      leave it running at the end, and say how to look around
#   --hosts 10  another one: ten machines (namespaces: root alone can make them) join over TLS; a gang trains over all of
#               them; two clusters, three users in two teams, a host that dies, one that is cut off, a rotation, a move
#   --no-build  with the programs of build/release as they are
#
# The first time it installs what is missing and builds (deploy/setup.sh, deploy/build.sh). Exit 1: something that the
# summary asserts did not hold. Ctrl+C ends it and everything it started.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh

build=1 hosts=0 arguments=()
if [[ "${1:-}" == --hosts ]]; then
  [[ "${2:-}" == 10 ]] || die "--hosts takes 10" "deploy/demo.sh --hosts 10 [--no-build]. Nothing was done."
  hosts=10
  shift 2
fi
for argument in "$@"; do
  case "$argument" in
    --no-build) build=0 ;;
    clean) build=0 arguments+=("$argument") ;;
    --short | --keep) arguments+=("$argument") ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "there is no '$argument'" "deploy/demo.sh [--short] [--keep] [--no-build], or deploy/demo.sh clean. Nothing was done." ;;
  esac
done
# What the demo runs, and what its end proposes to try next.
if ((build)); then deploy/build.sh musterd muster-agent muster-shim muster muster-trainer muster-sandbox muster-sim; fi
export MUSTER_BIN_DIR=${MUSTER_BIN_DIR:-$PWD/build/release/bin}
if ((hosts)); then
  MUSTER_PYTHON=$(muster_python_env)/bin/python3
  export MUSTER_PYTHON
  PYTHONPATH=bench exec /usr/bin/python3 -B bench/ten_hosts.py --demo "${arguments[@]}"
fi
exec /usr/bin/python3 -B deploy/demo "${arguments[@]}" --cache "$MUSTER_CACHE_DIR/demo" --python "$(muster_python_env)/bin/python3"
