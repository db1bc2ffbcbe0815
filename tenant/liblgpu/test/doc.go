// Package test builds and tests liblgpu.so, the C library in the folder above. It is apart because a folder with C
// sources cannot be a Go package. The programs that the tests run are in ../testdata.
package test
