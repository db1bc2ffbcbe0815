package main

// The kernel of demo/shmem, an example of lshmem in CUDA and C (ring.cu, ring.c) and in Python (ring.py).
//go:generate clang-19 -x cuda -std=c++17 --cuda-device-only --cuda-gpu-arch=sm_70 -Xclang -target-feature -Xclang +ptx78 -nocudainc -nocudalib -Wall -Wextra -Werror -O2 -fno-verbose-asm -I ../shmem/include -S -o shmem/ring.ptx shmem/ring.cu
