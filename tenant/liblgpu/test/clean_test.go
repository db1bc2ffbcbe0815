package test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// hashes starts a program on a software GPU with fast units, whose library hashes whatever that costs.
func hashes(t *testing.T, environment ...string) *keeper {
	t.Helper()
	k := managedShape(t, "1x1GiB,sms=4,context=16MiB,clock=1000", built.faults, "testdata/movable.c", environment...)
	k.store(0, storeBytes)
	return k
}

const page = 2 * mib

// TestHash: the kernel computes what its proof is about, of several pages at once.
func TestHash(t *testing.T) {
	dev := newDevice(t, "1x1GiB,sms=4,context=16MiB,clock=1000")
	if out := mustRun(t, dev.env, simProgram(t, "testdata/hash.c"), "arena/hash.ptx"); out != "" {
		t.Error(out)
	}
}

// TestHashIsFresh compiles the kernel again and compares, where the compiler of the go:generate line is installed.
func TestHashIsFresh(t *testing.T) {
	text, err := os.ReadFile("gen/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "//go:generate clang")
	line, _, _ = strings.Cut(line, "\n")
	words := strings.Fields("clang" + line)
	if _, err := exec.LookPath(words[0]); err != nil {
		t.Skip(err)
	}
	out := filepath.Join(t.TempDir(), "hash.ptx")
	for i, word := range words {
		if word == "../arena/hash.ptx" {
			words[i] = out
		}
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = "gen"
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	have, err := os.ReadFile("arena/hash.ptx")
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(out); err != nil || !bytes.Equal(have, want) {
		t.Errorf("arena/hash.ptx is not what arena/hash.cu gives (%v); run: go generate ./tenant/liblgpu/gen", err)
	}
}

// turn has everything leave the device and come back, and the program run. It returns how much has left, and how much of
// it was copied.
func (k *keeper) turn() (left, copied uint64) {
	k.t.Helper()
	before := k.d.region.State().Devices[0]
	k.suspend(0)
	after := k.d.region.State().Devices[0]
	k.resume(0)
	k.c.do("peek")
	left = after.Evicted - before.Evicted
	return left, left - (after.Clean - before.Clean)
}

// wantTurn wants a turn in which so much is copied.
func (k *keeper) wantTurn(what string, want uint64) {
	k.t.Helper()
	if left, copied := k.turn(); copied != want || left < 16*mib {
		k.t.Errorf("%s: %d of %d bytes were copied, want %d", what, copied, left, want)
	}
}

// wantAll wants a turn in which everything is copied, but for one of some amounts of zeros.
func (k *keeper) wantAll(what string, zeros ...uint64) {
	k.t.Helper()
	if left, copied := k.turn(); !slices.Contains(append(zeros, 0), left-copied) || left < 16*mib {
		k.t.Errorf("%s: %d of %d bytes were copied", what, copied, left)
	}
}

// probe is what a move hashes first.
const probe = 16 * page

// untouched is what pools have that allKinds does not write to.
const untouched = 11 * page

// allKinds allocates in every way, and has all of it leave once: nothing of it has a copy before.
func (k *keeper) allKinds() {
	k.t.Helper()
	for _, order := range []string{"hide 4096", "pooled 9000", "pooled 7", "own 4096", "alloc 3", "alloc 30000"} {
		k.c.do("%s", order)
	}
	k.wantAll("the first time", untouched)
}

// TestZeros: a page of zeros is not copied, whether it was ever written to or not, and has zeros when it is back.
func TestZeros(t *testing.T) {
	k := hashes(t)
	k.c.do("alloc 20000")
	for range 2 {
		k.wantTurn("another pattern", 10*page)
		k.c.do("check")
		k.c.do("seed 0")
		k.c.do("fill")
		k.wantTurn("zeros", 0)
		k.c.do("check")
		k.wantTurn("zeros again", 0)
		k.c.do("check")
		k.c.do("seed 7")
		k.c.do("fill")
	}
}

// TestClean: what is only read is not copied again, what changes by one bit is, whoever changes it and wherever.
func TestClean(t *testing.T) {
	k := hashes(t)
	k.allKinds()
	k.wantTurn("only read", 0)
	k.c.do("check")
	k.wantTurn("only read again", 0)
	for _, kib := range []int{0, 29999, 17 << 10} {
		k.c.do("flip %d", kib)
		k.wantTurn("one bit", page)
		k.c.do("flip %d", kib)
		k.wantTurn("the bit back", page)
	}
	k.c.do("check")
	k.c.do("graph")
	k.wantTurn("a graph that has not run", 0)
	k.c.do("replay")
	k.wantTurn("a graph that has run", page)
	k.c.do("replay")
	k.wantTurn("a graph that has written what was there", 0)
	k.c.do("fill")
	k.c.do("second")
	k.c.do("alloc 3000")
	k.wantTurn("another context", 3*page)
	k.wantTurn("another context that reads", 0)
	k.c.do("destroy")
	k.wantTurn("a context less", 0)
	k.c.do("check")
	k.c.do("show")
}

// TestCleanThreads: threads allocate, write and free while memory leaves and comes back. When they have ended, all is clean.
func TestCleanThreads(t *testing.T) {
	k := hashes(t)
	k.allKinds()
	k.c.do("churn 2")
	for range 8 {
		k.turn()
	}
	k.c.do("stop")
	k.c.do("check")
	k.turn()
	k.wantTurn("after threads that wrote", 0)
}

// TestCleanTurnedRound: what was found to have changed, and then did not leave after all, has still changed the next time.
func TestCleanTurnedRound(t *testing.T) {
	k := managedShape(t, "1x1GiB,sms=4,context=16MiB,clock=1000,link=900MB/s", built.faults, "testdata/movable.c")
	k.store(0, storeBytes)
	for range 60 {
		k.c.do("alloc 8192")
	}
	k.turn()
	k.c.do("rewrite")
	k.under(k.send(0, 0, true))
	if m, least, _ := k.ended(k.send(0, everything, false)); m.Flags != 0 || least < 64*mib {
		t.Errorf("the move was not turned round: %d bytes were left, and the answer is %+v", least, m)
	}
	k.c.do("peek")
	k.turn()
	k.c.do("check")
}

// TestCleanAhead: what was loaded ahead for nothing leaves without a copy, hashed or not.
func TestCleanAhead(t *testing.T) {
	k := hashes(t, "LGPU_STRICT=1")
	k.allKinds()
	k.suspend(0)
	before := k.d.region.State().Devices[0]
	k.answered(0, k.send(0, 48*mib, true))
	k.suspend(0)
	after := k.d.region.State().Devices[0]
	if left, clean := after.Evicted-before.Evicted, after.Clean-before.Clean; left < 20*mib || clean != left {
		t.Errorf("%d of %d bytes were clean that had been loaded ahead", clean, left)
	}
	k.resume(0)
	k.c.do("check")
}

// TestCleanOnDisk: copies on a disk hold as long as those in memory, and where there is no room for all, those of what stays on
// the device give way.
func TestCleanOnDisk(t *testing.T) {
	k := managedShape(t, "1x1GiB,sms=4,context=16MiB,clock=1000", built.faults, "testdata/movable.c")
	file, err := os.CreateTemp(t.TempDir(), "store")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	k.store(0, 12*mib)
	k.disk(0, file, 16*mib)
	k.c.do("alloc 16000")
	k.c.do("alloc 8000")
	k.wantAll("the first time")
	k.wantTurn("only read", 0)
	k.c.do("flip 4000")
	k.wantTurn("one bit", page)
	k.c.do("flip 4000")
	k.c.do("alloc 20000") // 44 MiB in all; the copies of the first 24 leave room for 4
	total := k.answered(0, k.send(0, everything, false)).Value
	for range 2 {
		if m := k.answered(0, k.send(0, total-mib, true)); m.Flags != 0 || m.Value != total-20*mib {
			t.Errorf("of %d bytes 20 MiB could leave, and the client said %+v", total, m)
		}
		k.resume(0)
		k.c.do("check")
	}
	if m := k.answered(0, k.send(0, 0, false)); m.Extra != protocol.WhyStore {
		t.Errorf("without room for all the client said %+v", m)
	}
	k.c.do("free")
	k.wantAll("without copies")
	k.wantTurn("only read", 0)
	k.c.do("check")
}

// TestCleanStrict: who does not trust hashes has everything copied.
func TestCleanStrict(t *testing.T) {
	k := hashes(t, "LGPU_STRICT=1")
	k.allKinds()
	k.wantAll("strictly")
	k.wantAll("strictly again")
	k.c.do("check")
}

// TestCleanDoesNotPay: where hashing is slower than copying, as on a software GPU with slow units, everything is copied.
func TestCleanDoesNotPay(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	k.allKinds()
	// It is tried once more, with a few pages, which are clean. Then some moves go by without: nothing is known of any page.
	if left, copied := k.turn(); left-copied > probe {
		k.t.Errorf("hashing takes longer: %d of %d bytes were copied", copied, left)
	}
	for range 3 {
		k.wantAll("hashing takes longer, again", untouched)
	}
	k.c.do("check")
}

// TestCleanWithoutRoom: where there is no room for the kernel that hashes, everything is copied.
func TestCleanWithoutRoom(t *testing.T) {
	k := managedShape(t, "1x1GiB,sms=4,context=960MiB,clock=1000", built.faults, "testdata/movable.c")
	k.store(0, storeBytes)
	k.c.do("alloc %d", 64<<10)
	for range 3 {
		k.wantAll("without room")
	}
	k.c.do("check")
}

// TestCleanGivesWay: the kernel that hashes needs memory, too. It is given up where a program that fitted does not fit with it.
func TestCleanGivesWay(t *testing.T) {
	k := hashes(t)
	k.c.do("alloc 30000")
	total := k.answered(0, k.send(0, everything, false)).Value
	if m := k.suspend(0); m.Extra <= total {
		t.Fatalf("the kernel takes nothing, of %d bytes: %+v", total, m)
	}
	k.refuse(total)
	if m := k.answered(0, k.send(0, total, false)); m.Value > total || m.Extra <= total {
		t.Errorf("a level of %d was answered with %+v", total, m)
	}
	k.c.do("check")
	if m := k.answered(0, k.send(0, total, false)); m.Value != total || m.Extra != total {
		t.Errorf("a level of %d was answered with %+v", total, m)
	}
}
