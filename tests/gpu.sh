#!/usr/bin/env bash
# The tests that need a GPU, and those for CPUs of the same code: our kernels and FlashAttention against ATen's plain operations, and
# one-rank training there. To be run after deploy/build.sh; without a GPU what needs one is skipped, and counted.
#
#   tests/gpu.sh [--list] [--case TEXT]
#
# Each case is a process of its own and prints a line as it ends; one that crashes is one that failed. Exits 1 if any failed. For a
# machine where nothing can be built: deploy/gpu-bundle.sh.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh
exec "$(muster_python_env)/bin/python" trainer/tests/gpu_cases.py "$@"
