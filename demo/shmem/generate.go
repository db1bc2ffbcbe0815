// Package shmem is an example of lshmem: a ring of PEs, in CUDA and C (ring.cu, ring.c) and in Python (ring.py). "make
// demo-shmem" runs both on a software GPU.
package shmem

//go:generate clang-19 -x cuda -std=c++17 --cuda-device-only --cuda-gpu-arch=sm_70 -Xclang -target-feature -Xclang +ptx78 -nocudainc -nocudalib -Wall -Wextra -Werror -O2 -I ../../shmem/include -S -o ring.ptx ring.cu
