"""Attacks for rights that the job's owner hasn't: root's, other groups', the kernel's, more of the machine."""

import ctypes
import mmap
import os
import resource
import signal
import stat
import subprocess
from pathlib import Path

from base import (
    TARGETS,
    attack,
    call,
    creates_in,
    first,
    in_child,
    lists,
    opens,
    overwrites,
    own_user_namespace,
    reads,
)


def output_of(*words) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    return f"{words}: {done.stdout[:60]}" if done.returncode == 0 else ""


@attack
def setuid_file():
    return output_of(f"{TARGETS['public']}/setuid-cat", TARGETS["root_secret"])


@attack
def setgid_file():
    return output_of(f"{TARGETS['public']}/setgid-cat", TARGETS["group_secret"])


@attack
def file_with_capabilities():
    return output_of(f"{TARGETS['public']}/capable-cat", TARGETS["root_secret"])


@attack
def groups_of_the_agent():
    return reads(TARGETS["group_secret"])


@attack
def setuid_0():
    def act():
        call("setresuid", 0, 0, 0)
        return f"uid {os.getuid()}"

    return in_child(act)


@attack
def setgid_0():
    def act():
        call("setresgid", 0, 0, 0)
        return f"gid {os.getgid()}"

    return in_child(act)


@attack
def setgroups_of_the_agent():
    def act():
        os.setgroups([TARGETS["group"]])
        return reads(TARGETS["group_secret"])

    return in_child(act)


@attack
def another_users_uid():
    def act():
        call("setresuid", *[TARGETS["ann_uid"]] * 3)
        return reads(TARGETS["ann_secret"])

    return in_child(act)


@attack
def capabilities():
    status = Path("/proc/self/status").read_text()
    held = [
        line for line in status.splitlines() if line.startswith("Cap") and int(line.split()[1], 16)
    ]
    return f"{held}" if held else ""


@attack
def new_privileges():
    """Where this is off, any setuid file of the host's is a way up."""
    return (
        "no_new_privs is off" if "NoNewPrivs:\t0" in Path("/proc/self/status").read_text() else ""
    )


@attack
def user_namespace_reads_roots():
    def act():
        own_user_namespace()
        return reads(TARGETS["root_secret"])

    return in_child(act)


def unmount(place: str, shows: str):
    def act():
        if os.getuid() != 0:
            own_user_namespace()
        else:
            call("unshare", 0x00020000)
        while True:
            try:
                call("umount2", place, 2)
            except OSError:
                return reads(shows)

    return in_child(act)


@attack
def unmount_private_tmp():
    return unmount("/tmp", TARGETS["tmp_file"])


@attack
def unmount_hidden_state():
    return unmount(TARGETS["state"], f"{TARGETS['state']}/state_id")


@attack
def unmount_private_proc():
    return unmount("/proc", f"/proc/{TARGETS['agent_pid']}/comm")


@attack
def mounts_a_file_system():
    call("mount", "none", TARGETS["propagates"], "tmpfs", 0, None)
    call("umount2", TARGETS["propagates"], 2)
    return f"mounted at {TARGETS['propagates']}"


@attack
def mounts_reach_the_host():
    """A mount in a user namespace of its own that the host sees."""

    def act():
        if os.getuid() != 0:
            own_user_namespace()
        call("mount", "none", TARGETS["propagates"], "tmpfs", 0, None)
        creates_in(TARGETS["propagates"])
        outside = Path(f"/proc/{TARGETS['agent_pid']}/mountinfo").read_text()
        call("umount2", TARGETS["propagates"], 2)
        return "the host sees the mount" if TARGETS["propagates"] in outside else ""

    return in_child(act)


@attack
def chroot():
    def act():
        os.chroot(TARGETS["public"])
        return "changed the root"

    return in_child(act)


@attack
def enters_namespaces_of_the_agent():
    def act():
        with open(f"/proc/{TARGETS['agent_pid']}/ns/mnt") as namespace:
            call("setns", namespace.fileno(), 0)
        return reads(TARGETS["tmp_file"])

    return in_child(act)


@attack
def enters_namespaces_of_the_first():
    """Of the process that holds the job's namespaces, which is root's."""

    def act():
        with open("/proc/1/ns/mnt") as namespace:
            call("setns", namespace.fileno(), 0)
        return lists(TARGETS["state"])

    return in_child(act)


@attack
def kernel_settings():
    return overwrites("/proc/sys/kernel/core_pattern")


@attack
def kernel_settings_from_a_user_namespace():
    def act():
        if os.getuid() != 0:
            own_user_namespace()
        return overwrites("/proc/sys/kernel/core_pattern")

    return in_child(act)


@attack
def magic_keys():
    return overwrites("/proc/sysrq-trigger")


@attack
def kernel_memory():
    return first(
        lambda path=path: opens(path, os.O_RDONLY)
        for path in ("/dev/mem", "/dev/kmsg", "/proc/kcore")
    )


@attack
def devices_that_were_not_granted():
    return first(
        lambda path=path: opens(path, os.O_RDWR)
        for path in (*TARGETS["disks"], "/dev/kvm", "/dev/fuse", "/dev/net/tun")
    )


@attack
def makes_a_device():
    path, major, minor = "disk", *TARGETS["disk_number"]
    os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(major, minor))
    try:
        return opens(path, os.O_RDONLY)
    finally:
        os.unlink(path)


@attack
def makes_a_device_in_a_user_namespace():
    def act():
        if os.getuid() != 0:
            own_user_namespace()
        return makes_a_device()

    return in_child(act)


@attack
def kernel_module():
    nothing = ctypes.create_string_buffer(b"no module", 16)
    try:
        call("syscall", 175, nothing, 9, b"")  # init_module
    except OSError as error:
        if error.errno in (1, 38):
            raise
        return f"the kernel looked at it: {error}"


@attack
def host_name():
    call("sethostname", os.uname().nodename, len(os.uname().nodename))
    return "set the host's name"


@attack
def raw_ports():
    call("iopl", 3)
    return "may write to the machine's ports"


@attack
def accounting():
    call("acct", None)
    return "switched the accounting of processes"


@attack
def real_time():
    def act():
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return "runs before all others"

    return in_child(act)


@attack
def better_nice():
    def act():
        os.setpriority(os.PRIO_PROCESS, 0, -10)
        return "goes before others"

    return in_child(act)


@attack
def never_killed_for_memory():
    path = Path("/proc/self/oom_score_adj")
    before = path.read_text()
    path.write_text("-1000")
    path.write_text(before)
    return "is spared when memory is short"


@attack
def hard_limits():
    resource.setrlimit(resource.RLIMIT_RTPRIO, (50, 50))
    return "raised a hard limit"


@attack
def no_limit_of_processes():
    """More processes than --max-processes, each in a session of its own."""
    children, most = [], TARGETS["most_processes"] + 20
    try:
        while len(children) < most:
            child = os.fork()
            if child == 0:
                os.setsid()
                signal.pause()
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
    return f"{len(children)} processes"


@attack
def no_limit_of_memory():
    """In a child, of which the kernel takes it."""
    bound = TARGETS["memory_bytes"]

    def act():
        held = mmap.mmap(-1, 2 * bound)
        for at in range(0, 2 * bound, 4096):
            held[at] = 1
        return f"held {2 * bound} bytes"

    return in_child(act)


@attack
def no_limit_of_memory_in_tmp():
    bound = TARGETS["memory_bytes"]

    def act():
        with open("/tmp/fill", "wb") as file:
            for _ in range(2 * bound >> 20):
                file.write(b"x" * (1 << 20))
        return f"wrote {2 * bound} bytes to memory"

    try:
        return in_child(act)
    finally:
        Path("/tmp/fill").unlink(missing_ok=True)


def own_groups() -> list[str]:
    """Directories of this process's control groups, where /sys/fs/cgroup shows them."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for mount in Path("/proc/self/mountinfo").read_text().splitlines():
            first_part, _, last = mount.partition(" - ")
            kind, _, options = last.split(" ", 2)
            fits = (
                kind == "cgroup2" if not names else kind == "cgroup" and names in options.split(",")
            )
            if fits:
                found.append(first_part.split()[4] + path)
    return found


@attack
def leaves_its_control_group():
    return first(
        lambda group=group: overwrites(f"{os.path.dirname(group)}/cgroup.procs")
        for group in own_groups()
    )


@attack
def raises_limits_of_its_control_group():
    return first(
        lambda group=group, name=name: overwrites(f"{group}/{name}")
        for group in own_groups()
        for name in ("memory.limit_in_bytes", "memory.max", "pids.max", "cgroup.subtree_control")
        if os.path.exists(f"{group}/{name}")
    )


@attack
def ends_anothers_control_group():
    groups = [
        path
        for root in own_groups()
        for path in Path(root).parent.glob("muster-*")
        if str(path) != root
    ]
    return first(
        lambda group=group, name=name: overwrites(group / name)
        for group in groups
        for name in ("cgroup.kill", "cgroup.procs", "cgroup.freeze")
        if (group / name).exists()
    )


@attack
def release_agent():
    """What the kernel would run as root when a group is empty."""
    return first(
        lambda path=path: overwrites(path)
        for path in Path("/sys/fs/cgroup").glob("*/release_agent")
    )


@attack
def keys_of_the_agent():
    libkey = 250  # keyctl
    for ring in (-3, -4, -5):
        try:
            key = call("syscall", libkey, 10, ring, b"user", b"muster-agent", 0)
            text = ctypes.create_string_buffer(64)
            call("syscall", libkey, 11, key, text, 64)
            return f"read the agent's key: {text.value!r}"
        except OSError:
            pass
    return ""


@attack
def inherited_descriptors():
    found = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
    return first(
        lambda fd=fd: f"descriptor {fd}: {os.readlink(f'/proc/self/fd/{fd}')}"
        for fd in found
        if TARGETS["folder"] in os.readlink(f"/proc/self/fd/{fd}")
        and "attacks" not in os.readlink(f"/proc/self/fd/{fd}")
    )


@attack
def environment_of_the_agent():
    return os.environ.get("AGENT_SECRET", "")


@attack
def umask_of_the_agent():
    Path("mine").write_text("")
    mode = os.stat("mine").st_mode
    os.unlink("mine")
    return f"new files have mode {mode:o}" if mode & 0o022 else ""
