"""One run of an MLflow server for one job, by its REST interface.

A point can't be taken back there. So figures of speed keep their first value, and where another figure differs, or points of an abandoned attempt are left,
the run is written anew under the same name and the old one is deleted (MLflow keeps deleted runs for a while).
"""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Callable
from urllib.parse import quote, urlencode

from muster_exporter import http_client

log = logging.getLogger("muster-exporter")
BATCH = 500  # half of the server's limit: one that is slow has ten seconds for it
_STATUS = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELLED": "KILLED"}
_SPEED = re.compile(r"(^|/)(tokens_per_s|mfu|mfu_causal|mfu_full|.*_per_second|.*_s|.*_runtime)$")


class MLflow:
    may_have_unsure = True  # of a write without an answer

    def __init__(self, url: str, key: str):
        self._base = url.rstrip("/") + "/api/2.0/mlflow/"
        self._headers = {"Content-Type": "application/json"}
        if key:
            scheme = "Basic" if ":" in key else "Bearer"
            self._headers["Authorization"] = f"{scheme} {_basic(key)}"

    def keeps_first(self, key: str) -> bool:
        return _SPEED.search(key) is not None

    def write(self, place: dict, about: dict, points: list[tuple]) -> dict:
        place = self._settled(place)
        if "run" not in place:
            place |= {"run": self._run(about, "muster.uid"), "experiment": self._of(about)}
        return self._log(place, about, points)

    def held(
        self, place: dict, about: dict, unsure: set[tuple[str, int]]
    ) -> tuple[dict, list[tuple]]:
        """Which of (key, step) it has, as (key, step, value); and the place, as a run may be there that isn't in it."""
        if "run" not in place:
            experiment = self._of(about)
            found = self._find(experiment, "muster.uid", about["uid"])
            if not found:
                return place, []
            place = place | {"run": found[0], "experiment": experiment}
        there = []
        for key in sorted({key for key, _ in unsure}):
            values = self._values(place["run"], metric_name(key))
            there += [(key, s, values[s]) for k, s in unsure if k == key and s in values]
        return place, there

    def rewrite(self, place: dict, about: dict, points: list[tuple]) -> dict:
        """A run that has these points and no others. The old one goes once that is committed (settle)."""
        place = self._settled(place)
        for run in self._find(self._of(about), "muster.rewrites", about["uid"]):
            self._post("runs/delete", {"run_id": run})  # of a time before that broke off
        run = self._create(about, "muster.rewrites")
        self._tell_values(run, about)
        new = place | {"run": run, "experiment": self._of(about), "old": place.get("run", "")}
        return self._log(new, about, points)

    def settle(self, place: dict, about: dict) -> dict:
        """After a rewrite that is committed."""
        if not place.get("old"):
            return place
        self._delete(place["old"])
        self._post(
            "runs/set-tag", {"run_id": place["run"], "key": "muster.uid", "value": about["uid"]}
        )
        self._delete_tag(place["run"], "muster.rewrites")
        return self._settled(place)

    def finish(self, place: dict, about: dict, points: Callable[[], list[tuple]]) -> None:
        if "run" not in place:
            return
        for run in self._find(self._of(about), "muster.uid", about["uid"]):
            if run != place["run"]:  # of a call to create it that timed out, and was heard later
                self._delete(run)
        self._post(
            "runs/update",
            {
                "run_id": place["run"],
                "status": _STATUS.get(about["state"], "KILLED"),
                "end_time": about["end_ns"] // 1_000_000,
            },
        )

    # ---- runs ----

    def _settled(self, place: dict) -> dict:
        return {name: value for name, value in place.items() if name != "old"}

    def _of(self, about: dict) -> str:
        """The experiment: the label of that name, else the job's name."""
        name = about["labels"].get("experiment") or about["name"]
        try:
            answer = self._get("experiments/get-by-name", {"experiment_name": name})
            return answer["experiment"]["experiment_id"]
        except http_client.Refused as refused:
            if refused.status != 404:
                raise
        return self._post("experiments/create", {"name": name})["experiment_id"]

    def _run(self, about: dict, tag: str) -> str:
        found = self._find(self._of(about), tag, about["uid"])
        run = found[0] if found else self._create(about, tag)
        self._tell_values(run, about)
        return run

    def _find(self, experiment: str, tag: str, uid: str) -> list[str]:
        answer = self._post(
            "runs/search",
            {
                "experiment_ids": [experiment],
                "filter": f"tags.`{tag}` = '{uid}'",
                "run_view_type": "ACTIVE_ONLY",
                "max_results": 10,
            },
        )
        return [run["info"]["run_id"] for run in answer.get("runs", [])]

    def _create(self, about: dict, tag: str) -> str:
        tags = {
            "mlflow.runName": f"{about['name']}-{about['id']}",
            "mlflow.user": about["owner"],
            "muster.job": about["id"],
            "muster.queue": about["queue"],
            tag: about["uid"],
        }
        answer = self._post(
            "runs/create",
            {
                "experiment_id": self._of(about),
                "user_id": about["owner"],
                "run_name": tags["mlflow.runName"],
                "start_time": (about["start_ns"] or about["submit_ns"]) // 1_000_000,
                "tags": [{"key": key, "value": value} for key, value in tags.items()],
            },
        )
        return answer["run"]["info"]["run_id"]

    def _tell_values(self, run: str, about: dict) -> None:
        """A sweep's, so that its members can be compared by them; the same again does nothing."""
        values = about.get("values") or {}
        if values:
            params = [{"key": key, "value": value[:6000]} for key, value in values.items()]
            self._post("runs/log-batch", {"run_id": run, "params": params})

    def _delete(self, run: str) -> None:
        try:
            self._post("runs/delete", {"run_id": run})
        except http_client.Refused as refused:
            if refused.status not in (400, 404):  # it is deleted
                raise

    def _delete_tag(self, run: str, tag: str) -> None:
        try:
            self._post("runs/delete-tag", {"run_id": run, "key": tag})
        except http_client.Refused as refused:
            if refused.status not in (400, 404):
                raise

    # ---- points ----

    def _log(self, place: dict, about: dict, points: list[tuple]) -> dict:
        """Returns the place, with the names that the server doesn't take: `refused`."""
        refused = set(place.get("refused", []))
        for begin in range(0, len(points), BATCH):
            batch = [point for point in points[begin : begin + BATCH] if point[0] not in refused]
            for key in self._log_batch(place["run"], batch) if batch else []:
                log.warning("job %s: MLflow takes no metric called %s", about["id"], key)
                refused.add(key)
        return place | ({"refused": sorted(refused)} if refused else {})

    def _log_batch(self, run: str, points: list[tuple]) -> list[str]:
        """The names that it refuses: the others' points are there."""
        metrics = [
            {"key": metric_name(key), "value": value, "timestamp": at_ns // 1_000_000, "step": step}
            for key, step, value, at_ns in points
        ]
        try:
            self._post("runs/log-batch", {"run_id": run, "metrics": metrics})
            return []
        except http_client.Refused as error:
            if error.status != 400 or "name" not in error.text.lower():
                raise
        keys = sorted({point[0] for point in points})
        if len(keys) == 1:
            return keys
        apart = ([point for point in points if point[0] == key] for key in keys)
        return [key for own in apart for key in self._log_batch(run, own)]

    def _values(self, run: str, key: str) -> dict[int, float]:
        values: dict[int, float] = {}
        token = ""
        while True:
            asked = {"run_id": run, "metric_key": key, "max_results": 25000}
            answer = self._get(
                "metrics/get-history", asked | ({"page_token": token} if token else {})
            )
            for metric in answer.get("metrics", []):
                values[int(metric.get("step", 0))] = float(metric["value"])
            token = answer.get("next_page_token", "")
            if not token:
                return values

    # ---- the server ----

    def _post(self, path: str, body: dict) -> dict:
        data = json.dumps(body).encode()
        return _object(http_client.request("POST", self._base + path, data, self._headers))

    def _get(self, path: str, query: dict) -> dict:
        url = f"{self._base}{path}?{urlencode(query, quote_via=quote)}"
        return _object(http_client.request("GET", url, None, self._headers))


def metric_name(key: str) -> str:
    """What MLflow takes as one: a path as it would write it, of few characters. One that had to be changed has a sum behind it, so that no two are the same."""
    parts = re.sub(r"[^\w\-. /]", "_", key, flags=re.ASCII).split("/")
    name = "/".join(part for part in parts if part.strip(".")) or "_"
    return name if name == key else f"{name}.{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def _object(data: bytes) -> dict:
    found = json.loads(data or b"{}")
    if not isinstance(found, dict):
        raise ValueError("the server's answer is no object")
    return found


def _basic(key: str) -> str:
    """USER:PASSWORD, or a token as it is."""
    return base64.b64encode(key.encode()).decode() if ":" in key else key
