package test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/tenant/region"
)

// The device of the accounting tests, and what a context takes of it.
const (
	accountingShape = "1x2GiB,sms=4,context=64MiB"
	contextBytes    = 64 * mib
)

// lines runs a program of testdata and compares what it prints with want.
func lines(t *testing.T, env []string, source string, args []string, want ...string) {
	t.Helper()
	out := mustRun(t, env, simProgram(t, "testdata/"+source, "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN"), args...)
	have := strings.Split(strings.TrimSpace(strings.ReplaceAll(out, " used", "")), "\n")
	if strings.Join(have, ", ") != strings.Join(want, ", ") {
		t.Errorf("%s %v:\nhave %s\nwant %s", source, args, strings.Join(have, ", "), strings.Join(want, ", "))
	}
}

// What lies unused in a pool in pieces, or belongs to another stream, is no reason to refuse what fits, nor to grant
// what does not; and no allocation waits for a stream that may wait for the calling thread.
func TestUnusedMemoryOfPools(t *testing.T) {
	d := newDevice(t, accountingShape)
	for _, c := range []struct {
		what string
		want []string
	}{
		// Five pieces of nine are free; the large one does not fit beside the nine.
		{"fragments", []string{"pieces 0 640", "free 0 640", "large 0 520", "trim 0 64"}},
		{"waiting", []string{"pieces 0 640", "free 0 640", "large 0 520", "trim 0 64"}},
		{"behind", []string{"pieces 0 640", "returned, as it may", "large 0", "trim 0 64"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			env, path := d.lgpu(700*mib, region.NoLimit)
			lines(t, env, "pools.c", []string{c.what}, c.want...)
			spent(t, path)
		})
	}
}

// spent checks that a program that has ended has left nothing but its context, of which nobody has told.
func spent(t *testing.T, path string) {
	t.Helper()
	if have, host := counter(t, path); have > contextBytes || host > mib {
		t.Errorf("%d bytes of the device and %d of the host are left", have, host)
	}
}

// However many pools a program has, each is bounded by the limit.
func TestManyPools(t *testing.T) {
	env, _ := newDevice(t, accountingShape).lgpu(256*mib, region.NoLimit)
	lines(t, env, "pools.c", []string{"many"}, "first pool: 6 of 32 MiB, then 2", "free 0 64",
		"last pool: 6 of 32 MiB, then 2", "free 0 64",
		"new pool: 6 of 32 MiB, then 2", "free 0 64")
}

// A destroyed pool is charged until its memory is freed, and is the driver's former pool in nothing else.
func TestDestroyedPools(t *testing.T) {
	env, _ := newDevice(t, accountingShape).lgpu(256*mib, region.NoLimit)
	lines(t, env, "pools.c", []string{"destroyed"}, "allocate 0 96", "allocate 0 160", "destroy 0 160", "destroy again 1 160",
		"allocate from what is destroyed 1 160", "more than the limit leaves 2 160", "free one 0 128", "free the other 0 64",
		"make it current 0 64", "allocate 0 96", "destroy 0 96", "the default pool is current", "allocate 0 128",
		"destroy the default pool 1 128", "free 0 64")
}

// observe runs a command and looks at what the device holds for its process as often as it can. Whether it has ever
// held more than so much is the device's to say, not the counter's. On a busy machine a command may be over before it
// has been looked at often enough: then it runs again.
func (d *device) observe(t *testing.T, cmd *exec.Cmd, most uint64) string {
	t.Helper()
	const enough, runs = 10, 20
	for range runs {
		again := exec.Command(cmd.Path, cmd.Args[1:]...)
		again.Env = cmd.Env
		if out, looks := d.observeOnce(t, again, most); looks >= enough {
			return out
		}
	}
	t.Fatalf("fewer than %d looks in each of %d runs", enough, runs)
	return ""
}

// observeOnce returns what the command said, and how often it was looked at.
func (d *device) observeOnce(t *testing.T, cmd *exec.Cmd, most uint64) (said string, looks int) {
	t.Helper()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for ; ; looks++ {
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("%v after %d looks\n%s", err, looks, out.String())
			}
			return out.String(), looks
		default:
		}
		processes, err := d.client.Processes(0)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes {
			if p.MemoryUsed > most {
				cmd.Process.Kill()
				<-done
				t.Fatalf("the device holds %d MiB, %d over the limit\n%s", p.MemoryUsed/mib, (p.MemoryUsed-most)/mib, out.String())
			}
		}
	}
}

// Threads that allocate on several streams and free what others have allocated never hold more than the limit.
func TestPoolsRace(t *testing.T) {
	const limit = 512 * mib
	d := newDevice(t, accountingShape)
	env, _ := d.lgpu(limit, region.NoLimit)
	cmd := exec.Command(simProgram(t, "testdata/pools.c", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN"), "race")
	cmd.Env = env
	if have, want := d.observe(t, cmd, limit), "granted, refused, 0 wrong\nend 0 used 64\n"; have != want {
		t.Errorf("printed %q, want %q", have, want)
	}
}

// What is under an address is charged once.
func TestAccounts(t *testing.T) {
	mustRun(t, nil, program(t, "accounts_test", "memory/accounts.c", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
}

// Threads that free the same leave no charge, neither when the address is given out again meanwhile.
func TestFreedTwice(t *testing.T) {
	d := newDevice(t, accountingShape)
	for _, what := range []string{"only", "again"} {
		t.Run(what, func(t *testing.T) {
			env, path := d.lgpu(1<<30, 16*mib)
			lines(t, env, "frees.c", []string{what}, "begin 64", "end 64")
			if have, host := counter(t, path); have != contextBytes || host != 0 {
				t.Errorf("%d bytes of the device and %d of the host are left", have, host)
			}
		})
	}
}

// borrowed is an lgpu's allocation of so many MiB that its process has freed, while another process, outside, still has
// it open. It is counted as the first one's.
func borrowed(t *testing.T, d *device, c *client, megabytes int) (shut func()) {
	t.Helper()
	shut = lent(t, d, c, megabytes)
	c.do("alloc 40") // much is held since the device was looked at: it is looked at now
	c.do("free")
	c.do("free")
	c.do("alloc 1") // likewise
	return shut
}

// lent is an lgpu's allocation of so many MiB that another process, outside, has open.
func lent(t *testing.T, d *device, c *client, megabytes int) (shut func()) {
	t.Helper()
	c.do("alloc %d", megabytes)
	c.order("share")
	name := <-c.lines
	c.wait("share: 0")
	other := newClient(t, d.env)
	other.do("init")
	other.do("context")
	other.order("open %s", name)
	other.wait("open: 0")
	return func() { other.do("shut") }
}

// Overhead that is gone is given back though its process makes no call.
func TestIdleOverhead(t *testing.T) {
	dev := newDevice(t, accountingShape)
	d := newDaemon(t, whole(dev))
	c, _ := d.join(dev, 3)
	before := d.region.Used(0)
	shut := borrowed(t, dev, c, 128)
	if used := d.region.Used(0); used < before+128*mib {
		t.Fatalf("%d bytes are charged, with overhead of 128 MiB", used)
	}
	shut()
	for deadline := time.Now().Add(patience); d.region.Used(0) > before+4*mib; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes stay charged, before it was %d", d.region.Used(0), before)
		}
	}
}

// Overhead that has grown is charged though its process makes no call any more: kernels are loaded when they first run.
func TestIdleOverheadGrows(t *testing.T) {
	dev := newDevice(t, accountingShape)
	d := newDaemon(t, whole(dev))
	c, _ := d.join(dev, 3)
	before := d.region.Used(0)
	lent(t, dev, c, 128)
	c.do("free") // the last call
	for deadline := time.Now().Add(patience); d.region.Used(0) < before+128*mib; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are charged, and 128 MiB more than %d are held", d.region.Used(0), before)
		}
	}
}

// Nothing is refused on behalf of overhead that is gone.
func TestStaleOverhead(t *testing.T) {
	d := newDevice(t, accountingShape)
	env, path := d.lgpu(512*mib, region.NoLimit)
	c := newClient(t, env)
	c.do("init")
	c.do("context")
	shut := borrowed(t, d, c, 256)
	if have, _ := counter(t, path); have < contextBytes+256*mib {
		t.Fatalf("%d bytes are charged, with overhead of 256 MiB", have)
	}
	c.order("alloc 400")
	c.wait("alloc 400: 2")
	shut()
	c.do("alloc 400")
}

// However many processes a device has, what this one takes is measured.
func TestManyProcesses(t *testing.T) {
	bin := program(t, "tenant", "-ldl")
	for _, others := range []int{0, 255, 256, 1000} {
		path := newRegion(t, spec(4<<30, 0))
		mustRun(t, tenant(path, fmt.Sprint("STUB_PROCESSES=", others), fmt.Sprint("STUB_OVERHEAD=", 100*mib)), bin, "init",
			"alloc:67108864")
		if have, _ := counter(t, path); have != 164*mib {
			t.Errorf("beside %d processes %d bytes are charged, want %d", others, have, 164*mib)
		}
	}
}
