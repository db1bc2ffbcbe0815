package test

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// sliced holds what the tests of time slices share: the stand-in of the resource manager and the drivers that use it.
var sliced = sync.OnceValues(func() (slicing, error) {
	s := slicing{dir: filepath.Join(built.dir, "slices")}
	s.standin = filepath.Join(s.dir, "standin.so")
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return s, err
	}
	if err := gcc("-std=c11", "-D_GNU_SOURCE=", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-I.",
		"testdata/rm_standin.c", "-ldl", "-o", s.standin); err != nil {
		return s, err
	}
	text, err := stubSource("testdata/stub_driver.c", "testdata/rm_driver.c")
	if err != nil {
		return s, err
	}
	generated := filepath.Join(s.dir, "stub_gen.c")
	if err := os.WriteFile(generated, text, 0o644); err != nil {
		return s, err
	}
	for name, flags := range drivers {
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o755); err != nil {
			return s, err
		}
		args := append([]string{"-O1", "-g", "-shared", "-fPIC", "-pthread", "-D_GNU_SOURCE=", "-DSTUB_RM", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN",
			"-I../abi/include", "-I.", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"}, flags...)
		args = append(args, "testdata/stub_driver.c", "testdata/rm_driver.c", generated, "-o", s.driver(name))
		if err := gcc(args...); err != nil {
			return s, err
		}
	}
	return s, nil
})

// drivers are the ways in which a driver's library may be linked, and the software GPU's.
var drivers = map[string][]string{
	"lazy": {"-Wl,-z,lazy"},
	"now":  {"-Wl,-z,now", "-Wl,-z,relro"},
	"data": {"-fno-plt", "-Wl,-z,relro"},
	"sim":  {"-DSTUB_SIM"},
}

type slicing struct{ dir, standin string }

func (s slicing) driver(name string) string { return filepath.Join(s.dir, name, "libcuda.so.1") }

// entry is a way in which the library and a driver come into a program.
type entry struct {
	driver   string
	replaced bool
	path     string // of the driver's library, once the program is there
}

func (e entry) String() string {
	return e.driver + map[bool]string{true: "/replacement", false: "/preload"}[e.replaced]
}

// env is the environment of a program.
func (e *entry) env(t *testing.T) []string {
	t.Helper()
	s, err := sliced()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + os.Getenv("PATH")}
	if !e.replaced {
		e.path = s.driver(e.driver)
		return append(env, "LD_PRELOAD="+built.library+":"+s.standin, "LGPU_REAL_LIBCUDA="+e.path, "LGPU_REAL_LIBNVML="+built.nvml,
			"LD_LIBRARY_PATH="+filepath.Dir(e.path))
	}
	dir := replacement(t)
	e.path = filepath.Join(dir, "libcuda.so.1.lgpu-real")
	text, err := os.ReadFile(s.driver(e.driver))
	if err == nil {
		err = os.WriteFile(e.path, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(env, "LD_PRELOAD="+s.standin, "LD_LIBRARY_PATH="+dir)
}

// tenantOf is a program with the library, whose daemon is the test: up to its first launch, which has passed.
func tenantOf(t *testing.T, e entry, devices int, more ...string) (*daemon, *client, *peer) {
	t.Helper()
	return tenantWith(t, e.env(t), "make 0", devices, more...)
}

// tenantWith is tenantOf with an environment, and with an order that makes a context.
func tenantWith(t *testing.T, env []string, context string, devices int, more ...string) (*daemon, *client, *peer) {
	t.Helper()
	var limits []region.DeviceLimits
	for i := range devices {
		limits = append(limits, region.DeviceLimits{UUID: uuid(i), Memory: 16 << 30, Granted: 16 << 30, Physical: 16 << 30, Compute: region.FullCompute})
	}
	d := newDaemon(t, limits...)
	c := startClient(t, append(append(env, "LGPU_SOCKET="+d.path), more...), program(t, "slices", "-ldl"))
	c.order("init")
	p, _, _ := d.accept()
	p.welcome(3, true)
	c.wait("init: 0")
	c.do("%s", context)
	c.do("launch")
	p.expect(protocol.Gate)
	p.expect(protocol.Want)
	p.say(protocol.Message{Kind: protocol.Free})
	c.do("launched")
	return d, c, p
}

// slices checks what the hardware would go by.
func (c *client) slices(want string) {
	c.t.Helper()
	c.order("slices")
	c.wait(want)
	c.wait("slices: 0")
}

// sliced says a Slice, and checks the answer.
func (p *peer) sliced(device uint32, micros, value uint64, flags uint32) {
	p.d.t.Helper()
	p.say(protocol.Message{Kind: protocol.Slice, Device: device, Value: micros})
	p.inForce(device, value, flags)
}

// inForce checks the next message: a Sliced.
func (p *peer) inForce(device uint32, value uint64, flags uint32) {
	p.d.t.Helper()
	if m := p.expect(protocol.Sliced); m.Device != device || m.Value != value || m.Flags != flags {
		p.d.t.Fatalf("the client said %+v; want %d µs on device %d with flags %d", m, value, device, flags)
	}
}

var preloaded = entry{driver: "lazy"}

// The daemon's word holds for the contexts that there are, and for those made later, however the library and the driver
// came in; and for no other channel groups.
func TestSlice(t *testing.T) {
	for driver := range drivers {
		for _, replaced := range []bool{false, true} {
			e := entry{driver: driver, replaced: replaced}
			t.Run(e.String(), func(t *testing.T) {
				_, c, p := tenantOf(t, e, 1)
				c.slices("compute 2048 copy 2048") // nothing is set that nobody has asked for
				p.sliced(0, 50, 50, 0)
				c.slices("compute 50 copy 2048")
				c.do("make 0")
				c.do("retain 0")
				c.slices("compute 3*50 copy 3*2048")
				c.do("destroy 1")
				c.do("make 0")
				c.slices("compute 3*50 copy 3*2048")
				p.sliced(0, 20, 20, 0)
				c.slices("compute 3*20 copy 3*2048")
				p.sliced(0, 0, 2048, 0)
				c.slices("compute 3*2048 copy 3*2048")
				c.do("make 0")
				c.slices("compute 4*2048 copy 4*2048")
				c.do("release 0")
				for n := range 4 {
					if n != 1 {
						c.do("destroy %d", n)
					}
				}
				p.sliced(0, 50, 0, 0) // of nothing
			})
		}
	}
}

// A driver's library whose calls were redirected has its pages as they were: those that the loader has protected.
func TestRedirectedDriverStaysProtected(t *testing.T) {
	e := entry{driver: "now", replaced: true}
	_, c, p := tenantOf(t, e, 1)
	p.sliced(0, 50, 50, 0) // it was redirected
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var driver string
	var base, low, high uint64
	for s := bufio.NewScanner(strings.NewReader(string(maps))); s.Scan(); {
		fields := strings.Fields(s.Text())
		if !strings.HasSuffix(s.Text(), "/libcuda.so.1.lgpu-real") {
			continue
		}
		var from, to uint64
		fmt.Sscanf(fields[0], "%x-%x", &from, &to)
		if driver == "" {
			driver, base = fields[5], from
			low, high = relro(t, driver)
		}
		page := uint64(os.Getpagesize())
		begin, end := (base+low)&^(page-1), (base+high)&^(page-1)
		if from < end && to > begin && fields[1] != "r--p" {
			t.Errorf("%s, which the loader had protected in %x-%x", s.Text(), begin, end)
		}
	}
	if driver == "" || low == high {
		t.Fatalf("the test sees nothing: %q has %d protected bytes", driver, high-low)
	}
}

// relro is the part of a library that its loader protects after it has relocated it.
func relro(t *testing.T, path string) (low, high uint64) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_GNU_RELRO {
			return p.Vaddr, p.Vaddr + p.Memsz
		}
	}
	return 0, 0
}

// A program that sets its slice itself is put right, and the daemon is told of what it had.
func TestSliceSetByTheProgram(t *testing.T) {
	for _, driver := range []string{"lazy", "sim"} {
		t.Run(driver, func(t *testing.T) {
			_, c, p := tenantOf(t, entry{driver: driver}, 1)
			c.do("make 0")
			p.sliced(0, 50, 50, 0)
			c.do("set 1 20000")
			p.inForce(0, 20000, 0)
			p.inForce(0, 50, 0)
			c.slices("compute 2*50 copy 2*2048")
			// Nothing was said in between, and again nothing is.
			p.sliced(0, 30, 30, 0)
		})
	}
}

// A driver that refuses to set slices, or sets none, is reported as what it is, once.
func TestSliceRefused(t *testing.T) {
	for _, driver := range []string{"lazy", "sim"} {
		t.Run(driver, func(t *testing.T) {
			_, c, p := tenantOf(t, entry{driver: driver}, 1, "STANDIN=refuse")
			p.sliced(0, 50, 2048, protocol.FlagRefused)
			c.do("make 0")
			c.do("set 0 3000")
			p.inForce(0, 3000, 0)
			p.inForce(0, 3000, protocol.FlagRefused)
			p.sliced(0, 20, 3000, protocol.FlagRefused)
			p.sliced(0, 0, 2048, 0)
		})
	}
}

func TestSliceIgnored(t *testing.T) {
	for _, driver := range []string{"lazy", "sim"} {
		t.Run(driver, func(t *testing.T) {
			_, c, p := tenantOf(t, entry{driver: driver}, 1, "STANDIN=ignore")
			p.sliced(0, 50, 2048, 0)
			c.do("make 0")
			c.do("set 0 3000")
			p.inForce(0, 3000, 0)
			p.sliced(0, 0, 2048, 0)
		})
	}
}

// A driver that makes no channel groups, or by another way, is one that cannot be asked.
func TestSliceWithoutChannelGroups(t *testing.T) {
	env := []string{"PATH=" + os.Getenv("PATH"), "LD_PRELOAD=" + built.library, "LGPU_REAL_LIBCUDA=" + built.cuda,
		"LGPU_REAL_LIBNVML=" + built.nvml, "LD_LIBRARY_PATH=" + filepath.Dir(built.cuda)}
	_, _, p := tenantWith(t, env, "retain 0", 1)
	p.sliced(0, 50, 0, protocol.FlagRefused)
}

// On the software GPU, whose library has functions for slices; without them it is a driver that cannot be asked.
func TestSliceOfTheSoftwareGPU(t *testing.T) {
	_, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	c.do("sync")
	if !slices.Contains(exported(t, filepath.Join(simLibraries.dir, "libcuda.so.1")), "lgpusimSetTimeslice") {
		p.sliced(0, 50, 0, protocol.FlagRefused)
		return
	}
	p.sliced(0, 0, 2000, 0) // as the shape has it
	p.sliced(0, 50, 50, 0)
	c.do("launch 20 1000")
	c.do("sync")
	p.sliced(0, 0, 2000, 0)
}

// A descriptor that the program has closed and has again for another file is not used.
func TestSliceOfAClosedDescriptor(t *testing.T) {
	_, c, p := tenantOf(t, preloaded, 1)
	p.sliced(0, 50, 50, 0)
	c.do("lose")
	p.inForce(0, 0, 0)
	p.sliced(0, 30, 0, 0)
}

// A daemon that is lost leaves no slice behind, and hears nothing of slices when it is back, until it asks.
func TestSliceEndsWithTheDaemon(t *testing.T) {
	for _, driver := range []string{"lazy", "sim"} {
		t.Run(driver, func(t *testing.T) {
			d, c, p := tenantOf(t, entry{driver: driver}, 1)
			c.do("set 0 1500") // the driver's own, for all that can be known
			c.do("make 0")
			p.sliced(0, 50, 50, 0)
			d.listener.Close()
			p.conn.Close()
			c.do("await 0 1500")
			c.do("await 1 2048")
			d.listen()
			p, _, usage := d.accept()
			unix.Close(usage)
			p.welcome(3, false)
			p.expect(protocol.Need)
			p.expect(protocol.Gate)
			p.expect(protocol.Closed)
			c.do("make 0")
			c.slices("compute 1500 2*2048 copy 3*2048")
			p.sliced(0, 20, 20, 0)
			c.slices("compute 3*20 copy 3*2048")
		})
	}
}

// Contexts by the hundred, and more than are remembered: then the daemon knows that some are not set. Those that are no
// more do not count, though nobody has asked for their slices.
func TestSliceOfManyContexts(t *testing.T) {
	const some, room = 300, 1024
	_, c, p := tenantOf(t, preloaded, 1, "LGPU_LOG=0")
	c.do("churn %d", some)
	c.do("churned")
	p.sliced(0, 50, 50, 0)
	for n := 1; n < some; n++ {
		c.do("make 0")
	}
	c.slices(fmt.Sprintf("compute %d*50 copy %d*2048", some, some))
	p.sliced(0, 30, 30, 0)
	c.slices(fmt.Sprintf("compute %d*30 copy %d*2048", some, some))
	for n := some; n <= room; n++ {
		c.do("make 0")
	}
	p.inForce(0, 30, protocol.FlagRefused)
	c.slices(fmt.Sprintf("compute %d*30 2048 copy %d*2048", room, room+1))
	for n := range room + 1 {
		c.do("destroy %d", n)
	}
	p.sliced(0, 50, 0, protocol.FlagRefused)
}

// While contexts come and go on several threads, what the daemon hears stays true.
func TestSliceWhileContextsComeAndGo(t *testing.T) {
	for _, driver := range []string{"lazy", "sim"} {
		t.Run(driver, func(t *testing.T) {
			_, c, p := tenantOf(t, entry{driver: driver}, 1, "LGPU_LOG=0")
			c.do("churn 300")
			for micros := uint64(20); micros < 220; micros++ {
				p.sliced(0, micros, micros, 0)
			}
			c.do("churned")
			c.do("make 0")
			c.slices("compute 2*219 copy 2*2048")
			p.sliced(0, 0, 2048, 0)
			c.slices("compute 2*2048 copy 2*2048")
		})
	}
}

// Each device has its own slice.
func TestSliceOfOneDevice(t *testing.T) {
	for _, driver := range []string{"lazy", "sim"} {
		t.Run(driver, func(t *testing.T) {
			_, c, p := tenantOf(t, entry{driver: driver}, 2)
			c.do("make 1")
			c.do("launch")
			p.expect(protocol.Gate)
			p.expect(protocol.Want)
			p.say(protocol.Message{Kind: protocol.Free, Device: 1})
			c.do("launched")
			p.sliced(1, 50, 50, 0)
			c.slices("compute 2048 50 copy 2*2048")
			p.sliced(0, 80, 80, 0)
			c.do("make 1")
			c.do("make 0")
			c.slices("compute 80 2*50 80 copy 4*2048")
			p.sliced(1, 0, 2048, 0)
			c.slices("compute 80 2*2048 80 copy 4*2048")
		})
	}
}

// A forked child has no slices of its parent's, and sets none of them.
func TestSliceAndFork(t *testing.T) {
	_, c, p := tenantOf(t, preloaded, 1)
	p.sliced(0, 50, 50, 0)
	c.order("fork")
	c.wait("child 0: compute 50 2048 copy 2*2048") // as the stand-in, which was copied, has it
	c.wait("fork: 0")
	p.sliced(0, 30, 30, 0)
	c.slices("compute 30 copy 2048")
}

// Another library that has an ioctl of its own, before ours or behind it, sees what it would see without us, once.
func TestIoctlOfOthers(t *testing.T) {
	chain := filepath.Join(t.TempDir(), "chain.so")
	if err := gcc("-D_GNU_SOURCE=", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "testdata/ioctl_chain.c", "-ldl", "-o", chain); err != nil {
		t.Fatal(err)
	}
	for _, replaced := range []bool{false, true} {
		e := entry{driver: "now", replaced: replaced}
		env := e.env(t)
		for i, v := range env {
			libraries, found := strings.CutPrefix(v, "LD_PRELOAD=")
			if !found {
				continue
			}
			for place, preload := range map[string]string{
				"before": chain + ":" + libraries,
				"behind": strings.Replace(libraries, built.library, built.library+":"+chain, 1),
			} {
				if replaced && place == "behind" {
					continue // the driver's place is behind all
				}
				t.Run(e.String()+"/"+place, func(t *testing.T) {
					env := slices.Clone(env)
					env[i] = "LD_PRELOAD=" + preload
					_, c, p := tenantWith(t, env, "make 0", 1)
					p.sliced(0, 50, 50, 0)
					c.slices("compute 50 copy 2048")
					c.do("chained")
					c.do("transparent")
				})
			}
		}
	}
}

// An ioctl that is not the driver's is as without the library.
func TestIoctlIsTransparent(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		e := entry{driver: "lazy", replaced: replaced}
		t.Run(e.String(), func(t *testing.T) {
			_, c, p := tenantOf(t, e, 1)
			p.sliced(0, 50, 50, 0)
			c.do("transparent")
		})
	}
}
