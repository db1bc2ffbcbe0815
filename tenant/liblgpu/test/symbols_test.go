package test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/tenant/abi"
)

func TestGeneratedFilesAreFresh(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("go", "run", "./gen", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*/*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("nothing was generated: %v", err)
	}
	for _, path := range files {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != string(want) {
			t.Errorf("%s is not what the list of symbols gives; run go generate ./tenant/liblgpu/gen", name)
		}
	}
}

// exported returns the names that a library defines for others.
func exported(t *testing.T, path string) []string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range all {
		if s.Section != elf.SHN_UNDEF && elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			names = append(names, s.Name)
		}
	}
	sort.Strings(names)
	return names
}

func TestExportsWhatIsDeclaredAndNothingElse(t *testing.T) {
	cuda, nvml, err := symbols()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"dlsym", "dlvsym", "ioctl"}
	for _, s := range append(cuda, nvml...) {
		want = append(want, s.Name)
	}
	sort.Strings(want)
	if have := exported(t, built.library); strings.Join(have, "\n") != strings.Join(want, "\n") {
		t.Errorf("exported symbols differ from the lists: %s", difference(have, want))
	}
}

func difference(have, want []string) string {
	count := map[string]int{}
	for _, n := range want {
		count[n]++
	}
	for _, n := range have {
		count[n]--
	}
	var out []string
	for n, c := range count {
		if c > 0 {
			out = append(out, "-"+n)
		} else if c < 0 {
			out = append(out, "+"+n)
		}
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

// Every symbol of a driver's library must be declared, and so hooked, passed or refused by name. The real driver is
// looked for where the loader finds it, the software GPU's in the folders of LGPU_TEST_DRIVERS.
func TestEverySymbolOfADriverIsClassified(t *testing.T) {
	cuda, err := abi.CUDA()
	if err != nil {
		t.Fatal(err)
	}
	nvml, err := abi.NVML()
	if err != nil {
		t.Fatal(err)
	}
	class := map[string]abi.Class{}
	for _, s := range append(cuda, nvml...) {
		class[s.Name] = s.Class
	}
	libraries := []string{built.cuda, built.nvml}
	for _, dir := range append(filepath.SplitList(os.Getenv("LGPU_TEST_DRIVERS")), "/usr/lib/x86_64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64") {
		for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
			if path := filepath.Join(dir, name); exists(path) {
				libraries = append(libraries, path)
			}
		}
	}
	for _, path := range libraries {
		n := 0
		for _, name := range exported(t, path) {
			if !strings.HasPrefix(name, "cu") && !strings.HasPrefix(name, "nvml") {
				continue
			}
			n++
			if class[name] == "" {
				t.Errorf("%s exports %s, which is neither hooked, passed nor refused", path, name)
			}
		}
		t.Logf("%s: %d symbols", path, n)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// The library must load with every glibc since 2.17, and needs nothing but libc.
func TestNeedsOnlyAnOldLibc(t *testing.T) {
	f, err := elf.Open(built.library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, lib := range needed {
		if lib != "libc.so.6" {
			t.Errorf("needs %s", lib)
		}
	}
	imported, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range imported {
		if !strings.HasPrefix(s.Version, "GLIBC_2.") || newer(s.Version, "GLIBC_2.17") {
			t.Errorf("needs %s of %q", s.Name, s.Version)
		}
	}
	if len(imported) == 0 {
		t.Error("imports nothing: the check sees nothing")
	}
}

// newer reports whether version a ("GLIBC_2.3.4") is above b.
func newer(a, b string) bool {
	split := func(v string) [3]int {
		var out [3]int
		for i, part := range strings.Split(strings.TrimPrefix(v, "GLIBC_"), ".") {
			for _, c := range part {
				out[i] = out[i]*10 + int(c-'0')
			}
		}
		return out
	}
	x, y := split(a), split(b)
	for i := range x {
		if x[i] != y[i] {
			return x[i] > y[i]
		}
	}
	return false
}

func TestNothingRunsAtLoad(t *testing.T) {
	f, err := elf.Open(built.library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, tag := range []elf.DynTag{elf.DT_INIT, elf.DT_FINI, elf.DT_INIT_ARRAY, elf.DT_FINI_ARRAY} {
		if v, err := f.DynValue(tag); err != nil || len(v) != 0 {
			t.Errorf("has %v (%v)", tag, err)
		}
	}
	for _, s := range f.Sections {
		if strings.Contains(s.Name, "ctors") || strings.HasPrefix(s.Name, ".init") {
			t.Errorf("has a section %s", s.Name)
		}
	}
}
