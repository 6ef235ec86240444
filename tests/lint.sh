#!/usr/bin/env bash
# Checks the form of the sources: clang-format, ruff, shellcheck, and clang-tidy on what a build knows how to compile.
#
#   tests/lint.sh [--fix] [--all] [--base REV] [--report FILE] [--tidy-seconds N]
#
#   --fix           formats in place, and applies what ruff and clang-tidy can mend by themselves
#   --all           clang-tidy on every file, however long it takes (half an hour); else on lines that changed since REV, for at most N s (120)
#   --base REV      default: where this branch left main; on main itself, the commit before
#   --report FILE   a JUnit report, one case a tool
#
# What clang-tidy finds in a file is kept beside the tools, by what that file and its includes of
# this project hold: what hasn't changed is not looked at again.
#
# The tools come from deploy/requirements-lint.txt into an environment of their own outside the checkout. clang-tidy reads
# build/release/compile_commands.json and the generated headers there: deploy/build.sh first. Exit 1 when anything is found.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh
case " $* " in *" -h "* | *" --help "*) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

env_dir=$(muster_lint_env)
if [[ ! -e $env_dir/.complete ]]; then
  mkdir -p "$MUSTER_CACHE_DIR"
  exec 8> "$MUSTER_CACHE_DIR/.lint.lock"
  flock -w 900 8 || die "another lint has held $MUSTER_CACHE_DIR/.lint.lock for 15 minutes"
fi
if [[ ! -e $env_dir/.complete ]]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  rm -rf "$env_dir"
  /usr/bin/python3 -m venv "$env_dir" > "$log" 2>&1 || { tail -5 "$log" >&2; die "python3 -m venv $env_dir failed; its last lines are above"; }
  if ! timed "installing the linters into $env_dir" 600 "$log" \
      "$env_dir/bin/pip" install --no-input --no-cache-dir --progress-bar off -r deploy/requirements-lint.txt; then
    tail -5 "$log" >&2
    rm -rf "$env_dir"
    die "pip could not install deploy/requirements-lint.txt; its last lines are above"
  fi
  touch "$env_dir/.complete"
fi
PYTHONDONTWRITEBYTECODE=1 exec "$env_dir/bin/python" tests/lint.py "$@"
