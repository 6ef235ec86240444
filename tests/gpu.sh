#!/usr/bin/env bash
# The tests that need a GPU: our kernels and FlashAttention against ATen's plain operations, and one-rank training there against
# transformers. To be run after deploy/build.sh; without a GPU all of them are skipped, and counted.
#
#   tests/gpu.sh
#
# Ends with one table, and exits 1 if anything failed.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit
source deploy/common.sh
python=$(muster_python_env)/bin/python
program=build/release/tests/trainer_engine_test
[[ -x $program ]] || die "$program isn't built; run deploy/build.sh first"
reports=$PWD/build/reports
mkdir -p "$reports"
rm -f "$reports"/gpu-*.xml
export MUSTER_TRAINER_BIN=$PWD/build/release/bin/muster-trainer MUSTER_PYTHON=$python PYTHONDONTWRITEBYTECODE=1
"$program" --gtest_filter='Fused.*/gpu:Flash.*' --gtest_output="xml:$reports/gpu-kernels.xml"
"$python" -m pytest -q -p no:cacheprovider --junitxml "$reports/gpu-training.xml" trainer/tests/test_gpu.py
"$python" - "$reports" <<'TABLE'
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

failed = 0
print(f"{'test':<90} {'s':>7}  result")
for report in sorted(Path(sys.argv[1]).glob("gpu-*.xml")):
    for case in tree.parse(report).iter("testcase"):
        bad, skip = case.find("failure") is not None or case.find("error") is not None, case.find("skipped") is not None
        failed += bad
        result = "FAILED" if bad else "skipped" if skip else "passed"
        print(f"{case.get('classname') + '.' + case.get('name'):<90} {float(case.get('time') or 0):>7.2f}  {result}")
sys.exit(1 if failed else 0)
TABLE
