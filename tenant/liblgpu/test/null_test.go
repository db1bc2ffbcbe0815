package test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/tenant/abi"
)

// nullProgram writes a program that calls every symbol of ours with NULL for all pointers, then for each one alone. It
// prints the call before it makes it, so that a crash names itself.
func nullProgram(t *testing.T) (string, int) {
	t.Helper()
	cuda, nvml, err := symbols()
	if err != nil {
		t.Fatal(err)
	}
	var calls bytes.Buffer
	n := 0
	for _, s := range append(cuda, nvml...) {
		if s.Class == abi.Pass || !s.Known() {
			continue
		}
		var types, zeros []string
		var pointers []int
		for i, p := range s.Params {
			kind := "long"
			if strings.HasSuffix(p.Type, "*") {
				kind = "void *"
				pointers = append(pointers, i)
			}
			types = append(types, kind)
			zeros = append(zeros, "0")
		}
		call := func(args []string) {
			n++
			fmt.Fprintf(&calls, "\tputs(\"%s(%s)\");\n", s.Name, strings.Join(args, ", "))
			fmt.Fprintf(&calls, "\t((int (*)(%s))find(\"%s\"))(%s);\n\trestore();\n", strings.Join(types, ", "), s.Name, strings.Join(args, ", "))
		}
		call(zeros)
		for _, null := range pointers {
			args := append([]string{}, zeros...)
			for _, i := range pointers {
				if i != null {
					args[i] = "buffer"
				}
			}
			call(args)
		}
	}
	path := filepath.Join(built.dir, "null_gen.c")
	text := `#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static char buffer[65536];
static void *find(const char *name)
{
	void *p = dlsym(RTLD_DEFAULT, name);
	if (p == NULL)
		printf("no %s\n", name);
	return p;
}
static void restore(void)
{
	void *context;
	memset(buffer, 0, sizeof buffer);
	((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, 0);
	((int (*)(void *))find("cuCtxSetCurrent"))(context);
}
int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	((int (*)(unsigned))find("cuInit"))(0);
	restore();
` + calls.String() + "\tputs(\"done\");\n\treturn 0;\n}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(built.dir, "null")
	if err := gcc("-D_GNU_SOURCE", "-w", "-O0", path, "-o", bin, "-ldl"); err != nil {
		t.Fatal(err)
	}
	return bin, n
}

func TestNullPointersInEveryHookedCall(t *testing.T) {
	bin, calls := nullProgram(t)
	if calls < 200 {
		t.Errorf("only %d calls are made", calls)
	}
	capped := spec(64*mib, 0)
	capped.Devices[0].Compute = 5000
	for name, env := range map[string][]string{
		"checked":   append(tenant(newRegion(t, capped)), "LD_PRELOAD="+built.checked),
		"limited":   tenant(newRegion(t, spec(64*mib, 0))),
		"capped":    tenant(newRegion(t, capped)),
		"unlimited": tenant(""),
		"broken":    tenant("/nonexistent/region"),
		"no driver": tenant("", "LGPU_REAL_LIBCUDA=/nonexistent", "LGPU_REAL_LIBNVML=/nonexistent", "LD_LIBRARY_PATH="),
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, err := run(t, env, "", bin)
			if err != nil || !strings.HasSuffix(out, "done\n") {
				lines := strings.Split(strings.TrimSpace(out), "\n")
				t.Errorf("%v after %s\n%s", err, lines[len(lines)-1], errs)
			}
		})
	}
}
