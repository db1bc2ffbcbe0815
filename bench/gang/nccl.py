"""nccl: all-reduces of PyTorch over two devices, for SECONDS, one process a device.

    nccl.py ORDER SECONDS [MEGABYTES]     ORDER: 01 or 10, the devices of ranks 0 and 1

Prints "rounds N seconds S longest MS", a round being ten all-reduces. NVLink multicast stays off, whatever the
environment says.
"""
import os

os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")

import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank, order, seconds, megabytes, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    device = torch.device("cuda", int(order[rank]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=device)
    x = torch.ones(megabytes * 262144, device=device)
    stop = torch.zeros(1, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    rounds, longest, start = 0, 0.0, time.time()
    while stop.item() == 0:
        began = time.time()
        for _ in range(10):
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
        # Both ranks must make the same number of rounds: the one that is late decides.
        stop.fill_(1.0 if time.time() - start > seconds else 0.0)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        torch.cuda.synchronize()
        rounds, longest = rounds + 1, max(longest, time.time() - began)
    if not bool((x == x[0]).all()):
        sys.exit("nccl: the sums differ")
    if rank == 0:
        print("rounds %d seconds %.3f longest %.3f" % (rounds, time.time() - start, 1e3 * longest), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("01", "10"):
        sys.exit("usage: nccl.py 01|10 SECONDS [MEGABYTES]")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(rank_main, args=(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 16, free), nprocs=2)
