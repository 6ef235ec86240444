"""Trains a small MLP with DistributedDataParallel over Gloo. Plain torch.distributed: runs under torchrun, and
anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    torchrun --nproc-per-node 2 ddp.py --steps 200 --checkpoint ddp.pt

SIGTERM: all ranks finish the step, rank 0 saves, all exit 0. Started again with the same --checkpoint, it goes on.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SAMPLES_PER_STEP = 256  # over all ranks, so that the number of ranks doesn't change the training


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", default="ddp.pt")
    options = parser.parse_args()

    stop = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # env://
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    if os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    if rank == 0:
        print(f"starts at step {step} of {options.steps} with {world} ranks", flush=True)

    while step < options.steps:
        inputs = samples(step)[rank::world]  # [SAMPLES_PER_STEP / world, 16]
        loss = (model(inputs) - torch.sin(4 * inputs.mean(1, keepdim=True))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1

        # One small all-reduce: the mean loss, and whether any rank was told to stop. All ranks decide the same.
        told = torch.stack([loss.detach() / world, stop[0]])
        dist.all_reduce(told)
        if rank == 0 and step % 20 == 0:
            print(f"step={step} loss={told[0].item():.6f}", flush=True)
        if told[1] > 0:
            break

    if rank == 0:
        temporary = f"{options.checkpoint}.tmp"
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
            temporary,
        )
        os.replace(temporary, options.checkpoint)
        print(f"saved step {step} of {options.steps}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    # All is saved and printed. Skip the interpreter's teardown: torch 2.11 now and then aborts in it (a joinable thread).
    os._exit(0)


def samples(step: int) -> torch.Tensor:
    """The inputs of a step, the same on every rank.  [SAMPLES_PER_STEP, 16]"""
    return torch.randn(SAMPLES_PER_STEP, 16, generator=torch.Generator().manual_seed(step))


if __name__ == "__main__":
    main()
