"""Who may call what: a model of docs/access.md in a few lines, written apart from the code, and a musterd that is asked all of it.

Eleven callers by the Unix socket, thirteen by certificates and five by tokens call each RPC about what lies in one part of the queue tree
("own"), about what lies in another ("foreign") and about what isn't there ("missing"). The model says what each has to be told; and no answer
may hold the name, queue or environment of a job that its reader may not see. Each of the eleven asks the HTTP routes, too.
"""

import json
import shlex
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import small_system
from local_system import Failed, LocalSystem
from login_system import free_ports

VIEWER, SUBMITTER, OPERATOR, ADMIN = 1, 2, 3, 4
OWN, FOREIGN = (
    "research/nlp",
    "research2/nlp",
)  # the second: no part of `research`, whatever its name begins with
PLACES = ("own", "foreign", "missing")
NODES = ("", "research", OWN, "research/vision", "research2", FOREIGN)


@dataclass
class Who:
    name: str
    uid: int
    roles: dict = field(default_factory=dict)  # by queue; "" is the root
    known: bool = True
    trusted: bool = False
    owns: tuple = ()  # places of jobs that it submitted
    group: str = "others"
    scopes: dict | None = None  # of the token that they came with: roles by queue, as above
    by: str = ""  # what they come with, where that isn't their uid or the token
    host: str = ""  # whose certificate it is
    refused: tuple = ()  # the codes of whatever is asked, where nothing is answered

    def role(self, queue: str) -> int:
        """The highest of the queue itself and of those above it, and no more than a token gives."""
        own = ADMIN if self.trusted else highest(self.roles, queue)
        return min(own, self.scope(queue))

    def scope(self, queue: str) -> int:
        return ADMIN if self.scopes is None else highest(self.scopes, queue)

    def best(self) -> int:
        return max(self.role(queue) for queue in NODES)

    def knows(self, queue: str) -> bool:
        """Sees it or one below it."""
        below = any(self.role(path) for path in NODES if path.startswith(queue + "/"))
        return self.role(queue) >= VIEWER or below

    def owner_may(self, place: str, needed: int) -> bool:
        """Of one's own job everything; by a token what a submitter may, or only to look."""
        enough = VIEWER if needed == VIEWER else SUBMITTER
        return place in self.owns and self.scope(QUEUE[place]) >= enough


def highest(roles: dict, queue: str) -> int:
    parts = queue.split("/") if queue else []
    return max(roles.get("/".join(parts[:n]), 0) for n in range(len(parts) + 1))


WHO = [
    Who("stranger", 20099, known=False),
    Who("nobody", 65534, known=False),
    Who("eve", 20001),
    Who("vic", 20002, {OWN: VIEWER}),
    Who("sam", 20003, {OWN: SUBMITTER}),
    Who("ann", 20004, {OWN: SUBMITTER}, owns=("own",), group="nlp"),
    Who("oli", 20005, {"research": OPERATOR}),
    Who("sib", 20006, {"research2": OPERATOR}),
    Who("lea", 20007, {"research": ADMIN}),
    Who("amy", 20008, {"": ADMIN}),
    Who("root", 0, trusted=True),
]
BOB = Who(
    "bob", 20009, {FOREIGN: SUBMITTER}, owns=("foreign",)
)  # submits the foreign job, asks nothing

# Who comes by a token: the owner's uid, and what the token gives. The first three are ann, who submits to research/nlp and owns a job there.
ANN, AMY = WHO[5], WHO[9]
TOKENS = [
    replace(ANN, scopes={OWN: SUBMITTER}),
    replace(ANN, scopes={"research": VIEWER}),
    replace(ANN, scopes={"research/nlp": VIEWER, "": SUBMITTER}),
    replace(AMY, scopes={"research": OPERATOR}),
    replace(AMY, scopes={"": VIEWER, FOREIGN: SUBMITTER}),
]
VERBS = {VIEWER: "view", SUBMITTER: "submit", OPERATOR: "operate"}

# Who comes by a certificate: each user of the above; hosts; ann by two that count no longer, of which the first doesn't come through the
# handshake; and whoever has none, at the join door.
UNAVAILABLE, UNAUTHENTICATED = 14, 16
CERTIFIED = [replace(who, by="a certificate") for who in WHO if who.known and not who.trusted]
GONE = Who("ann", 20004, known=False, group="nlp")
EXPIRED = replace(GONE, by="an expired certificate", refused=(UNAVAILABLE,))
REVOKED = replace(GONE, by="a revoked certificate", refused=(UNAUTHENTICATED, UNAVAILABLE))
HOSTS = [Who(f"lab/{host}", 0, by="a host's certificate", host=host) for host in ("h01", "h02")]
STRANGER = Who("whoever", 0, by="the join door")
# Whoever changes something comes last: amy revokes a host, too.
CERTIFICATES = [*CERTIFIED[:-1], EXPIRED, REVOKED, STRANGER, *HOSTS, CERTIFIED[-1]]

QUEUES = """\
queues:
  - name: research
    admin: [lea]
    queues:
      - {name: nlp, submit: [nlp, sam]}
      - {name: vision}
  - name: research2
    queues:
      - {name: nlp, submit: [bob]}
"""
GRANTS = (
    ("vic", "viewer", OWN),
    ("oli", "operator", "research"),
    ("sib", "operator", "research2"),
    ("amy", "admin", "/"),
)
QUEUE = {"own": OWN, "foreign": FOREIGN, "missing": "research/none"}
MARKS = {"own": ("name-of-ours", "env-of-ours"), "foreign": ("name-of-theirs", "env-of-theirs")}
JOB = 'name: {}\nqueue: {}\nenv: {{TOKEN: {}}}\nresources: {{gpus: 1, gpu_types: [cpu-slot]}}\nrun: "true"\n'

OK, INVALID, ENDED_BY_US, NOT_FOUND, DENIED, FAILED_PRECONDITION = 0, 3, 4, 5, 7, 9
UNIMPLEMENTED = 12
TOO_OFTEN = "times a second; try again in a moment"
NOTHING_RAN = -1  # NOT_FOUND, of the output of a job that may be read
NAMES = {OK: "OK", INVALID: "INVALID_ARGUMENT", NOT_FOUND: "NOT_FOUND", DENIED: "PERMISSION_DENIED"}
NAMES |= {FAILED_PRECONDITION: "FAILED_PRECONDITION", UNAUTHENTICATED: "UNAUTHENTICATED"}
NAMES |= {UNIMPLEMENTED: "UNIMPLEMENTED", UNAVAILABLE: "UNAVAILABLE"}


# ---- the model: the codes that one may be told ----


def of_job(needed: int, then=(OK,)):
    def told(who: Who, place: str):
        if place == "missing":
            return (NOT_FOUND,)
        if who.owner_may(place, needed) or who.role(QUEUE[place]) >= needed:
            return then
        if who.owner_may(place, VIEWER):
            return (DENIED,)
        return (DENIED,) if who.role(QUEUE[place]) >= VIEWER else (NOT_FOUND,)

    return told


def of_queue(needed: int, then=(OK,), missing=(NOT_FOUND, INVALID)):
    def told(who: Who, place: str):
        if place == "missing":
            return missing
        if who.role(QUEUE[place]) >= needed:
            return then
        return (DENIED,) if who.knows(QUEUE[place]) else (NOT_FOUND,)

    return told


def of_root(needed: int, then=(OK,), missing=(NOT_FOUND,)):
    return lambda who, place: (
        (missing if place == "missing" else then) if who.role("") >= needed else (DENIED,)
    )


def anywhere(needed: int, missing=(NOT_FOUND,), then=(OK,)):
    return lambda who, place: (
        (missing if place == "missing" else then) if who.best() >= needed else (DENIED,)
    )


def anybody(who: Who, place: str):
    return (OK,)


def of_tree(who: Who, place: str):
    """Takes admin above the queue that changes: research, research2, and the root for a new one, or for one that they can't see."""
    above = {"own": "research", "foreign": "research2", "missing": ""}[place]
    return (OK,) if who.role(above) >= ADMIN else (DENIED,)


def about_oneself(who: Who, place: str):
    return (OK,) if place != "missing" and who.knows(QUEUE[place]) else (NOT_FOUND,)


def of_list(who: Who, place: str):
    """Of a queue; as "missing" of no queue in particular."""
    return (OK,) if place == "missing" or who.knows(QUEUE[place]) else (NOT_FOUND,)


def agents(who: Who, place: str):
    return (OK, ENDED_BY_US) if who.trusted else (DENIED,)


def denied(who: Who, place: str):
    return (DENIED,)


def not_here(who: Who, place: str):
    return (UNIMPLEMENTED,)


def as_agent_of_h01(who: Who, place: str):
    return (OK, ENDED_BY_US) if who.host == "h01" else (DENIED,)


def by_own_key(who: Who, place: str):
    """As own by the key that the token or the certificate is of; as foreign by another one."""
    return (OK,) if place == "own" else (UNAUTHENTICATED,)


NEVER_FITS = (OK, FAILED_PRECONDITION)  # it has no agents: what is asked was admitted
UNDER_WAY = (OK, FAILED_PRECONDITION)  # a rotation, once an admin has begun one
MODEL = {
    "JobService/Preview": of_queue(SUBMITTER, NEVER_FITS),
    "JobService/Submit": of_queue(SUBMITTER, NEVER_FITS),
    "JobService/Get": of_job(VIEWER),
    "JobService/List": of_list,
    "JobService/Watch": of_job(VIEWER, (OK, ENDED_BY_US)),
    "JobService/Cancel": of_job(OPERATOR),
    "JobService/Logs": of_job(OPERATOR, (NOTHING_RAN,)),
    "JobService/Explain": of_job(VIEWER),
    "JobService/Simulate": of_queue(SUBMITTER),
    "JobService/Exec": of_job(OPERATOR, (FAILED_PRECONDITION,)),
    "JobService/Forward": of_job(OPERATOR, (FAILED_PRECONDITION,)),
    "QueueService/Apply": of_tree,
    "QueueService/Get": of_queue(VIEWER),
    "QueueService/List": anybody,
    "ClusterService/GetCluster": anywhere(VIEWER),
    "ClusterService/ListClusters": anywhere(VIEWER, (OK,)),
    "ClusterService/GetHost": anywhere(VIEWER),
    "ClusterService/ListHosts": anywhere(VIEWER, (OK, NOT_FOUND)),
    "ClusterService/Drain": of_root(OPERATOR),
    "ClusterService/Resume": of_root(OPERATOR),
    "ClusterService/ConfirmOff": of_root(OPERATOR, (OK, FAILED_PRECONDITION)),
    "ClusterService/ReleaseQuarantine": of_root(OPERATOR, (OK, FAILED_PRECONDITION)),
    "ClusterService/GetTrainerSchema": anybody,
    "ClusterService/GetLedger": anywhere(VIEWER, (OK,)),
    "ClusterService/Top": anywhere(VIEWER, (OK,)),
    "ClusterService/Ping": anybody,
    "AccessService/List": anybody,
    "AccessService/Grant": of_queue(ADMIN),
    "AccessService/Revoke": of_queue(ADMIN),
    "AccessService/Check": about_oneself,
    "AccessService/ListAudit": of_root(ADMIN, missing=(OK,)),
    "AccessService/VerifyAudit": of_root(ADMIN, missing=(OK,)),
    "AgentService/Connect": agents,
    "AgentService/Carry": lambda who, place: (NOT_FOUND,) if who.trusted else (DENIED,),
    "AgentService/ReadPack": lambda who, place: (NOT_FOUND,) if who.trusted else (DENIED,),
    "AgentService/ReadSecrets": lambda who, place: (NOT_FOUND,) if who.trusted else (DENIED,),
    "PackService/Put": anywhere(SUBMITTER, (OK,)),
    "SecretService/Set": anywhere(SUBMITTER, (OK,)),
    "SecretService/List": anybody,
    "SecretService/Delete": lambda who, place: (NOT_FOUND,),
    # The join door alone has these.
    "JoinService/Join": not_here,
    "JoinService/ListProviders": not_here,
    "JoinService/LogIn": not_here,
    "JoinService/RenewExpired": not_here,
    # Without a certificate there is none to renew, and tokens are for users of the network.
    "TrustService/Renew": denied,
    "TrustService/GetNews": denied,
    "TrustService/GetAuthority": anybody,
    "TrustService/Rotate": of_root(ADMIN, UNDER_WAY, UNDER_WAY),
    "TrustService/NewToken": of_root(ADMIN),
    "TrustService/CreateToken": lambda who, place: (FAILED_PRECONDITION,),
    "TrustService/ListTokens": anybody,
    "TrustService/RevokeToken": lambda who, place: (NOT_FOUND,),
    "TrustService/ListHolders": of_root(ADMIN, missing=(OK,)),
    "TrustService/RevokeHolder": of_root(ADMIN, missing=(OK, NOT_FOUND)),
}
# For a user's certificate.
BY_CERTIFICATE = MODEL | {
    "TrustService/Renew": lambda who, place: (INVALID,),  # without a request for a certificate
    "TrustService/GetNews": anybody,
    "TrustService/CreateToken": of_queue(VIEWER, missing=(NOT_FOUND,)),  # of a viewer's right there
}
# For one that was bought with a token: what is one's own and no queue's isn't theirs.
BY_TOKEN = BY_CERTIFICATE | {
    "SecretService/Set": denied,
    "SecretService/List": denied,
    "SecretService/Delete": denied,
    "TrustService/CreateToken": denied,
    "TrustService/ListTokens": denied,
    "TrustService/RevokeToken": denied,
    "AgentService/Carry": denied,
    "AgentService/ReadPack": denied,
    "AgentService/ReadSecrets": denied,
}
# A host's certificate is for its own agent, which has no attempt, and for nothing else.
BY_HOST = {method: not_here if method.startswith("JoinService/") else denied for method in MODEL}
BY_HOST |= {
    "AgentService/Connect": as_agent_of_h01,
    "AgentService/Carry": lambda who, place: (NOT_FOUND,),
    "AgentService/ReadPack": lambda who, place: (NOT_FOUND,),
    "AgentService/ReadSecrets": lambda who, place: (NOT_FOUND,),
    "TrustService/Renew": BY_CERTIFICATE["TrustService/Renew"],
    "TrustService/GetNews": anybody,
}
# There is nothing else at the join door; and what nothing explains may end the connection.
AT_THE_JOIN_DOOR = {method: lambda who, place: (UNIMPLEMENTED, UNAVAILABLE) for method in MODEL} | {
    "JoinService/Join": by_own_key,
    "JoinService/ListProviders": anybody,
    "JoinService/LogIn": lambda who, place: (FAILED_PRECONDITION,),  # it names no provider
    "JoinService/RenewExpired": by_own_key,
}
# By HTTP: for whoever reaches the address.
ROUTES = {
    ("GET", "/metrics"): 200,
    ("HEAD", "/metrics"): 200,
    ("POST", "/metrics"): 405,
    ("GET", "/metrics/jobs"): 404,
    ("GET", "/"): 404,
}
ASK_ROUTES = """\
import http.client, json, sys
for method, path in json.loads(sys.argv[2]):
    asked = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
    asked.request(method, path)
    answer = asked.getresponse()
    print(json.dumps([answer.status, answer.read().decode()]))
"""
TLS = """\
metrics_listen: 127.0.0.1:{metrics}
tls:
  listen: 127.0.0.1:{main}
  join: 127.0.0.1:{join}
  addresses: ["127.0.0.1:{main}"]
  master_key: {folder}/etc/master.key
{more}"""
SHORT_LIFE = "  user_life: 5s\n"


def sees(who: Who, place: str, mark: str) -> bool:
    """Whether an answer to them may hold this mark of that place's job."""
    needed = OPERATOR if mark.startswith("env") else VIEWER
    return who.known and (who.owner_may(place, needed) or who.role(QUEUE[place]) >= needed)


# ---- the musterd that is asked ----


class Asked:
    model = MODEL
    callers = WHO
    routes = ROUTES
    more_tls = ""

    def __init__(self, system: LocalSystem):
        self.system = system
        self.tree = None
        self.jobs = {}

    def start(self) -> None:
        main, join, self.metrics_port = free_ports(3)
        small_system.configure(self.system, QUEUES)
        config = self.system.folder / "etc" / "musterd.yaml"
        users = ", ".join(
            f"{w.name}: {{uid: {w.uid}, groups: [{w.group}]}}"
            for w in [*WHO, BOB]
            if w.known and not w.trusted
        )
        config.write_text(
            config.read_text().replace("single_user: true\n", f"users: {{{users}}}\n")
            + TLS.format(
                main=main,
                join=join,
                metrics=self.metrics_port,
                folder=self.system.folder,
                more=self.more_tls,
            )
        )
        for path in (self.system.folder, self.system.folder / "etc"):
            path.chmod(0o755)
        self.system.start_musterd()
        for name, role, queue in GRANTS:
            self.system.run(["access", "grant", name, role, queue])
        ann = next(w for w in WHO if w.name == "ann")
        for place, owner in (("own", ann), ("foreign", BOB)):
            spec = JOB.format(MARKS[place][0], QUEUE[place], MARKS[place][1])
            done = self.as_user(
                owner, ["muster", "submit", "--wait-for-capacity", "-o", "json", "-"], spec
            )
            self.jobs[place] = json.loads(done.stdout)["number"]
        self.jobs["missing"] = 4711

    def as_user(self, who: Who, words: list, text: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.system.bin_dir / words[0], *words[1:]],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
            user=who.uid,
            group=who.uid if who.uid else 0,
            extra_groups=[],
            cwd="/",
            env=self.system.environment() | {"HOME": "/"},
        )

    def methods(self) -> list[str]:
        return subprocess.run(
            [self.system.bin_dir / "call_rpcs", "--list"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()

    def request(self, method: str, who: Who, place: str) -> dict:
        queue, job = QUEUE[place], str(self.jobs[place])
        host = "lab/none" if place == "missing" else "lab/h01"
        spec = {
            "name": "asked",
            "queue": queue,
            "tasks": [
                {
                    "name": "main",
                    "run": {"exec": ["true"]},
                    "workers": {"min": 1, "max": 1},
                    "resources": {"gpusMilli": 1000, "gpuTypes": ["cpu-slot"]},
                }
            ],
        }
        binding = {"user": "zed", "role": "ROLE_VIEWER", "queue": queue}
        return {
            "JobService/Preview": {"spec": spec, "waitForCapacity": True},
            "JobService/Submit": {
                "spec": spec,
                "waitForCapacity": True,
                "idempotencyKey": f"{who.name}-{place}",
            },
            "JobService/Get": {"id": job},
            "JobService/List": {} if place == "missing" else {"queue": queue},
            "JobService/Watch": {"id": job},
            "JobService/Cancel": {"id": job},
            "JobService/Logs": {"id": job, "rank": -1},
            "JobService/Explain": {"id": job, "budgetMs": 50},
            "JobService/Simulate": {"jobs": [spec], "budgetMs": 50, "horizonNs": 10**9},
            "JobService/Exec": {"exec": {"id": job, "command": ["true"]}},
            "JobService/Forward": {"forward": {"id": job, "port": 8888}},
            "QueueService/Apply": {"tree": self.changed_tree(who, place), "dryRun": True},
            "QueueService/Get": {"path": queue},
            "ClusterService/GetCluster": {"name": "none" if place == "missing" else "lab"},
            "ClusterService/GetHost": {"name": host},
            "ClusterService/ListHosts": {"cluster": "none" if place == "missing" else "lab"},
            "ClusterService/Drain": {"target": host, "reason": "asked"},
            "ClusterService/Resume": {"target": host},
            "ClusterService/ConfirmOff": {"host": host},
            "ClusterService/ReleaseQuarantine": {"host": host},
            "ClusterService/GetLedger": {
                "by": {"own": "QUEUE", "foreign": "USER", "missing": "JOB"}[place]
            },
            "ClusterService/Top": {
                "by": {"own": "QUEUE", "foreign": "USER", "missing": "JOB"}[place]
            },
            "AccessService/Grant": {"binding": binding},
            "AccessService/Revoke": {"binding": binding},
            "AccessService/Check": {"queue": queue},
            "TrustService/Rotate": {"step": "ROTATE_STEP_PREPARE"},
            "TrustService/NewToken": {"host": host},
            "TrustService/CreateToken": {"scopes": [{"role": "ROLE_VIEWER", "queue": queue}]},
            "TrustService/RevokeHolder": {"host": host},
            "AgentService/Carry": {"join": "5" * 32},
            "AgentService/ReadPack": {"key": {"jobUid": "5" * 32, "task": "main", "attempt": 1}},
            "AgentService/ReadSecrets": {"key": {"jobUid": "5" * 32, "task": "main", "attempt": 1}},
            "SecretService/Set": {"name": "TOKEN", "value": "eA=="},
            "SecretService/Delete": {"name": "NONE"},
            "PackService/Put": {"digest": "5" * 64, "sizeBytes": 10},
            "AgentService/Connect": {
                "hello": {
                    "cluster": "lab",
                    "host": "h01",
                    "stateId": "5" * 32,
                    "bootId": "b",
                    "protocolVersion": 1,
                    "runsAsOwner": True,
                }
            },
        }.get(method, {})

    def changed_tree(self, who: Who, place: str) -> dict:
        """The part of the tree that they see (or all of it, if it is about what they don't), with one queue changed or made."""

        def queue(name, below=(), **more):
            return {"name": name, "queues": list(below)} | more

        held = {"held": True}
        ours = queue(
            "research",
            [
                queue("nlp", submit=["nlp", "sam"], **(held if place == "own" else {})),
                queue("vision"),
            ],
            admin=["lea"],
        )
        theirs = queue(
            "research2", [queue("nlp", submit=["bob"], **(held if place == "foreign" else {}))]
        )
        tops = [ours, theirs] if who.knows("research2") or place == "foreign" else [ours]
        if place == "missing":
            tops.append(queue("new"))
        return {"queues": tops}

    def call(self, who: Who, lines: str) -> subprocess.CompletedProcess:
        return self.as_user(who, ["call_rpcs", self.system.server], lines)

    def expected(self, who: Who, method: str, place: str) -> tuple:
        joins = method.startswith("JoinService/")
        if who.refused:
            return who.refused + ((UNIMPLEMENTED,) if joins else ())
        if not who.known and not joins:
            return (UNAUTHENTICATED,)
        return self.model[method](who, place)

    def ask_routes(self, who: Who) -> list[str]:
        """What the HTTP routes answer otherwise than the model says, or tell of somebody's job."""
        words = ["/usr/bin/python3", "-c", ASK_ROUTES]
        done = subprocess.run(
            [*words, str(self.metrics_port), json.dumps([*self.routes])],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            user=who.uid,
            group=who.uid,
            extra_groups=[],
            cwd="/",
        )
        wrong = []
        answers = done.stdout.splitlines()
        for (route, wanted), line in zip(self.routes.items(), answers, strict=True):
            code, text = json.loads(line)
            cell = f"{who.name} {' '.join(route)}"
            if code != wanted:
                wrong.append(f"{cell}: {code}, not {wanted}")
            marks = [mark for pair in MARKS.values() for mark in pair]
            wrong += [f"{cell}: holds {mark}" for mark in marks if mark in text]
        return wrong

    def ask(self, who: Who) -> list[str]:
        """What was answered otherwise than the model says."""
        cells = [(method, place) for method in self.methods() for place in PLACES]
        lines = [
            f"{method}\t{json.dumps(self.request(method, who, place))}\n" for method, place in cells
        ]
        answers = self.call(who, "".join(lines)).stdout.splitlines()
        # Several tokens of one user call more often than one may: what is told to come again does.
        while again := [i for i, answer in enumerate(answers) if TOO_OFTEN in answer]:
            time.sleep(1)
            for i, answer in zip(
                again,
                self.call(who, "".join(lines[i] for i in again)).stdout.splitlines(),
                strict=True,
            ):
                answers[i] = answer
        wrong = []
        for (method, place), line in zip(cells, answers, strict=True):
            answer = json.loads(line)
            if answer["message"].endswith("nothing of it has run"):
                answer["code"] = NOTHING_RAN
            expected = self.expected(who, method, place)
            by = f"a token with {who.scopes}" if who.scopes is not None else who.by
            cell = f"{who.name}{f' by {by}' if by else ''} {method} {place}"
            if answer["code"] not in expected:
                told = NAMES.get(answer["code"], answer["code"])
                wrong.append(
                    f"{cell}: {told}, not {[NAMES.get(c, c) for c in expected]}: {answer['message']}"
                )
            wrong += [
                f"{cell}: holds {mark}"
                for whose, marks in MARKS.items()
                for mark in marks
                if mark in line and not sees(who, whose, mark)
            ]
            if "research2" in line and not who.knows("research2") and place != "foreign":
                wrong.append(f"{cell}: holds the name of a queue that they don't see")
        return wrong

    def ask_all(self) -> tuple[int, list[str]]:
        """How many cells, and those that are wrong. Whoever changes something comes last."""
        wrong = [
            f"{method}: the model doesn't know it"
            for method in self.methods()
            if method not in self.model
        ]
        if wrong:
            return 0, wrong
        for who in self.callers:
            wrong += self.ask(who)
            if self.routes:
                wrong += self.ask_routes(who)
        return len(self.callers) * (len(self.model) * len(PLACES) + len(self.routes)), wrong


class AskedOverTls(Asked):
    """Over the network, by callers who have logged in; each has a file of its own that says so."""

    routes = {}

    def __init__(self, system: LocalSystem):
        super().__init__(system)
        self.logins: dict[str, Path | str] = {}

    def take(self, line: list[str]) -> Path:
        """What a line that begins with `muster login` buys, in a home of its own."""
        home = self.system.folder / "homes" / f"{len(self.logins)}"
        home.mkdir(parents=True)
        done = subprocess.run(
            [self.system.bin_dir / "muster", *line[1:]],
            env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise Failed(f"{line}: {done.stderr}")
        return home / ".config" / "muster" / "default.identity"

    def call(self, who: Who, lines: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.system.bin_dir / "call_rpcs", self.logins[str(who)]],
            input=lines,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )


class AskedByTokens(AskedOverTls):
    model = BY_TOKEN
    callers = TOKENS

    def start(self) -> None:
        super().start()
        for name in {who.name for who in TOKENS}:
            self.system.run(["user", "invite", name, "--group", "nlp"])
        for who in TOKENS:
            self.logins[str(who)] = self.log_in(who)

    def log_in(self, who: Who) -> Path:
        scopes = [f"--scope={VERBS[role]}:{queue or '/'}" for queue, role in who.scopes.items()]
        # Two of ann's reach further than she does: she had more when they were made.
        if who.name == "ann":
            self.system.run(["access", "grant", "ann", "operator", "/"])
        made = self.as_user(who, ["muster", "token", "create", *scopes], "").stdout.split()
        if who.name == "ann":
            self.system.run(["access", "revoke", "ann", "/"])
        return self.take(made)


class AskedByCertificates(AskedOverTls):
    """By certificates of users and hosts, by two that count no longer, and by whoever has none at the join door."""

    model = BY_CERTIFICATE
    callers = CERTIFICATES
    more_tls = SHORT_LIFE

    def start(self) -> None:
        super().start()
        self.logins[str(EXPIRED)] = self.log_in(EXPIRED)
        over = time.monotonic() + 6
        self.restart_with_long_lives()
        self.logins[str(REVOKED)] = self.log_in(REVOKED)
        self.system.run(["user", "revoke", REVOKED.name])
        for who in CERTIFIED:
            self.logins[str(who)] = self.log_in(who)
        for who in HOSTS:
            self.logins[str(who)] = self.join(self.join_line(who.host), who.host)
        self.logins[str(STRANGER)] = f"join:{self.logins[str(CERTIFIED[0])]}"
        self.at_the_door = self.requests_to_join()
        time.sleep(max(0.0, over - time.monotonic()))

    def restart_with_long_lives(self) -> None:
        config = self.system.folder / "etc" / "musterd.yaml"
        config.write_text(config.read_text().replace(SHORT_LIFE, ""))
        musterd = self.system.processes["musterd"]
        musterd.terminate()
        musterd.wait(30)
        self.system.start_musterd()

    def log_in(self, who: Who) -> Path:
        line = self.system.run(["user", "invite", who.name, "--group", who.group])
        return self.take(line.stdout.split())

    def join_line(self, host: str) -> list[str]:
        return shlex.split(self.system.run(["host", "token", "new", f"lab/{host}"]).stdout)

    def join(self, line: list[str], host: str) -> Path:
        """The host has joined, and runs no agent."""
        state = self.system.folder / "agents" / host
        words = line[1 : line.index("--state-dir")]
        more = ["--state-dir", state, "--single-user", "--only"]
        subprocess.run(
            [self.system.bin_dir / "muster-agent", *words, *more],
            check=True,
            capture_output=True,
            timeout=60,
        )
        return state / "identity"

    def requests_to_join(self) -> dict[str, dict[str, dict]]:
        """By method and place: by the key that it is of, or is then; by another one; and by what isn't there."""
        line = self.join_line("h02")
        token = line[line.index("--token") + 1]
        keys = [self.system.folder / "etc" / f"{name}.key" for name in ("own", "foreign", "h01")]
        curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
        for key in keys[:2]:
            openssl("genpkey", *curve, "-out", key)
        blocks = pem_blocks(self.logins[str(HOSTS[0])].read_text())
        keys[2].write_text(blocks[0])
        own, foreign, of_h01 = (openssl("req", "-new", "-key", k, "-subj", "/CN=x") for k in keys)
        return {
            "JoinService/Join": {
                "own": {"token": token, "request": own},
                "foreign": {"token": token, "request": foreign},
                "missing": {"token": "mst_none_none", "request": own},
            },
            "JoinService/LogIn": dict.fromkeys(PLACES, {"idToken": "e.e.e", "request": own}),
            "JoinService/RenewExpired": {
                "own": {"certificate": blocks[1], "request": of_h01},
                "foreign": {"certificate": blocks[1], "request": foreign},
                "missing": {"request": own},
            },
        }

    def methods(self) -> list[str]:
        """Those of the join door first: what it doesn't have may end a connection to it."""
        return sorted(super().methods(), key=lambda method: not method.startswith("JoinService/"))

    def request(self, method: str, who: Who, place: str) -> dict:
        if method in self.at_the_door:
            return self.at_the_door[method][place]
        return super().request(method, who, place)

    def expected(self, who: Who, method: str, place: str) -> tuple:
        if who.host:
            return BY_HOST[method](who, place)
        if who == STRANGER:
            return AT_THE_JOIN_DOOR[method](who, place)
        return super().expected(who, method, place)


def openssl(*words) -> str:
    command = ["openssl", *(str(word) for word in words)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def pem_blocks(text: str) -> list[str]:
    """A login's key, its certificate, and the authorities."""
    return [f"-----BEGIN {part}" for part in text.split("-----BEGIN ")[1:]]
