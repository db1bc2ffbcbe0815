package test

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/tenant/abi"
)

// answers lists what cuGetProcAddress answers at and around every version at which its answer changes.
func answers(t *testing.T) string {
	t.Helper()
	cuda, _, err := symbols()
	if err != nil {
		t.Fatal(err)
	}
	bases := map[string][]abi.Symbol{}
	var names []string
	for _, s := range cuda {
		if s.Base == "" {
			continue
		}
		if bases[s.Base] == nil {
			names = append(names, s.Base)
		}
		bases[s.Base] = append(bases[s.Base], s)
	}
	var lines strings.Builder
	for _, base := range names {
		for flag := range 3 {
			rows := bases[base][:0:0]
			for _, s := range bases[base] {
				if s.Flags>>flag&1 != 0 {
					rows = append(rows, s)
				}
			}
			sort.Slice(rows, func(i, j int) bool { return rows[i].Since < rows[j].Since })
			for i, s := range rows {
				before := "- none"
				if i > 0 {
					before = rows[i-1].Name + " " + string(rows[i-1].Class)
				}
				fmt.Fprintf(&lines, "%s %d %d %s\n", base, s.Since-1, flag, before)
				fmt.Fprintf(&lines, "%s %d %d %s %s\n", base, s.Since, flag, s.Name, s.Class)
				if i == len(rows)-1 {
					fmt.Fprintf(&lines, "%s %d %d %s %s\n", base, abi.DriverVersion, flag, s.Name, s.Class)
				}
			}
		}
	}
	return lines.String()
}

func TestProcAddressIsTheDriversChoiceOrOurs(t *testing.T) {
	drivers := []string{built.cuda}
	for _, dir := range filepath.SplitList(os.Getenv("LGPU_TEST_DRIVERS")) {
		drivers = append(drivers, filepath.Join(dir, "libcuda.so.1"))
	}
	for _, driver := range drivers {
		env := tenant(newRegion(t, spec(1<<30, 0)), "LGPU_REAL_LIBCUDA="+driver, "LD_LIBRARY_PATH="+filepath.Dir(driver))
		out, errs, err := run(t, env, answers(t), program(t, "procaddress"))
		if err != nil {
			t.Errorf("%s: %v\n%s%s", driver, err, out, errs)
		}
		t.Logf("%s: %s", driver, strings.TrimSpace(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]))
	}
}

// A form that is not on the list is withheld where the call is hooked; where it only enters the residence lock, in lgpus
// with overcommit. A program that has it already gets no GPU there.
func TestNewestForms(t *testing.T) {
	bin := program(t, "newest", "-ldl")
	for _, c := range []struct {
		name       string
		overcommit uint32
		steps      string
		want       string
	}{
		{"cuMemcpyAsync", 0, "ask init ask", "given 0\ninit 0\ngiven 0\n"},
		{"cuMemcpyAsync", 1, "init ask", "init 0\nwithheld 500\n"},
		{"cuMemcpyAsync", 1, "ask init", "given 0\ninit 101\n"},
		{"cuLaunchKernel", 0, "ask init ask", "withheld 500\ninit 0\nwithheld 500\n"},
		{"cuLaunchKernel", 1, "ask init ask", "withheld 500\ninit 0\nwithheld 500\n"},
		{"cuEventQuery", 1, "ask init ask", "given 0\ninit 0\ngiven 0\n"},
	} {
		s := spec(1<<30, 0)
		s.Devices[0].Overcommit = c.overcommit
		out, errs, err := run(t, tenant(newRegion(t, s), "STUB_NEWEST="+c.name), "", bin, strings.Fields(c.steps)...)
		if err != nil || out != c.want {
			t.Errorf("%s, overcommit %d, %s: %v, printed %q, want %q\n%s", c.name, c.overcommit, c.steps, err, out, c.want, errs)
		}
	}
}
