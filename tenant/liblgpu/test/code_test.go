package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/sim/fatbin/fatbintest"
	"github.com/lgpu/lgpu/tenant/region"
)

// big is a module with a variable of so many MiB and a kernel. Loaded, it takes 2 MiB more for its code.
func big(megabytes int) []byte {
	return fmt.Appendf(nil, ".version 7.0\n.target sm_70\n.address_size 64\n"+
		".visible .global .align 4 .b8 big[%d];\n.visible .entry nop(){ ret; }\n",
		megabytes<<20)
}

// codeProgram runs testdata/code.c with an image and returns what it printed, a step each. The device never holds more
// than most for it.
func codeProgram(t *testing.T, d *device, env []string, most uint64, image []byte, args ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(simProgram(t, "testdata/code.c", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN"), append([]string{path},
		args...)...)
	cmd.Env = env
	out := d.observe(t, cmd, most)
	return strings.Split(strings.TrimSpace(strings.ReplaceAll(out, " used", "")), "\n")
}

func wantLines(t *testing.T, have []string, want ...string) {
	t.Helper()
	if strings.Join(have, ", ") != strings.Join(want, ", ") {
		t.Errorf("have %s\nwant %s", strings.Join(have, ", "), strings.Join(want, ", "))
	}
}

// images are the forms in which a module with a large variable can be read before it is loaded.
func images(t *testing.T, megabytes int) map[string][]byte {
	ptx := big(megabytes)
	return map[string][]byte{
		"PTX":        ptx,
		"fat binary": fatbintest.Image(t, fatbintest.None, fatbintest.Entry{Kind: fatbintest.PTX, Arch: 70, Data: ptx}),
	}
}

// A library that does not fit is refused by its first use, whichever that is, before the device has it.
func TestLargeLibrariesAreRefused(t *testing.T) {
	const limit = 256 * mib
	d := newDevice(t, accountingShape)
	for name, image := range images(t, 300) {
		t.Run(name, func(t *testing.T) {
			env, _ := d.lgpu(limit, region.NoLimit)
			var want []string
			for _, use := range []string{"cuLibraryGetModule", "cuLibraryGetGlobal", "cuKernelGetFunction",
				"cuLibraryEnumerateKernels", "cuLaunchKernel",
				"cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz", "cuLaunchKernelEx",
				"cuLaunchKernelEx_ptsz"} {
				want = append(want, "load 0 64", use+" 2 64", "unload 0 64")
			}
			wantLines(t, codeProgram(t, d, env, limit, image, "each"), want...)
		})
	}
}

// A library that fits is charged once for each context that uses it, until it or the context is no more.
func TestLibraries(t *testing.T) {
	d := newDevice(t, accountingShape)
	env, path := d.lgpu(512*mib, region.NoLimit)
	wantLines(t, codeProgram(t, d, env, 512*mib, big(100), "all"), "load 0 64", "cuLibraryGetModule 0 166",
		"second context 0 230", "use 0 332", "use 0 332",
		"end 0 166", "second context 0 230", "use 0 332", "unload 0 128", "end 0 64")
	spent(t, path)
}

// Where programs have libraries loaded at once, that is refused.
func TestEagerLibraries(t *testing.T) {
	const limit = 256 * mib
	d := newDevice(t, accountingShape)
	env, _ := d.lgpu(limit, region.NoLimit)
	env = append(env, "CUDA_MODULE_LOADING=EAGER")
	wantLines(t, codeProgram(t, d, env, limit, big(300), "load", "load"), "load 2 64", "load 2 64")
	wantLines(t, codeProgram(t, d, env, limit, big(100), "load", "load"), "load 0 166", "load 2 166")
}

// A module that does not fit is refused before the device has it.
func TestLargeModulesAreRefused(t *testing.T) {
	const limit = 256 * mib
	d := newDevice(t, accountingShape)
	for name, image := range images(t, 300) {
		t.Run(name, func(t *testing.T) {
			env, _ := d.lgpu(limit, region.NoLimit)
			wantLines(t, codeProgram(t, d, env, limit, image, "modules"), "cuModuleLoad 2 64", "cuModuleLoadData 2 64",
				"cuModuleLoadDataEx 2 64",
				"cuModuleLoadFatBinary 2 64")
		})
	}
	env, _ := d.lgpu(limit, region.NoLimit)
	wantLines(t, codeProgram(t, d, env, limit, big(100), "module", "module"), "load 0 166", "unload 0 64", "load 0 166",
		"unload 0 64")
}

// What a compressed image has shows when it is loaded. A module goes at once; a library's use fails, and nothing else
// is granted until it is unloaded.
func TestCompressedCode(t *testing.T) {
	d := newDevice(t, accountingShape)
	image := fatbintest.Image(t, fatbintest.LZ4, fatbintest.Entry{Kind: fatbintest.PTX, Arch: 70, Data: big(300)})
	env, _ := d.lgpu(256*mib, region.NoLimit)
	wantLines(t, codeProgram(t, d, env, 1<<30, image, "modules"), "cuModuleLoad 2 64", "cuModuleLoadData 2 64",
		"cuModuleLoadDataEx 2 64",
		"cuModuleLoadFatBinary 2 64")
	wantLines(t, codeProgram(t, d, env, 1<<30, image, "late"), "load 0 64", "use 2 256", "allocate 2 256", "unload 0 64",
		"allocate 0 68")
}

// Stacks for every thread that the device can run are refused where they do not fit, before the device has them,
// whether the program asks for them or a kernel needs them.
func TestStacks(t *testing.T) {
	const limit = 256 * mib
	image := []byte(".version 7.0\n.target sm_70\n.address_size 64\n")
	for name, bytes := range map[string]int{"small": 4 << 10, "large": 64 << 10} {
		image = fmt.Appendf(image, ".visible .entry %s() { .local .align 4 .b8 a[%d]; "+
			".reg .u64 %%rd1; mov.u64 %%rd1, a; st.local.u8 [%%rd1], 1; ret; }\n",
			name, bytes)
	}
	// 4 units of 2048 threads: of 16 KiB 120 MiB above the default 1 KiB, of 4 KiB 24 MiB, of 64 KiB more than
	// there is.
	d := newDevice(t, accountingShape)
	env, _ := d.lgpu(limit, region.NoLimit)
	wantLines(t, codeProgram(t, d, env, limit, image, "stacks"), "load 0 66", "limit of 16 KiB 0 186",
		"limit of 64 KiB 2 186", "limit of 1 KiB 0 66",
		"large 2 66", "small 0 90", "limit of 1 KiB 0 66", "library 0 66", "use 0 66", "large 2 66", "small 0 90")
}
