// Package kernels has the test kernels of the software GPU: CUDA C and the PTX that clang makes of it. It exists so
// that the interpreter's tests, the driver's, the demo and the benchmarks run the same programs. The parameters of each
// kernel are those of its function in the .cu file.
package kernels

import _ "embed" // for the PTX

//go:generate clang-14 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -Xclang -target-feature -Xclang +ptx60 -nocudainc -nocudalib -O2 -S linear.cu -o linear.ptx
//go:generate clang-14 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -Xclang -target-feature -Xclang +ptx60 -nocudainc -nocudalib -O2 -S compute.cu -o compute.ptx
//go:generate clang-14 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -Xclang -target-feature -Xclang +ptx60 -nocudainc -nocudalib -O2 -S control.cu -o control.ptx

// Linear has saxpy, vector_add, fill, verify and chase.
//
//go:embed linear.ptx
var Linear []byte

// Compute has compute, reduce_sum, shuffle_sum, matmul, histogram and dynamic_reverse.
//
//go:embed compute.ptx
var Compute []byte

// Control has spin, spin_cycles, wait_flag, collatz, spin_lock, fibonacci, apply, out_of_bounds, smid, count and
// polynomial, and the variables counter, counter_address and coefficients.
//
//go:embed control.ptx
var Control []byte
