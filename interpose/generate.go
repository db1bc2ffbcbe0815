// Package interpose builds and tests liblgpu.so, the C library that stands between a program and NVIDIA's driver
// libraries. It has no Go code of its own: C is used here because the library lives in other people's processes.
//
// Which source does what is said at its head; core.h is the place to begin. symbols_gen.*, forward_gen.inc and
// liblgpu_gen.map are generated from the declared list of driver symbols in package abi.
package interpose

//go:generate go run ./gen .
