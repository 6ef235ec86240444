#!/usr/bin/env bash
# Packs the trainer and its GPU tests for a machine that has a GPU and torch, but no compiler, no registry and nothing of ours.
#
#   deploy/gpu-bundle.sh [--peer] [FOLDER]        default: build/gpu-bundle
#
#   --peer  also Liger's kernels (bench/requirements-gpu.txt), for the loss of what is compared with; wants the network
#
# FOLDER gets bin/, lib/ (what the programs need beside torch's libraries and those of C and C++), tests/, tokens/, pairs/ and site/ (pytest,
# for a python without it). There: python3 FOLDER/tests/gpu_cases.py [--list] [--case TEXT], with a python that can import the same version
# of torch; and python3 FOLDER/tests/bench_gpu.py [--list] [--case TEXT] for speed, where transformers is installed beside its own. All at
# once, for a machine that is lent for minutes: python3 FOLDER/tests/gpu_all.py --within SECONDS OUT. To be run after deploy/build.sh. Fails
# above 64 MiB.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh
peer=0
case "${1:-}" in
  -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
  --peer) peer=1; shift ;;
esac
MOST_MIB=64
folder=${1:-$PWD/build/gpu-bundle}
python=$(muster_python_env)/bin/python
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
trainer=build/release/bin/muster-trainer tests=build/release/tests/trainer_engine_test
for program in "$trainer" "$tests"; do
  [[ -x $program ]] || die "$program isn't built; run deploy/build.sh first"
done

rm -rf "$folder"
mkdir -p "$folder"/{bin,lib,tests,site}
for program in "$trainer" "$tests"; do
  objcopy --strip-debug "$program" "$folder/bin/$(basename "$program")"
  # Ours to bring is what ldd finds outside torch's wheels, but for the C library, and for GCC's, which torch needs there as well.
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | grep -v "^$packages/" |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s)\.so\.[0-9]+)$' | xargs -r cp -Lt "$folder/lib"
done
cp trainer/tests/*.py "$folder/tests"
for package in pytest _pytest pluggy iniconfig packaging pygments; do
  cp -r "$packages/$package" "$folder/site"
done
find "$folder/site" -name __pycache__ -prune -exec rm -rf {} +
if ((peer)); then
  "$python" -m pip install -q --no-deps --no-compile --target "$folder/peer" -r bench/requirements-gpu.txt
fi
PYTHONPATH=trainer/tests PYTHONDONTWRITEBYTECODE=1 "$python" -c 'import pathlib, sys, harness, preferences
folder = pathlib.Path(sys.argv[1])
harness.make_tokens(folder / "tokens")
preferences.make_pairs(folder / "pairs")' "$folder"
rm -r "$folder/tokens-short"  # what some of them were made of
{
  echo "muster $(git describe --always --dirty 2> /dev/null || echo 'without its history'), $("$trainer" --version)"
  "$python" -c 'import torch; print(f"built with torch {torch.__version__}, CUDA {torch.version.cuda}")'
} > "$folder/bundle"
size_mib=$(du -sm --apparent-size "$folder" | cut -f1)
((size_mib <= MOST_MIB)) || die "$folder has $size_mib MiB, more than $MOST_MIB: leave something out"
say "$folder: $size_mib MiB"
