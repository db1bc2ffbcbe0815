package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lgpu/lgpu/tenant/abi"
	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// residenceProgram is testdata/residence_test.c with the lock.
func residenceProgram(t *testing.T, sanitizer string) string {
	return program(t, "residence_test", "residence/lock.c", "residence/drain.c", "-fsanitize="+sanitizer, "-fno-sanitize-recover=all")
}

// The lock alone, with a driver and a gate of the test's own.
func TestResidenceLock(t *testing.T) {
	for _, sanitizer := range []string{"address,undefined", "thread"} {
		bin := residenceProgram(t, sanitizer)
		for _, name := range []string{"hammer", "tight", "crowd", "nest", "dead", "leader", "fork", "kill", "capture", "busy"} {
			t.Run(name+"/"+sanitizer, func(t *testing.T) {
				mustRun(t, []string{"TSAN_OPTIONS=die_after_fork=0", "ASAN_OPTIONS=detect_leaks=0"}, bin, name)
			})
		}
	}
}

// shutLibrary is the library with testdata/shut.c, by which a test shuts the lock.
var shutLibrary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built.dir, "liblgpu-shut.so")
	return path, library(path, "testdata/shut.c")
})

// outside are the hooked calls that do not enter the lock: they wait for the device, or use none of its memory.
var outside = []string{
	"cuCtxSynchronize", "cuCtxSynchronize_v2", "cuEventSynchronize", "cuStreamSynchronize", "cuStreamSynchronize_ptsz",
	"cuEventRecord", "cuEventRecord_ptsz", "cuEventRecordWithFlags", "cuEventRecordWithFlags_ptsz", "cuStreamWaitEvent",
	"cuStreamWaitEvent_ptsz", "cuStreamEndCapture", "cuStreamEndCapture_ptsz", "cuStreamDestroy", "cuStreamDestroy_v2",
	"cuInit", "cuDeviceGetAttribute", "cuDeviceTotalMem", "cuDeviceTotalMem_v2", "cuGetProcAddress", "cuGetProcAddress_v2",
	"cuCtxGetLimit",
	"cuMemGetInfo", "cuMemGetInfo_v2", "cuMemGetDefaultMemPool", "cuLibraryEnumerateKernels", "cuLibraryGetKernel",
	"cuMemAllocHost", "cuMemAllocHost_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister", "cuMemHostRegister_v2",
	"cuMemHostUnregister", "cuMemGetAllocationPropertiesFromHandle", "cuMemPoolGetAttribute", "cuMemPoolSetAttribute",
}

// touchesProgram compiles testdata/touches.c with a call of each hooked symbol and of each of the class touch, and returns
// their names.
func touchesProgram(t *testing.T) (string, []string) {
	t.Helper()
	cuda, _, err := symbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	var calls strings.Builder
	for _, s := range cuda {
		if s.Class != abi.Hook && s.Class != abi.Touch {
			continue
		}
		names = append(names, s.Name)
		fmt.Fprintf(&calls, "CALL(%s", s.Name)
		for _, p := range s.Params {
			if strings.HasSuffix(p.Type, "*") {
				calls.WriteString(", (void *)buffer")
			} else {
				fmt.Fprintf(&calls, ", (%s){0}", p.Type)
			}
		}
		calls.WriteString(")\n")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "touches_gen.inc"), []byte(calls.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return program(t, "touches", "-I"+dir, "-ldl"), names
}

// A call enters the lock if, and only if, it can touch, take or free device memory, or launch work.
func TestCallsEnterTheResidenceLock(t *testing.T) {
	bin, names := touchesProgram(t)
	lib, err := shutLibrary()
	if err != nil {
		t.Fatal(err)
	}
	var captures, others []string // a capture begun here never ends, and the lock cannot be shut after it
	for _, name := range names {
		if strings.HasPrefix(name, "cuStreamBeginCapture") {
			captures = append(captures, name)
		} else {
			others = append(others, name)
		}
	}
	for _, compute := range []uint32{region.FullCompute, 5000} {
		s := spec(1<<30, 0)
		s.Devices[0].Overcommit, s.Devices[0].Compute = 1, compute
		env := tenant(newRegion(t, s), "LD_PRELOAD="+lib)
		out := mustRun(t, env, bin, others...)
		for _, name := range captures {
			out += mustRun(t, env, bin, name)
		}
		for _, name := range names {
			want := name + " waits\n"
			if slices.Contains(outside, name) {
				want = name + " does not wait\n"
			}
			if !strings.Contains("\n"+out, "\n"+want) {
				t.Errorf("compute %d: want %q", compute, want)
			}
		}
	}
}

// A launch waits for the gate outside the lock, and for the lock outside the gate: neither keeps the other from closing.
func TestLaunchesWaitForOneThingAtATime(t *testing.T) {
	lib, err := shutLibrary()
	if err != nil {
		t.Fatal(err)
	}
	_, c, p := cardOf(t, 1, "LD_PRELOAD="+lib)
	p.say(protocol.Message{Kind: protocol.Close, Serial: 1})
	p.expect(protocol.Closed)
	c.do("later 2 1 1000")
	p.expect(protocol.Want)
	c.do("shut") // with the launch at the gate
	p.say(protocol.Message{Kind: protocol.Open, Serial: 2, Value: protocol.Forever})
	c.do("waited") // now it is at the lock
	p.say(protocol.Message{Kind: protocol.Close, Serial: 2})
	p.expect(protocol.Closed)
	c.do("open")
	p.expect(protocol.Want)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 3, Value: protocol.Forever})
	c.wait("late: 0")
	// One that comes to a shut lock does not ask for the gate.
	p.say(protocol.Message{Kind: protocol.Close, Serial: 3})
	p.expect(protocol.Closed)
	c.do("shut")
	c.do("later 2 1 1000")
	c.do("waited")
	c.do("open")
	p.expect(protocol.Want)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 4, Value: protocol.Forever})
	c.wait("late: 0")
	// A kernel that has not ended keeps the lock from being shut, until it has.
	c.do("hold 2")
	c.do("launch 2 1 1000")
	c.order("busy")
	c.wait("busy: 1")
	c.do("release 2")
	c.do("shut")
	c.do("open")
	c.do("capture 2")
	c.order("busy")
	c.wait("busy: 2")
	c.do("launch 2 1 1000")
	c.do("captured 2")
	c.do("shut")
	c.do("open")
}
