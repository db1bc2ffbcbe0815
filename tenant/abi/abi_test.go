package abi

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestLists(t *testing.T) {
	cuda, err := CUDA()
	if err != nil {
		t.Fatal(err)
	}
	nvml, err := NVML()
	if err != nil {
		t.Fatal(err)
	}
	if len(cuda) < 700 || len(nvml) < 400 {
		t.Fatalf("%d CUDA and %d NVML symbols: the lists are cut short", len(cuda), len(nvml))
	}
	find := func(syms []Symbol, name string) *Symbol {
		for i := range syms {
			if syms[i].Name == name {
				return &syms[i]
			}
		}
		t.Fatalf("%s is not listed", name)
		return nil
	}
	s := find(cuda, "cuMemAlloc_v2")
	if s.Base != "cuMemAlloc" || s.Since != 3020 || s.Flags != Default|LegacyStream|PerThreadStream {
		t.Errorf("cuMemAlloc_v2 = %+v", s)
	}
	for name, want := range map[string]string{
		"cuMemAlloc_v2":      "CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)",
		"cuCtxSynchronize":   "CUresult cuCtxSynchronize(void)",
		"cuGetProcAddress":   "CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)",
		"cuMemcpy_ptds":      "CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)",
		"cudbgGetAPI":        "",
		"cuLaunchKernel":     "CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)",
		"cuDriverGetVersion": "CUresult cuDriverGetVersion(int *driverVersion)",
	} {
		if got := find(cuda, name).Prototype(); got != want {
			t.Errorf("%s: prototype %q, want %q", name, got, want)
		}
	}
	if got, want := find(nvml, "nvmlErrorString").Prototype(), "const char* nvmlErrorString(nvmlReturn_t result)"; got != want {
		t.Errorf("prototype %q, want %q", got, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"cuInit\tcuInit\t2000\t012\tpass", "5 columns"},
		{"a\ta\t2000\t012\tpass\tvoid\na\ta\t2000\t012\tpass\tvoid", "cuda.tsv:2: a is listed twice"},
		{"a\ta\tnew\t012\tpass\tvoid", "not a CUDA version"},
		{"a\ta\t2000\t3\tpass\tvoid", "only digits"},
		{"a\ta\t2000\t\tpass\tvoid", "no flags"},
		{"a\t-\t2000\t-\tpass\tvoid", "no base name"},
		{"a\ta\t2000\t0\tmaybe\tvoid", "not one of hook"},
		{"a\ta\t2000\t0\tpass\tint", "no type or no name"},
		{"a\ta\t2000\t0\tpass\tint *", "no type or no name"},
	} {
		if _, err := ParseCUDA(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q", c.text, err, c.want)
		}
	}
}

// TestHeaders compiles a program against the headers both ways and looks at the layouts that matter most.
func TestHeaders(t *testing.T) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	for name, text := range map[string]string{
		"names.c": `#include <lgpu_cuda.h>
#include <lgpu_nvml.h>
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "memcpy");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "memcpy2d");
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72, "kernel node");
_Static_assert(sizeof(CUgraphNodeParams) == 256, "node");
_Static_assert(sizeof(CUmemPoolProps) == 88, "pool");
_Static_assert(sizeof(CUlaunchAttribute) == 72, "attribute");
_Static_assert(sizeof(CUtensorMap) == 128 && _Alignof(CUtensorMap) == 128, "tensor map");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40 && sizeof(nvmlProcessInfo_t) == 24 && sizeof(nvmlPciInfo_t) == 68, "nvml");
_Static_assert(CUDA_ERROR_UNKNOWN == 999 && CU_DEVICE_ATTRIBUTE_MAX > 140, "values");
CUresult (*a)(CUdeviceptr *, size_t) = cuMemAlloc_v2;
int use(void) { CUdeviceptr p; return cuMemAlloc(&p, 1) + nvmlInit() + (a == cuMemAlloc); }
`,
		"plain.c": `#define LGPU_CUDA_PLAIN
#define LGPU_NVML_PLAIN
#include <lgpu_cuda.h>
#include <lgpu_nvml.h>
CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) { *dptr = bytesize; return CUDA_SUCCESS; }
nvmlReturn_t nvmlInit(void) { return NVML_SUCCESS; }
`,
	} {
		src := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", "include", "-c", "-o", os.DevNull, src).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
