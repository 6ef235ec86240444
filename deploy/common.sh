# shellcheck shell=bash
# Sourced by the scripts of deploy/, tests/ and bench/: messages, places, a step that shows its progress.

MUSTER_CACHE_DIR=${MUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/muster}
export CCACHE_DIR=${CCACHE_DIR:-$MUSTER_CACHE_DIR/ccache}
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
# A fresh clone anywhere finds what another clone compiled: paths below the checkout are hashed relative to it.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true

# say LINE…: for people, to stderr.
say() { printf '%s\n' "$@" >&2; }

# die LINE…: says why, exits 1.
die() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  shift
  if (($#)); then printf '  %s\n' "$@" >&2; fi
  exit 1
}

# Path of the Python environment for these requirements.
muster_python_env() { echo "$MUSTER_CACHE_DIR/py-$(sha256sum deploy/requirements.txt | cut -c1-12)"; }

# Path of the Python environment with the formatters and linters.
muster_lint_env() { echo "$MUSTER_CACHE_DIR/lint-$(sha256sum deploy/requirements-lint.txt | cut -c1-12)"; }

# need_disk DIR MIB WHAT [REMEDY]: ends the script unless that much is free there.
need_disk() {
  local free_mib
  free_mib=$(df -Pm "$1" | awk 'NR == 2 {print $4}')
  ((free_mib >= $2)) || die "$3 needs $(($2 / 1024)) GiB free in $1; there are $((free_mib / 1024)).$((free_mib % 1024 * 10 / 1024)) GiB. Nothing was changed." "${@:4}"
}

# timed WHAT LIMIT_S LOG COMMAND…: runs it with its output in LOG, shows the time that passes on a terminal, ends it after LIMIT_S.
timed() {
  local what=$1 limit_s=$2 log=$3 began=$SECONDS job code=0
  shift 3
  timeout "$limit_s" "$@" > "$log" 2>&1 < /dev/null &
  job=$!
  # Ctrl+C doesn't reach what runs behind `timeout`: it is told here, and waited for.
  trap 'kill -TERM "$job" 2> /dev/null; wait "$job" 2> /dev/null; exit 130' INT TERM HUP
  while kill -0 "$job" 2> /dev/null; do
    if [[ -t 2 ]]; then printf '\r%s  %d s  %.60s\033[K' "$what" $((SECONDS - began)) "$(tail -n1 "$log" | tr -dc '[:print:]')" >&2; fi
    sleep 0.5
  done
  wait "$job" || code=$?
  trap - INT TERM HUP
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
  if ((code == 124)); then say "$what: ended after $limit_s s"; else say "$what: $((SECONDS - began)) s"; fi
  return "$code"
}
