#!/usr/bin/env bash
# Sets up, builds, and runs all tests: unit tests, sanitizer builds, whole-system tests, the trainer's, the demo in its short form.
#
#   tests/run.sh [--fast] [--within SECONDS]
#
# --fast leaves out the sanitizer builds and the demo. --within: sanitizer builds that wouldn't end in time are skipped, and counted so.
#
# Ends with one line: N passed, N failed, N skipped. Exit 1 if anything failed. Reports of each part lie in build/reports.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit
source deploy/common.sh

fast=no within=
while (($#)); do
  case "$1" in
    --fast) fast=yes ;;
    --within) [[ ${2-} =~ ^[0-9]+$ ]] || die "--within wants seconds"; within=$2; shift ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "$1: no such option (see tests/run.sh --help)" ;;
  esac
  shift
done

reports=$PWD/build/reports
rm -rf "$reports"
mkdir -p "$reports"
: > "$reports/parts"

# part NAME LIMIT_S COMMAND…: a part that writes a JUnit report of its own; one that ends badly without failures in it counts as one.
part() {
  local name=$1 limit_s=$2 code=0
  shift 2
  say "== $name"
  local began=$SECONDS
  # SIGINT, to the part alone: pytest and the demo end what they started. Ctrl+C reaches them, too.
  timeout --foreground --signal=INT --kill-after=30 "$limit_s" "$@" < /dev/null || code=$?
  say "== $name: $((SECONDS - began)) s, exit $code"
  echo "$name $code" >> "$reports/parts"
}

# build_within PRESET TARGET…: 124 where no time is left for it, or it ran out of it.
build_within() {
  [[ $within ]] || { deploy/build.sh --preset "$@"; return; }
  local left=$((within - SECONDS - 420))  # the tests, and what is run again
  ((left >= 60)) || return 124
  timeout --kill-after=20 "$left" deploy/build.sh --preset "$@"  # in a group of its own: ninja ends with it
}

# not_run NAME WHY
not_run() {
  printf '<testsuite><testcase name="%s"><skipped message="%s"/></testcase></testsuite>\n' "$1" "$2" > "$reports/$1.xml"
  echo "$1 0" >> "$reports/parts"
}

deploy/build.sh || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
python=$(muster_python_env)/bin/python
export MUSTER_BIN_DIR=$PWD/build/release/bin
export MUSTER_TRAINER_BIN=$MUSTER_BIN_DIR/muster-trainer
export MUSTER_PYTHON=$python
export PYTHONDONTWRITEBYTECODE=1

part unit-release 900 tests/unit.sh release "$reports/unit-release.xml"
part lint 300 tests/lint.sh --tidy-seconds 60 --report "$reports/lint.xml"
part arrows 60 "$python" -m pytest -q -p no:cacheprovider --junitxml "$reports/arrows.xml" tests/arrows.py tests/documents.py tests/packages.py tests/closing_line.py
# Several files at once: much of a test is waiting, for a rank or for Python to start, or for what a daemon does in time.
part trainer 2100 "$python" -m pytest -q -n 2 --dist loadfile -p no:cacheprovider --junitxml "$reports/trainer.xml" trainer/tests
part python 700 "$python" -m pytest -q -n 2 --dist loadfile -p no:cacheprovider --junitxml "$reports/python.xml" python/tests
part exporter 120 "$python" -m pytest -q -p no:cacheprovider --junitxml "$reports/exporter.xml" exporter/tests
part system 1800 "$python" -m pytest -q -n 4 --dist loadfile -p no:cacheprovider --junitxml "$reports/system.xml" tests/system
if [[ $fast == no ]]; then
  part demo 420 deploy/demo.sh --short
  source tests/sanitized.sh
  for preset in asan tsan; do
    declare -n targets=${preset}_tests
    code=0
    build_within "$preset" "${targets[@]}" || code=$?
    case $code in
      0) part "unit-$preset" 1200 tests/unit.sh "$preset" "$reports/unit-$preset.xml" "${targets[@]}" ;;
      124) not_run "unit-$preset" "it couldn't be built within ${within} s" ;;
      *) echo "unit-$preset 1" >> "$reports/parts" ;;
    esac
  done
fi
python3 tests/again.py "$reports"
python3 tests/summary.py "$reports"
