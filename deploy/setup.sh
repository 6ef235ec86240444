#!/usr/bin/env bash
# Makes this machine able to build and run Muster: Debian packages, and the Python environment with torch. Prints the
# environment's path on stdout, everything else on stderr. Asks for root and network only when something is missing; a
# second run needs neither and takes under a second.
#
#   deploy/setup.sh [--no-trainer] [--fuzz] [--packages] [--check]
#
#   --no-trainer  without the Python environment: everything but muster-trainer builds from Debian's packages alone
#   --fuzz        also clang and its sanitizer runtimes, for the fuzzers
#   --packages    also what deploy/packages.sh and bench/run.sh packages take: debhelper, lintian, debootstrap
#   --check       install nothing; exit 1 and say what is missing
#
# With the environment comes nvcc (deploy/requirements-cuda.txt, 264 MB); where it can't be had the trainer is built without its GPU kernels.
#
# The environment lies in ${MUSTER_CACHE:-${XDG_CACHE_HOME:-~/.cache}/muster}/py-HASH, HASH being of deploy/requirements.txt.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh

PACKAGES=(build-essential g++ cmake ninja-build ccache mold pkg-config libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev
  protobuf-compiler libabsl-dev libyaml-cpp-dev libspdlog-dev libsqlite3-dev libmimalloc-dev libgloo-dev libgtest-dev libgmock-dev
  libbenchmark-dev libcivetweb-dev libssl-dev libsodium-dev libcurl4-openssl-dev libcli11-dev nlohmann-json3-dev tzdata python3-venv git iproute2 libcap2-bin)
FUZZ_PACKAGES=(clang-14 libclang-rt-14-dev)
DEBIAN_PACKAGES=(debhelper dpkg-dev lintian debootstrap)
ENV_DISK_MIB=12288      # torch with its CUDA parts: 4.7 GB installed, as much again while it is unpacked
PACKAGES_DISK_MIB=2048

trainer=1 check=0
for argument in "$@"; do
  case "$argument" in
    --no-trainer) trainer=0 ;;
    --fuzz) PACKAGES+=("${FUZZ_PACKAGES[@]}") ;;
    --packages) PACKAGES+=("${DEBIAN_PACKAGES[@]}") ;;
    --check) check=1 ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "$argument: no such option (see deploy/setup.sh --help)" ;;
  esac
done

command -v dpkg-query > /dev/null || die "this is no Debian or relative of it; Muster is built and tested on Debian 12"
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | awk '$1 == "installed" {print $2}')
missing=()
for package in "${PACKAGES[@]}"; do
  grep -qxF "$package" <<< "$installed" || missing+=("$package")
done
env_dir=$(muster_python_env)
make_env=0
if ((trainer)) && [[ ! -e $env_dir/.complete ]]; then make_env=1; fi

# Everything that could stop us is checked before anything is changed.
if ((check)); then
  ((${#missing[@]} == 0)) || say "missing packages: ${missing[*]}"
  ((make_env == 0)) || say "missing: the Python environment $env_dir"
  ((${#missing[@]} == 0 && make_env == 0)) || exit 1
fi
as_root=()
if ((${#missing[@]})); then
  if ((EUID != 0)); then
    if command -v sudo > /dev/null && { sudo -n true 2> /dev/null || [[ -t 0 ]]; }; then
      as_root=(sudo)
    else
      die "these Debian packages are missing, and installing them needs root:" \
        "  ${missing[*]}" \
        "Let root run:  apt-get install -y ${missing[*]}" \
        "and start this again. Nothing was changed."
    fi
  fi
  need_disk / $PACKAGES_DISK_MIB "the Debian packages"
fi
if ((make_env)); then
  mkdir -p "$MUSTER_CACHE_DIR" 2> /dev/null || die "$MUSTER_CACHE_DIR can't be made; name another place in MUSTER_CACHE"
  [[ -w $MUSTER_CACHE_DIR ]] || die "$MUSTER_CACHE_DIR can't be written; name another place in MUSTER_CACHE"
  need_disk "$MUSTER_CACHE_DIR" $ENV_DISK_MIB "the Python environment with torch" "Another place: MUSTER_CACHE=DIR deploy/setup.sh"
fi

if ((${#missing[@]})); then
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive timeout 300 \
      apt-get -o APT::Update::Error-Mode=any -o Acquire::Retries=2 update > "$log" 2>&1; then
    tail -5 "$log" >&2
    die "Debian's package lists can't be read: is there a network? (apt-get update, above.) Nothing was changed."
  fi
  if ! timed "installing packages" 1200 "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -o Acquire::Retries=3 install -y --no-install-recommends "${missing[@]}"; then
    tail -20 "$log" >&2
    die "apt-get could not install the packages; its last lines are above"
  fi
fi

if ((make_env)); then
  # One at a time: two builds that start together make it once.
  exec 8> "$MUSTER_CACHE_DIR/.setup.lock"
  flock -w 1800 8 || die "another setup has held $MUSTER_CACHE_DIR/.setup.lock for 30 minutes"
fi
if ((make_env)) && [[ ! -e $env_dir/.complete ]]; then
  log=$(mktemp)
  scratch=$MUSTER_CACHE_DIR/tmp.$$
  trap 'rm -rf "$log" "$scratch"' EXIT
  mkdir -p "$scratch"
  rm -rf "$env_dir"
  /usr/bin/python3 -m venv "$env_dir" > "$log" 2>&1 || { tail -5 "$log" >&2; die "python3 -m venv $env_dir failed; its last lines are above"; }
  # The smallest requirement first: whether packages can be had is known in seconds, before gigabytes are asked for.
  probe=$(grep -m1 '^safetensors==' deploy/requirements.txt)
  if ! TMPDIR=$scratch timeout 120 "$env_dir/bin/pip" download --quiet --no-deps --retries 1 --dest "$scratch" "$probe" > "$log" 2>&1; then
    tail -3 "$log" >&2
    rm -rf "$env_dir"
    die "Python packages can't be had: is there a network? (pip download $probe, above.)" \
      "Without the trainer everything else builds:  deploy/setup.sh --no-trainer; deploy/build.sh --no-trainer"
  fi
  if ! TMPDIR=$scratch timed "installing torch and its relatives into $env_dir" 3000 "$log" \
      "$env_dir/bin/pip" install --no-input --no-cache-dir --progress-bar off -r deploy/requirements.txt; then
    tail -20 "$log" >&2
    rm -rf "$env_dir"
    die "pip could not install deploy/requirements.txt; its last lines are above"
  fi
  touch "$env_dir/.complete"
fi

# The compiler of the trainer's GPU kernels. Without it everything builds but those.
if ((trainer && check == 0)); then
  nvcc_mark=$env_dir/nvcc/.complete-$(sha256sum deploy/requirements-cuda.txt | cut -c1-12)
  if [[ ! -e $nvcc_mark && -w $env_dir ]]; then
    exec 8> "$MUSTER_CACHE_DIR/.setup.lock"
    flock -w 1800 8 || die "another setup has held $MUSTER_CACHE_DIR/.setup.lock for 30 minutes"
  fi
  if [[ ! -e $nvcc_mark && -w $env_dir ]]; then
    log=$(mktemp)
    rm -rf "$env_dir/nvcc"
    if timed "installing nvcc into $env_dir/nvcc" 600 "$log" \
        "$env_dir/bin/pip" install --no-input --no-cache-dir --no-deps --retries 1 --timeout 10 --progress-bar off --target "$env_dir/nvcc" -r deploy/requirements-cuda.txt; then
      touch "$nvcc_mark"
    else
      tail -3 "$log" >&2
      say "nvcc can't be had: the trainer is built without its GPU kernels"
    fi
    rm -f "$log"
  fi
fi

if ((trainer)); then echo "$env_dir"; fi
