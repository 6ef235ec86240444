"""A tracking server of our own for tests: MLflow's REST calls that the exporter uses, in memory, and what goes wrong with them."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class StandIn:
    """`mode`: well; hang (no answer); refuse (503); full (507); deaf (does as it is told, and never answers); inactive (400); redirect. `refused_names`: of metrics."""

    def __init__(self, port: int = 0):
        self.mode, self.calls, self.redirected = "well", 0, 0
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict] = {}
        self.refused_names: set[str] = set()
        self.posts: list[dict] = []  # to any other path
        self.lock = threading.Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                stand_in._answer(self, "POST")

            def do_GET(self):
                stand_in._answer(self, "GET")

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def active(self) -> list[dict]:
        return [run for run in self.runs.values() if run["active"]]

    def points(self) -> dict[tuple[str, int], float]:
        """Of the one active run."""
        (run,) = self.active()
        found: dict[tuple[str, int], float] = {}
        for metric in run["metrics"]:
            assert (metric["key"], metric["step"]) not in found, "doubled"
            found[metric["key"], metric["step"]] = metric["value"]
        return found

    def _answer(self, handler, method: str) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self.calls += 1
        mode = self.mode
        while self.mode == "hang":
            time.sleep(0.05)
        if mode == "hang":
            return  # its caller has gone long since
        if mode in ("refuse", "full", "redirect"):
            handler.send_response({"refuse": 503, "full": 507, "redirect": 302}[mode])
            handler.send_header("Location", f"{self.url}/elsewhere")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        parts = urlsplit(handler.path)
        if parts.path == "/elsewhere":
            self.redirected += 1
        with self.lock:
            given = json.loads(body) if body else {}
            given |= {name: value[0] for name, value in parse_qs(parts.query).items()}
            status, answer = self._do(parts.path.rpartition("/mlflow/")[2], given)
        if mode == "deaf":
            return
        data = json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _do(self, call: str, given: dict) -> tuple[int, dict]:
        run = self.runs.get(given.get("run_id", ""))
        if call == "experiments/get-by-name":
            found = self.experiments.get(given["experiment_name"])
            return (200, {"experiment": {"experiment_id": found}}) if found else (404, {})
        if call == "experiments/create":
            self.experiments[given["name"]] = str(len(self.experiments))
            return 200, {"experiment_id": self.experiments[given["name"]]}
        if call == "runs/create":
            name = f"run{len(self.runs)}"
            tags = {tag["key"]: tag["value"] for tag in given["tags"]}
            self.runs[name] = {"tags": tags, "metrics": [], "active": True, "status": "RUNNING"}
            self.runs[name]["params"] = {}
            return 200, {"run": {"info": {"run_id": name}}}
        if call == "runs/search":
            _, tag, _, uid, _ = given["filter"].replace("`", "'").split("'")
            found = [n for n, r in self.runs.items() if r["active"] and r["tags"].get(tag) == uid]
            return 200, {"runs": [{"info": {"run_id": name}} for name in found]}
        if call == "metrics/get-history":
            metrics = [m for m in run["metrics"] if m["key"] == given["metric_key"]]
            return 200, {"metrics": metrics}
        if run is None:
            self.posts.append(given)
            return 200, {}
        if call == "runs/log-batch":
            if self.mode == "inactive":
                return 400, {"message": "The run must be in the 'active' lifecycle_stage."}
            metrics = given.get("metrics", [])
            if self.refused_names & {metric["key"] for metric in metrics}:
                return 400, {"message": "Invalid metric name"}
            run["metrics"] += metrics
            run["params"] |= {param["key"]: param["value"] for param in given.get("params", [])}
        if call == "runs/delete":
            run["active"] = False
        if call == "runs/update":
            run["status"] = given["status"]
        if call == "runs/set-tag":
            run["tags"][given["key"]] = given["value"]
        if call == "runs/delete-tag":
            run["tags"].pop(given["key"], None)
        return 200, {}
