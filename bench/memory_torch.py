"""PyTorch against a memory limit: takes all there is, must get an error that it can catch, and go on.

    lgpu run --memory 4GiB -- python3 bench/memory_torch.py
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lgpu run --memory 4GiB -- python3 bench/memory_torch.py
"""
import os
import subprocess

import torch

MIB = 1 << 20


def truth():
    """MiB in use on the whole device, from the command in $TRUTH."""
    command = os.environ.get("TRUTH")
    return float(subprocess.check_output(command, shell=True)) if command else -1


def main():
    before = truth()
    free, total = torch.cuda.mem_get_info()
    print(f"torch {torch.__version__}, {os.environ.get('PYTORCH_CUDA_ALLOC_CONF', 'default allocator')}: "
          f"{free / MIB:.0f} of {total / MIB:.0f} MiB free")
    x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    (x @ x).sum().item()
    for size in (64 * MIB, 3 * MIB):
        held, error = [], "none"
        try:
            while True:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError as e:
            error = "OutOfMemoryError"
            del e
        free, total = torch.cuda.mem_get_info()
        print(f"{size // MIB} MiB: {len(held)} held, {error}; reserved {torch.cuda.memory_reserved() / MIB:.0f}, "
              f"shown used {(total - free) / MIB:.0f} of {total / MIB:.0f} MiB, device {truth() - before:.0f} MiB more than before")
        if size == 64 * MIB:
            print("  nvidia-smi inside:", subprocess.check_output(
                ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader"], text=True).strip(), "|",
                subprocess.check_output(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"], text=True).strip(),
                "| own pid", os.getpid())
        held.clear()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        print(f"  after: shown used {(total - free) / MIB:.0f} MiB; product again {(x @ x).float().mean().item() is not None}")


main()
