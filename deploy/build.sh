#!/usr/bin/env bash
# Builds Muster: deploy/setup.sh, then the preset's programs in build/PRESET/bin.
#
#   deploy/build.sh [--preset release] [--no-trainer] [TARGET…]
#
# Without targets everything is built, tests included. On a terminal a bar shows how far it is; else a line every 15 s.
# All files that were compiled before come from ccache, which lies outside the checkout.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh

preset=release targets=() setup=() trainer=ON
while (($#)); do
  case "$1" in
    --preset) (($# > 1)) || die "--preset wants a name"; preset=$2; shift ;;
    --no-trainer) setup+=(--no-trainer); trainer=OFF ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) die "$1: no such option (see deploy/build.sh --help)" ;;
    *) targets+=("$1") ;;
  esac
  shift
done
case "$preset" in asan | tsan) trainer=OFF; setup=(--no-trainer) ;; esac

python_env=$(deploy/setup.sh "${setup[@]}")
folder=build/$preset
need_disk . 3072 "a build"
options=()
if [[ $trainer == ON ]]; then options+=(-DMUSTER_TRAINER=ON "-DMUSTER_PYTHON_ENV=$python_env"); else options+=(-DMUSTER_TRAINER=OFF); fi
mkdir -p "$folder"
if ! cmake --preset "$preset" "${options[@]}" > "$folder/configure.log" 2>&1; then
  tail -30 "$folder/configure.log" >&2
  die "cmake could not configure; its last lines are above, all of them in $folder/configure.log"
fi

# ninja's own count of steps, told as a share with the time left.
began=$SECONDS shown=0
jobs=${MUSTER_BUILD_JOBS:-$(nproc)}
available_mib=$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
if ((available_mib / 1700 < jobs)); then jobs=$((available_mib / 1700 > 0 ? available_mib / 1700 : 1)); fi  # a torch file takes 1.7 GB
show() {  # DONE TOTAL
  local passed=$((SECONDS - began)) left=
  if (($1 > 0 && passed > 5)); then left=", about $((passed * ($2 - $1) / $1)) s left"; fi
  if [[ -t 2 ]]; then
    local width=30 filled=$((30 * $1 / $2))
    printf '\rbuild %s%s %3d%% %d/%d %d s%s\033[K' "$(printf '%*s' $filled '' | tr ' ' '#')" "$(printf '%*s' $((width - filled)) '' | tr ' ' '-')" \
      $((100 * $1 / $2)) "$1" "$2" "$passed" "$left" >&2
  elif ((passed >= shown + 15)); then
    say "build $((100 * $1 / $2))% ($1/$2) ${passed} s$left"
    shown=$passed
  fi
}
: > "$folder/build.log"
if ! NINJA_STATUS='@%f/%t@ ' ninja -C "$folder" -j "$jobs" "${targets[@]}" < /dev/null 2>&1 | while IFS= read -r line; do
      printf '%s\n' "$line" >> "$folder/build.log"
      if [[ $line =~ ^@([0-9]+)/([0-9]+)@ ]]; then show "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"; fi
    done; then
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
  grep -A25 -m1 'FAILED:' "$folder/build.log" >&2 || tail -25 "$folder/build.log" >&2
  die "the build failed; the first error is above, all of it in $folder/build.log"
fi
if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
say "built $folder: $((SECONDS - began)) s"
