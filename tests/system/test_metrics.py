"""GET /metrics of a real musterd: what it tells follows what happens, any client may be bad."""

import re
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from local_system import wait_for
from small_system import configure, submit_waiting, wait_started

CONFIGURE = Path(__file__).resolve().parent.parent.parent / "docs" / "configure.md"
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"')
UNITS = (
    "_seconds",
    "_bytes",
    "_devices",
    "_tasks",
    "_hosts",
    "_sessions",
    "_connections",
    "_info",
)  # of gauges; muster_takes_submissions is a yes or no


def parse(text: str) -> tuple[dict[str, str], dict[tuple, float]]:
    """({family: type}, {(name, label, value, …): value}); strict: anything that isn't as Prometheus' text format has it fails."""
    assert text.endswith("\n") and "\n\n" not in text
    types, samples, family = {}, {}, ""
    lines = iter(text[:-1].split("\n"))
    for line in lines:
        if line.startswith("#"):
            family = re.fullmatch(r"# HELP (muster(?:_[a-z]+)+) \S.*\S", line)[1]
            assert family not in types, f"{family} twice"
            types[family] = re.fullmatch(
                rf"# TYPE {family} (counter|gauge|histogram)", next(lines)
            )[1]
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        suffix = name.removeprefix(family)
        assert name.startswith(family) and suffix in (
            ("_bucket", "_sum", "_count") if types[family] == "histogram" else ("",)
        ), line
        pairs = LABEL.findall(labels or "")
        assert ",".join(f'{label}="{of}"' for label, of in pairs) == (labels or ""), line
        assert len({label for label, _ in pairs}) == len(pairs), line
        series = (name, *(word for pair in pairs for word in pair))
        assert series not in samples, f"{line} twice"
        samples[series] = float(value)
    for family, kind in types.items():
        if kind == "counter":
            assert family.endswith("_total") and samples[family,] >= 0
        elif kind == "gauge":
            assert family.endswith((*UNITS, "muster_takes_submissions")), f"{family} has no unit"
        else:
            assert family.endswith("_seconds")
            buckets = [
                (float(series[2]), value)
                for series, value in samples.items()
                if series[0] == f"{family}_bucket"
            ]
            assert buckets == sorted(buckets) and [n for _, n in buckets] == sorted(
                n for _, n in buckets
            ), family
            assert buckets[-1] == (float("inf"), samples[f"{family}_count",]), family
    return types, samples


def start_with_metrics(system) -> int:
    """The port."""
    configure(system)
    with open(system.folder / "etc" / "musterd.yaml", "a") as file:
        file.write("metrics_listen: 127.0.0.1:0\n")
    system.start_musterd()
    for host in ("h01", "h02"):
        system.start_agent("lab", host)
    system.wait_hosts_up({"lab/h01", "lab/h02"})
    return int(
        re.search(
            r" metrics url=http://127\.0\.0\.1:(\d+)/metrics\n",
            system.log_tail("musterd", 100) + "\n",
        )[1]
    )


def get(port: int, path: str = "/metrics", method: str = "GET", timeout_s: float = 20):
    return urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method), timeout=timeout_s
    )


def scrape(port: int) -> dict[tuple, float]:
    with get(port) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parse(response.read().decode())[1]


def queue(samples, what: str, path: str) -> float:
    return samples[f"muster_queue_{what}", "queue", path, "flavour", "cpu-slot"]


def test_a_scrape_follows_what_happens(bare):
    port = start_with_metrics(bare)
    before = wait_for(
        "both agents",
        lambda: (samples := scrape(port))["muster_agent_sessions",] == 2 and samples,
        10,
    )
    assert before["muster_hosts", "cluster", "lab", "state", "up"] == 2
    assert before["muster_devices", "cluster", "lab", "flavour", "cpu-slot", "state", "free"] == 4
    assert (
        queue(before, "guaranteed_devices", "research") == 2
        and queue(before, "used_devices", "research") == 0
    )
    assert (
        before["muster_submissions_total",]
        == before["muster_starts_total",]
        == before["muster_evictions_total",]
        == 0
    )
    assert (
        before["muster_store_bytes", "file", "database"] > 0
        and before["muster_takes_submissions",] == 1
    )

    for n in range(3):
        submit_waiting(bare, f"borrows{n}")
        wait_started(bare, f"borrows{n}", 1)
    running = wait_for(
        "what runs", lambda: (samples := scrape(port))["muster_starts_total",] == 3 and samples, 10
    )
    assert (
        queue(running, "used_devices", "research") == 3
        and queue(running, "borrowed_devices", "research") == 1
    )
    assert (
        queue(running, "running_tasks", "research") == 3
        and queue(running, "waiting_tasks", "research") == 0
    )
    assert running["muster_devices", "cluster", "lab", "flavour", "cpu-slot", "state", "free"] == 1
    assert running["muster_submissions_total",] == 3

    submit_waiting(
        bare, "claims", queue="prod", workers="2"
    )  # what it is guaranteed: somebody has to go
    wait_started(bare, "claims", 2)
    after = wait_for(
        "who was evicted",
        lambda: (
            (samples := scrape(port))["muster_evictions_total",] == 1
            and queue(samples, "waiting_tasks", "research") == 1
            and samples
        ),
        10,
    )
    assert (
        queue(after, "used_devices", "research") == 2
        and queue(after, "used_devices", "prod") == 2
        and queue(after, "waiting_devices", "research") == 1
    )
    for name in (
        "muster_events_committed_total",
        "muster_plans_committed_total",
        "muster_step_duration_seconds_count",
        "muster_commit_duration_seconds_sum",
        "muster_uptime_seconds",
    ):
        assert after[name,] > running[name,] > before[name,] > 0, name
    assert after["muster_plans_refused_total",] == 0
    for series in before:
        assert series in after, f"{series} is gone"
        if series[0].endswith(("_total", "_bucket", "_count", "_sum")):
            assert after[series] >= before[series], series


def test_what_a_scrape_tells_is_what_is_documented(bare):
    with get(start_with_metrics(bare)) as response:
        types = parse(response.read().decode())[0]
    rows = [
        line.split("|")[1]
        for line in CONFIGURE.read_text().splitlines()
        if line.startswith("| `muster_")
        # MetricsTest has those.
        and not any(f"With `{what}:` only" in line for what in ("oidc", "tls"))
    ]
    assert {name for row in rows for name in re.findall(r"`(muster_\w+)", row)} == set(types)


def converse(port: int, request: bytes) -> bytes:
    """What comes back until the other side closes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(request)
            while part := connection.recv(65536):
                answer += part
        except ConnectionError:
            pass  # it was closed on what we still wanted to say
    return answer


def test_bad_clients_do_no_harm(bare):
    port = start_with_metrics(bare)
    status = Path(f"/proc/{bare.processes['musterd'].pid}/status")

    def figure(name):
        return int(re.search(rf"{name}:\s+(\d+)", status.read_text())[1])

    scrape(port)
    threads, memory_kib = figure("Threads"), figure("VmRSS")

    assert converse(port, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").startswith(
        b"HTTP/1.1 200 OK\r\n"
    )
    wanted = {
        b"GET / HTTP/1.1": b"404",
        b"GET /metrics/ HTTP/1.1": b"404",
        b"GET /../../../../etc/passwd HTTP/1.1": b"404",
        b"GET " + b"/" * 4000 + b" HTTP/1.1": b"404",
        b"GET //" + b"/" * 4000 + b"?" + b"x" * 3000 + b" HTTP/1.1": b"404",
        b"DELETE /metrics HTTP/1.1": b"405",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000000": b"405",
        b"PUT /metrics HTTP/1.1\r\nTransfer-Encoding: chunked": b"405",
        b"GET /metrics HTTP/1.1\r\nContent-Length: 100": b"200",
    }
    for line, code in wanted.items():
        assert converse(port, line + b"\r\nHost: x\r\n\r\n").split(b" ", 2)[1] == code, line[:60]
    for nonsense in (
        b"\0" * 4096,
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET * HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 1_000_000,
        b"GET /" + b"x" * 20_000_000,
        b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 20_000_000,
    ):
        assert b" 200 " not in converse(port, nonsense)[:20], nonsense[:30]
    for _ in range(60):  # says nothing, and is gone again
        socket.create_connection(("127.0.0.1", port), timeout=20).close()

    # Two that dawdle hold both threads, for as long as a request may take; then it is others' turn, and musterd serves all along.
    began = time.monotonic()
    slow = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(2)]
    try:
        for connection in slow:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert bare.run(["ping"], timeout_s=10).returncode == 0
        scrape(port)
        assert time.monotonic() - began < 20
    finally:
        for connection in slow:
            connection.close()
    assert figure("Threads") <= threads + 4 and figure("VmRSS") < memory_kib + 30_000
    assert bare.run(["ping"]).returncode == 0 and len(bare.hosts()) == 2

    bare.processes["musterd"].terminate()
    assert bare.processes["musterd"].wait(10) == 0


@pytest.mark.parametrize(
    "listen,words",
    [
        ("0.0.0.0:9464", ["metrics_listen", "no loopback address", "write 127.0.0.1:9464"]),
        ("127.0.0.1:{taken}", ["metrics_listen", "127.0.0.1:", "Name a port that is free"]),
    ],
)
def test_where_metrics_cannot_be_served_musterd_says_so_and_ends(bare, listen, words):
    configure(bare)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with open(bare.folder / "etc" / "musterd.yaml", "a") as file:
            file.write(f"metrics_listen: {listen.format(taken=other.getsockname()[1])}\n")
        assert (
            bare.spawn(
                "musterd",
                [bare.bin_dir / "musterd", "--config", bare.folder / "etc" / "musterd.yaml"],
            ).wait(20)
            == 2
        )
    for word in words:
        assert word in bare.log_tail("musterd"), bare.log_tail("musterd")


def test_without_the_key_nothing_listens(system):
    assert " metrics " not in system.log_tail("musterd", 100)
    inodes = {
        Path(link).readlink().name
        for link in Path(f"/proc/{system.processes['musterd'].pid}/fd").iterdir()
        if link.is_symlink()
    }
    listening = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    assert not [
        words for words in listening if words[3] == "0A" and f"socket:[{words[9]}]" in inodes
    ]
