#!/usr/bin/env bash
# Builds Debian packages in build/packages: musterd, muster-agent, muster (the command line), muster-exporter, python3-muster-runtime and
# muster-trainer.
#
#   deploy/packages.sh [--no-trainer] [--version V]
#
#   --no-trainer  without muster-trainer, which needs the Python environment with torch
#   --version V   of the packages; default: the project's, and the time of the last commit
#
# Hardened as Debian's own (dpkg-buildflags hardening=+all). Needs what deploy/setup.sh --packages installs. The packages say which of
# Debian's libraries they need; muster-trainer takes its torch from an environment that muster-trainer-setup makes on the host.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh

trainer=yes version=
while (($#)); do
  case "$1" in
    --no-trainer) trainer=no ;;
    --version) (($# > 1)) || die "--version wants a version"; version=$2; shift ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "$1: no such option (see deploy/packages.sh --help)" ;;
  esac
  shift
done
for tool in dh dpkg-buildpackage; do
  command -v "$tool" > /dev/null || die "$tool is missing" "sudo apt-get install debhelper dpkg-dev, or: deploy/setup.sh --packages"
done
if [[ $trainer == yes ]]; then
  MUSTER_PACKAGE_PYTHON=$(deploy/setup.sh)
  export MUSTER_PACKAGE_PYTHON
fi
project=$(sed -n 's/^project(muster VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
committed=$(git log -1 --format=%cd --date=format:%Y%m%d.%H%M%S 2> /dev/null || date +%Y%m%d.%H%M%S)
version=${version:-$project+$committed}

out=$PWD/build/packages tree=$PWD/build/packages/tree
mkdir -p "$tree"
need_disk "$tree" 2048 "a build of packages"
find "$tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  if [[ -e $file ]]; then printf '%s\0' "$file"; fi
done | tar --null -T - -c | tar -x -C "$tree"  # times are kept: what didn't change isn't compiled again
rm -rf "$tree/debian"
cp -r deploy/debian "$tree/debian"
cp deploy/systemd/musterd.service "$tree/debian/musterd.service"
cp deploy/systemd/muster-agent.service "$tree/debian/muster-agent.service"
cp deploy/systemd/muster-exporter.service "$tree/debian/muster-exporter.service"
name=${DEBFULLNAME:-"Muster's authors"} address=${DEBEMAIL:-muster@example.org}
cat > "$tree/debian/changelog" <<END
muster ($version) unstable; urgency=medium

  * Built by deploy/packages.sh.

 -- $name <$address>  $(git log -1 --format=%cD 2> /dev/null || date -R)
END
log=$out/build.log
cd "$tree"
export MUSTER_PACKAGE_TRAINER=$trainer
CCACHE_BASEDIR=$tree DEB_BUILD_OPTIONS="nocheck noautodbgsym parallel=2" \
  timed "building packages" 7200 "$log" dpkg-buildpackage -b -uc -us -d -nc ||
  { tail -25 "$log" >&2; die "the packages could not be built; the last lines are above, all of them in $log"; }
for deb in "$out"/*_"${version}"_{amd64,all}.deb; do
  if [[ -e $deb ]]; then printf '%s\n' "$deb"; fi
done
