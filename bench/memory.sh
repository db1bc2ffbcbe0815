#!/bin/sh
# The tables of docs/benchmarks.md about memory. Needs an NVIDIA GPU; nvcc and
# PyTorch where they are. Run from the repository's root after "make build", or
# with LGPU naming the command.
lgpu=${LGPU:-bin/lgpu}
limit=${LIMIT:-4GiB}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
TRUTH='env -u LD_PRELOAD -u LGPU_SOCKET nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0'
LGPU_CONTAIN=off # a contained program cannot leave, not even to ask for the truth
export TRUTH LGPU_CONTAIN
bad=0

for name in memory memory_many; do
	${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -Itenant/abi/include -o "$work/$name" "bench/$name.c" -lcuda || exit 1
done
${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -Itenant/abi/include -o "$work/race" bench/memory_race.c -lcuda -lnvidia-ml -lpthread &&
	${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -Itenant/abi/include -o "$work/cost" bench/memory_cost.c -lcuda || exit 1

echo "== every path to a limit of $limit"
$lgpu run --memory "$limit" --device 0 -- "$work/memory" || bad=1
echo "== pools near the limit, by six threads, looked at from outside"
$lgpu run --memory 1400MiB --device 0 -- "$work/race" 6 10 || bad=1
echo "== beside ${MANY:-300} processes"
"$work/memory_many" "${MANY:-300}" $lgpu run --memory "$limit" --device 0 -- "$work/memory" cuMemAlloc cuModuleLoadData cuLibraryGetGlobal || bad=1
if command -v nvcc >/dev/null; then
	nvcc -o "$work/runtime" bench/memory_runtime.cu && echo "== the CUDA runtime" &&
		{ $lgpu run --memory "$limit" --device 0 -- "$work/runtime" || bad=1; }
fi
if python3 -c 'import torch' 2>/dev/null; then
	echo "== PyTorch"
	$lgpu run --memory "$limit" --device 0 -- python3 bench/memory_torch.py || bad=1
	PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True $lgpu run --memory "$limit" --device 0 -- python3 bench/memory_torch.py || bad=1
fi
echo "== nvidia-smi inside"
$lgpu run --memory "$limit" --device 0 -- nvidia-smi || bad=1
echo "== cost of calls, microseconds: native, inside, native, inside"
"$work/cost"
$lgpu run --memory "$limit" --device 0 -- "$work/cost"
"$work/cost"
$lgpu run --memory "$limit" --device 0 -- "$work/cost"
echo "== 64 processes that start at once: native, inside"
${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -Itenant/abi/include -o "$work/start" bench/memory_start.c -lcuda || exit 1
"$work/start" 64 3
$lgpu run --memory "$limit" --device 0 -- "$work/start" 64 3
exit $bad
