#!/usr/bin/env bash
# The unit tests of a preset that is built: all of them, or those named. Writes a JUnit report of the programs, and beside it, in a
# folder without the ".xml", one of each program's cases.
#
#   tests/unit.sh PRESET REPORT.xml [NAME…]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
preset=$1 report=$2
shift 2
export GTEST_OUTPUT=xml:${report%.xml}/
chosen=()
if (($#)); then chosen=(-R "^($(IFS='|'; echo "$*"))\$"); fi
# Three at once on two cores: the tests of processes and daemons mostly wait.
exec ctest --test-dir "build/$preset" -j3 --output-on-failure --no-tests=error --output-junit "$report" "${chosen[@]}"
