"""ddp: a training job on two devices, one process on each, by DistributedDataParallel over NCCL.

    ddp.py [--fake]

It reads commands as load.c does, and answers each with one line of JSON:

    begin           start the processes, and train until all is warm
    run FROM TO     train until TO, and report the steps of the first process that ended after FROM
    end             end the processes

PyTorch is loaded before `begin`, and nothing else, so that a job can start while another is measured. The model is
launch-bound: hundreds of small kernels a step. With --fake the processes sleep, where there is no PyTorch. NVLink
multicast stays off, whatever the environment says.
"""
import os

os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1",
                  TORCH_NCCL_ENABLE_MONITORING="0")

import json
import multiprocessing
import socket
import sys
import time

FAKE = "--fake" in sys.argv
WORLD = 2
AHEAD = 8  # steps: the processes wait for each other in each step, so none is this far ahead of another
PATIENCE = 60  # seconds

if not FAKE:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


class FakeTraining:
    def __init__(self, rank, port):
        pass

    def step(self):
        time.sleep(0.005)

    def close(self):
        pass


class Training:
    """One process of the job."""

    def __init__(self, rank, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", rank=rank, world_size=WORLD, device_id=self.device)
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(self.device)
        self.model = DistributedDataParallel(model, device_ids=[rank])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(8, 32, 256, device=self.device)
        for _ in range(10):
            self.step()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        torch.cuda.synchronize(self.device)

    def close(self):
        dist.destroy_process_group()


def train(training, rank, start, end, last):
    """Steps until the first process says which is the last: all must make the same number."""
    marks, step = [], 0
    while last.value < 0 or step < last.value:
        began = time.monotonic_ns()
        if rank == 0 and last.value < 0 and began >= end:
            last.value = step + AHEAD
        training.step()
        ended = time.monotonic_ns()
        step += 1
        if start < ended and began < end:
            marks += [began - start, ended - start]
    return marks


def process(rank, port, pipe, last):
    """Main function of a process of the job: it ends when the pipe does, or with the job's main process."""
    try:
        training = (FakeTraining if FAKE else Training)(rank, port)
        pipe.send({"begun": True})
        while True:
            start, end = pipe.recv()
            pipe.send({"marks": train(training, rank, start, end, last)})
    except EOFError:
        training.close()
        os._exit(0)
    except Exception as e:
        pipe.send({"error": "process %d: %s: %s" % (rank, type(e).__name__, e)})
        os._exit(1)


class Job:
    def __init__(self):
        # A fork is much quicker than a new Python with PyTorch; nothing has been done with a device before it.
        self.fork = multiprocessing.get_context("fork")
        self.pipes, self.processes = [], []
        self.last = self.fork.Value("q", -1, lock=False)

    def begin(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        pairs = [self.fork.Pipe() for _ in range(WORLD)]
        for rank, (_, theirs) in enumerate(pairs):
            others = [end for mine, other in pairs for end in (mine, other) if end is not theirs]
            self.processes.append(self.fork.Process(target=self.child, args=(rank, port, theirs, others), daemon=True))
            self.processes[-1].start()
        for mine, theirs in pairs:
            theirs.close()
            self.pipes.append(mine)
        return self.answers()

    def child(self, rank, port, pipe, others):
        for end in others:  # or the end of the main process would go unnoticed
            end.close()
        process(rank, port, pipe, self.last)

    def answers(self):
        got = []
        for pipe in self.pipes:
            if not pipe.poll(PATIENCE):
                raise TimeoutError("a process of the job has not answered for %d s" % PATIENCE)
            got.append(pipe.recv())
        return next((a for a in got if "error" in a), got[0])

    def run(self, start, end):
        self.last.value = -1
        for pipe in self.pipes:
            pipe.send((start, end))
        return self.answers()

    def end(self):
        for pipe in self.pipes:
            pipe.close()
        for p in self.processes:
            p.join(20)
            if p.is_alive():
                p.kill()
        self.pipes, self.processes = [], []
        return {"ended": True}

    def do(self, words):
        if words == ["begin"] and not self.processes:
            return self.begin()
        if words[:1] == ["run"] and len(words) == 3 and self.processes:
            return self.run(int(words[1]), int(words[2]))
        if words == ["end"]:
            return self.end()
        return {"error": "not understood: " + " ".join(words)}


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    job = Job()
    print(json.dumps({"ready": True, "pid": os.getpid()}), file=out, flush=True)
    for line in sys.stdin:
        try:
            answer = job.do(line.split())
        except Exception as e:
            answer = {"error": "%s: %s: %s" % (line.strip(), type(e).__name__, e)}
        print(json.dumps(answer), file=out, flush=True)
    job.end()


if __name__ == "__main__":
    main()
