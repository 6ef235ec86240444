#!/usr/bin/env bash
# Row `gpu`, by itself: the trainer on this machine's GPU against transformers. Without a GPU it says so and measures nothing.
#
#   bench/trainer_gpu.sh [--quick]
exec "$(dirname "$(readlink -f "$0")")/run.sh" gpu "$@"
