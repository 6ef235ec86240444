"""What a head runs for row `ray`: ray_program.py NODES READY [SEEN GO].

Once there are NODES nodes and a task has run on each, writes the time into READY; then, until GO appears, each new number of nodes as a line of SEEN. With
another number of nodes, or tasks on others than the cluster's own, it ends with exit 1.
"""

import sys
import time
from pathlib import Path

import ray


def alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


@ray.remote(num_cpus=1)
def where() -> str:
    print("a task says where it is", flush=True)
    time.sleep(0.2)  # or one node would run all of them
    return ray.get_runtime_context().get_node_id()


def main() -> None:
    wanted, ready = int(sys.argv[1]), Path(sys.argv[2])
    ray.init(logging_level="ERROR")
    found: set[str] = set()
    while len(alive()) < wanted or len(found) < wanted:
        found |= set(ray.get([where.remote() for _ in range(wanted)]))
    own = alive()
    if len(own) != wanted or found != own:
        sys.exit(f"{wanted} nodes are wanted; alive: {sorted(own)}; tasks ran on {sorted(found)}")
    ready.write_text(str(time.time()))
    if len(sys.argv) <= 3:
        return
    seen, go, before = Path(sys.argv[3]), Path(sys.argv[4]), 0
    while not go.exists():
        if (now := len(alive())) != before:
            with seen.open("a") as file:
                file.write(f"{now}\n")
        before = now
        time.sleep(0.1)


if __name__ == "__main__":
    main()
