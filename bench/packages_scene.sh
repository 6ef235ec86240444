#!/bin/bash
# What bench/packages.py does on a machine that systemd has booted: installs the packages in /muster/debs/old, serves a network with the master
# key in systemd's hands, lets a host join, runs three jobs of an ordinary user, installs the packages in /muster/debs/new over the old ones, purges all.
# Prints a line a fact: FACT NAME VALUE.
set -euo pipefail
fact() { printf 'FACT %s %s\n' "$1" "$2"; }
eventually() {  # WHAT SECONDS COMMAND…
  local what=$1 end=$((SECONDS + $2))
  shift 2
  until "$@" > /dev/null 2>&1; do
    ((SECONDS < end)) || { echo "waited in vain for $what" >&2; journalctl --no-pager -n 40 -u musterd -u muster-agent >&2; exit 1; }
    sleep 0.1
  done
}
install_debs() {  # DIR
  apt-get install -q -y --no-install-recommends "$1"/*.deb > /var/log/scene-apt.log 2>&1 || { tail -20 /var/log/scene-apt.log >&2; exit 1; }
}
export DEBIAN_FRONTEND=noninteractive MUSTER_SERVER=unix:///run/muster/musterd.sock
programs=(musterd muster-agent muster muster-exporter python3-muster-runtime)
trainer=no
if compgen -G '/muster/debs/new/muster-trainer_*' > /dev/null; then trainer=yes programs+=(muster-trainer); fi

install_debs /muster/debs/old
fact installed "$(dpkg-query -W -f '${db:Status-Status}\n' "${programs[@]}" | grep -c '^installed$') of ${#programs[@]}"
fact user "$(getent passwd muster | cut -d: -f1,6)"
systemctl start musterd muster-agent  # not configured: their conditions say no, and nothing fails
fact before_configuration "$(systemctl is-active musterd muster-agent | sort -u | tr '\n' ';')"

useradd --create-home ann
install -d -m 0755 /srv/storage
install -d -m 0700 -o ann /srv/storage/ann
devices='flavour: cpu-slot, gpus: 4, cpus: 4, memory: 4GiB, disk: 10GiB'
cat > /etc/muster/musterd.yaml <<END
listen: unix:///run/muster/musterd.sock
data_dir: /var/lib/muster
clusters: /etc/muster/clusters.yaml
queues: /etc/muster/queues.yaml
tls:
  listen: 127.0.0.1:17420
  join: 127.0.0.1:17421
  addresses: ["127.0.0.1:17420"]
END
cat > /etc/muster/clusters.yaml <<END
skus: {slots: {$devices, declared: true}}
storages: {shared: {path: "/srv/storage/{user}", clusters: [lab]}}
clusters: [{name: lab, sku: slots, job_storage: shared, topology: {b1: {r1: [h1]}}}]
END
echo 'queues: [{name: research, submit: ["*"]}]' > /etc/muster/queues.yaml
echo "{$devices}" > /etc/muster/host.yaml
echo 'OPTIONS="--inventory /etc/muster/host.yaml"' > /etc/default/muster-agent

# As docs/install.md says.
install -d -m 0700 /etc/credstore.encrypted
od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' | systemd-creds encrypt --name=musterd.master-key - /etc/credstore.encrypted/musterd.master-key 2> /dev/null
systemctl enable --now -q musterd
eventually "musterd's first answer" 30 muster ping
read -ra join < <(muster host token new lab/h1)
joined=$("${join[@]}" 2> /var/log/scene-join.log) || { cat /var/log/scene-join.log >&2; exit 1; }
fact joined "$joined"
up() { muster host list -o json | grep -q HOST_UP; }
fact enabled_and_up "$(systemctl is-enabled muster-agent) $(up && echo up || echo away)"
fact shut_in "$(grep -E '^(NoNewPrivs|Seccomp|CapEff):' "/proc/$(systemctl show -P MainPID musterd)/status" | tr -s '\t\n' ' ')"

as_ann() { setpriv --reuid ann --regid ann --clear-groups env HOME=/home/ann "$@"; }
state() { as_ann muster show "$1" -o json | python3 -c 'import json, sys; job = json.load(sys.stdin); print(job["state"], len(job["tasks"][0]["attempts"]))'; }
pids() { pgrep -u ann -f marked-job | sort -n | tr '\n' ' '; }
jobs() { [[ $(pids | wc -w) == "$1" ]]; }
cd /
for n in 1 2 3; do
  as_ann muster submit -y --detach - > /dev/null <<END
name: j$n
queue: research
resources: {gpus: 1, gpu_types: [cpu-slot]}
run: echo kept > \$MUSTER_JOB_DIR/kept; exec -a marked-job sleep 100000
END
done
eventually "three processes of ann" 60 jobs 3
fact runtime "$(as_ann python3 -c 'import muster_runtime; print(muster_runtime.decide())')"

# The upgrade, which starts both units anew.
before=$(pids) mains=$(systemctl show -P MainPID musterd muster-agent)
install_debs /muster/debs/new
fact upgraded "$(dpkg-query -W -f '${Version}\n' "${programs[@]}" | sort -u | tr '\n' ' ')"
anew=0
for unit in musterd muster-agent; do
  main=$(systemctl show -P MainPID "$unit")
  if ((main != 0)) && ! grep -qx "$main" <<< "$mains"; then anew=$((anew + 1)); fi
done
fact units_started_anew "$anew of 2"
eventually "the host to be up again" 30 up
fact same_pids "$([[ $(pids) == "$before" ]] && echo yes || echo no)"
fact states "$(for n in 1 2 3; do state "$n"; done | sort -u | tr '\n' ';')"
systemctl restart muster-agent
eventually "the host to be up once more" 30 up
fact same_pids_after_a_restart "$([[ $(pids) == "$before" ]] && echo yes || echo no)"

if [[ $trainer == yes ]]; then
  # The environment that muster-trainer-setup would make for five gigabytes is this machine's; what the trainer writes to it goes.
  install -d /run/upper /run/work /var/lib/muster-trainer/python
  mount -t overlay -o lowerdir=/muster/python,upperdir=/run/upper,workdir=/run/work overlay /var/lib/muster-trainer/python
  fact trainer "$(/usr/lib/muster/bin/muster-trainer --version) prepare: $(/usr/lib/muster/bin/muster-trainer prepare --help > /dev/null; echo $?)"
  umount /var/lib/muster-trainer/python
fi

for n in 1 2 3; do as_ann muster cancel "$n" -y > /dev/null; done
eventually "the jobs' end" 60 jobs 0
kept() { find /srv/storage -name kept | wc -l; }
files=$(kept)
apt-get purge -q -y "${programs[@]}" > /var/log/scene-purge.log 2>&1
fact job_files_kept "$(kept) of $files"
fact left "$(find /usr/lib/muster /usr/bin/muster* /usr/sbin/muster* /lib/systemd/system/muster* /etc/systemd/system -name '*muster*' 2> /dev/null | wc -l)"
fact store "$([[ -e /var/lib/muster/muster.db ]] && echo stays || echo gone)"
