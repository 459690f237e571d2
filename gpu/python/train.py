"""A small training loop for the suite: DDP, FSDP or a captured graph; several ways to end; PyTorch's own profiler before, after or beside ours.

The suite starts one process per rank. The results go to the file named by --told.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["ddp", "fsdp", "graph"], default="ddp")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--told", required=True, help="the file for the results")
    parser.add_argument("--meeting", required=True, help="the file through which the ranks find each other")
    parser.add_argument("--exit", default="orderly", dest="ending",
                        choices=["orderly", "return", "at-once", "exception", "terminated", "fork-before", "fork-after"])
    parser.add_argument("--profiler", choices=["none", "before", "after", "lent", "whole"], default="none")
    parser.add_argument("--timed", action="store_true", help="report how long a step takes")
    return parser.parse_args()


def fork():
    """Forks a child that does nothing and exits, as a data loader's worker might, and waits for it."""
    child = os.fork()
    if child == 0:
        time.sleep(0.05)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status


def model_for(torch, kind, device):
    from torch import nn

    layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=1)
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=device)


def graph(torch, device):
    """Captures collectives and the compute between them. A replay is one step."""
    import torch.distributed as dist

    data = torch.randn(64, 512, device=device)
    whole = torch.empty(dist.get_world_size() * data.numel(), device=device)

    def work():
        dist.all_reduce(data)
        data.mul_(0.5)
        dist.all_gather_into_tensor(whole, data.view(-1))

    # NCCL connects before the capture, not during it.
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        work()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work()
    return captured


def trainer(torch, kind, device):
    model = model_for(torch, kind, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 512, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    return step


def profiler(torch):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    return torch.profiler.profile(activities=activities)


def kernels_in(profile):
    """The number of GPU events in the profile."""
    return sum(1 for event in profile.events() if "cuda" in str(event.device_type).lower())


def main():
    options = arguments()
    told = {"asked": [], "spins": 0, "figures": {}, "series": {}, "words": {}, "gpus": []}
    if options.ending == "fork-before":
        told["figures"]["child"] = fork()

    import torch
    import torch.distributed as dist

    def tell():
        with open(options.told + ".unfinished", "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(options.told + ".unfinished", options.told)

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    profile = profiler(torch) if options.profiler in ("before", "whole") else None
    if profile is not None:
        profile.start()
        # The profiler takes CUPTI at the first GPU work.
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize()
    dist.init_process_group("nccl", init_method="file://" + os.path.abspath(options.meeting),
                            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    captured = graph(torch, device) if options.kind == "graph" else None
    step = captured.replay if captured else trainer(torch, options.kind, device)
    for _ in range(2 if options.timed else 0):
        step()
    torch.cuda.synchronize()

    times = []
    for number in range(options.steps):
        if options.ending == "fork-after" and number == 1:
            told["figures"]["child"] = fork()
        beside = contextlib.nullcontext()
        if number == 1 and options.profiler == "lent":
            import ncclscope

            torch.cuda.synchronize()
            beside = ncclscope.cupti_released()
        with beside:
            if number == 1 and options.profiler in ("after", "lent"):
                with profiler(torch) as own:
                    step()
                    torch.cuda.synchronize()
                told["figures"]["profiler_kernels"] = kernels_in(own)
                torch.cuda.synchronize()
                continue
            began = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e6)
    if options.timed and times:
        told["figures"]["step_us"] = statistics.median(times)
    if profile is not None:
        profile.stop()
        told["figures"]["profiler_kernels"] = kernels_in(profile)

    if options.ending in ("at-once", "terminated"):
        # Events older than this are in the trace when the process is killed.
        time.sleep(2.5)
    tell()
    if options.ending == "at-once":
        os._exit(0)
    if options.ending == "exception":
        raise RuntimeError("this is what was asked for")
    if options.ending == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        sys.exit("SIGTERM did not end the process")
    if captured:
        # NCCL does not end a communicator before the graphs with its kernels: it would wait forever.
        captured.reset()
    if options.ending != "return":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
