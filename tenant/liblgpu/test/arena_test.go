package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// What is small is cut from chunks, and what is given back joins.
func TestUnits(t *testing.T) {
	mustRun(t, nil, program(t, "units_test", "arena/units.c", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
}

// keeper is the daemon's part towards one client whose memory can leave its devices. It gives every level that is asked
// for, or refuses it.
type keeper struct {
	t      *testing.T
	dev    *device
	d      *daemon
	c      *client
	mu     sync.Mutex
	p      *peer
	serial uint64
	level  map[uint32]uint64
	shut   bool // gives nothing; what is asked for waits
	waits  []protocol.Message
	most   uint64 // refuses more, if not 0
	kept   chan protocol.Message
	needs  chan protocol.Message
	stores [2]int
}

const storeBytes = 1024 * mib

// managed starts a client of an lgpu with memory.overcommit on so many devices, up to its contexts.
func managed(t *testing.T, devices int) *keeper {
	t.Helper()
	return managedProgram(t, devices, "testdata/movable.c")
}

// managedProgram starts another program that knows the order init.
func managedProgram(t *testing.T, devices int, source string) *keeper {
	t.Helper()
	return managedShape(t, fmt.Sprintf("%dx1GiB,sms=4,context=16MiB", devices), built.library, source)
}

// managedShape has devices of a shape, and a program with a library of built and more in its environment.
func managedShape(t *testing.T, shape, library, source string, environment ...string) *keeper {
	t.Helper()
	dev := newDevice(t, shape)
	all, err := dev.client.Devices()
	if err != nil {
		t.Fatal(err)
	}
	var limits []region.DeviceLimits
	for _, one := range all {
		l := whole(dev)
		for i, b := range one.UUID {
			l.UUID[i] = byte(b)
		}
		l.Overcommit, l.Memory, l.Granted = 1, everything, everything
		limits = append(limits, l)
	}
	k := &keeper{t: t, dev: dev, d: newDaemon(t, limits...), level: map[uint32]uint64{}, kept: make(chan protocol.Message, 10000),
		needs: make(chan protocol.Message, 10000)}
	devices := len(all)
	env := append(append(environment, dev.env...), "LD_PRELOAD="+library, "LGPU_SOCKET="+k.d.path)
	k.c = startClient(t, env, simProgram(t, source, "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN"))
	k.c.order("init %d", devices)
	k.p, _, _ = k.d.accept()
	k.p.welcome(3, true)
	for i := range devices {
		fd, err := unix.MemfdCreate("store", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, storeBytes); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			t.Fatal(err)
		}
		k.stores[i] = fd
	}
	go k.hear(k.p)
	k.c.wait(fmt.Sprintf("init %d: 0", devices))
	return k
}

// another starts another client of the lgpu, up to its contexts.
func (k *keeper) another(devices int) *client {
	k.t.Helper()
	env := append(append([]string{}, k.dev.env...), "LD_PRELOAD="+built.library, "LGPU_SOCKET="+k.d.path)
	c := startClient(k.t, env, k.c.cmd.Path)
	c.order("init %d", devices)
	p, _, _ := k.d.accept()
	p.welcome(4, true)
	go k.hear(p)
	c.wait(fmt.Sprintf("init %d: 0", devices))
	return c
}

// store gives the client its store of a device.
func (k *keeper) store(device uint32, bytes uint64) {
	k.t.Helper()
	m := protocol.Message{Kind: protocol.Store, Device: device, Value: bytes, Flags: protocol.FlagPinned}
	if _, _, err := k.p.conn.WriteMsgUnix(m.Append(nil), unix.UnixRights(k.stores[device]), nil); err != nil {
		k.t.Fatal(err)
	}
}

func (k *keeper) hear(p *peer) {
	for {
		m, fd, err := p.try(patience)
		if err != nil {
			return
		}
		if fd >= 0 {
			unix.Close(fd)
		}
		switch {
		case m.Kind == protocol.Gate:
			p.conn.Write(protocol.Message{Kind: protocol.Free, Device: m.Device}.Append(nil))
		case m.Kind == protocol.Need && m.Flags&protocol.FlagFixed != 0:
			k.fixed(p, m)
		case m.Kind == protocol.Need && m.Flags&protocol.FlagResident != 0:
			if m.Extra > m.Value || m.Value != 0 && m.Extra == 0 {
				k.t.Errorf("of %d bytes the client needs %d", m.Value, m.Extra)
			}
			k.needs <- m
			k.answer(p, m)
		case m.Kind == protocol.Kept:
			k.kept <- m
		}
	}
}

func (k *keeper) answer(p *peer, m protocol.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.shut && m.Value != 0 {
		k.waits = append(k.waits, m)
	} else if m.Value != 0 {
		k.give(p, m)
	}
}

// fixed answers a client that has made a context.
func (k *keeper) fixed(p *peer, m protocol.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	answer := protocol.Message{Kind: protocol.Keep, Device: m.Device, ID: m.ID, Flags: protocol.FlagFixed}
	if k.most != 0 && m.Value > k.most {
		answer.Flags |= protocol.FlagRefused
	}
	p.conn.Write(answer.Append(nil))
}

// give answers a Need. The caller has the lock.
func (k *keeper) give(p *peer, m protocol.Message) {
	k.serial++
	keep := protocol.Message{Kind: protocol.Keep, Device: m.Device, Serial: k.serial, Value: max(m.Value, k.level[m.Device])}
	if k.most != 0 && m.Value > k.most {
		keep.Flags, keep.Value = protocol.FlagRefused, m.Value
	} else {
		k.level[m.Device] = keep.Value
	}
	p.conn.Write(keep.Append(nil))
}

// refuse sets what is refused from now on.
func (k *keeper) refuse(most uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.most = most
}

// send sends a Keep and returns its serial. With shut nothing more is given.
func (k *keeper) send(device uint32, level uint64, shut bool) uint64 {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.serial++
	k.shut, k.level[device] = shut, level
	serial := k.serial
	k.p.say(protocol.Message{Kind: protocol.Keep, Device: device, Serial: serial, Value: level})
	for ; !shut && len(k.waits) > 0; k.waits = k.waits[1:] {
		if m := k.waits[0]; m.Value > k.level[m.Device] {
			k.give(k.p, m)
		}
	}
	return serial
}

// answered waits for the answer to a Keep for a device, or to a newer one that has taken its place.
func (k *keeper) answered(device uint32, serial uint64) protocol.Message {
	k.t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case m := <-k.kept:
			if m.Device == device && m.Serial >= serial {
				return m
			}
		case <-deadline:
			k.t.Fatalf("Keep %d is not answered", serial)
		}
	}
}

// suspend takes everything of a device, and resume gives it back.
func (k *keeper) suspend(device uint32) protocol.Message {
	k.t.Helper()
	m := k.answered(device, k.send(device, 0, true))
	if m.Flags != 0 {
		k.t.Fatalf("the client does not leave: %+v", m)
	}
	return m
}

func (k *keeper) resume(device uint32) {
	k.t.Helper()
	if m := k.answered(device, k.send(device, everything, false)); m.Flags != 0 {
		k.t.Fatalf("the client does not come back: %+v", m)
	}
}

// used is what the client has of a device.
func (k *keeper) used(device int) uint64 {
	k.t.Helper()
	processes, err := k.dev.client.Processes(device)
	if err != nil {
		k.t.Fatal(err)
	}
	var sum uint64
	for _, p := range processes {
		sum += p.MemoryUsed
	}
	return sum
}

// restart ends the connection and waits for the client to come back, up to what it says of its memory.
func (k *keeper) restart() *peer {
	k.t.Helper()
	k.p.conn.Close()
	p, hello, usage := k.d.accept()
	unix.Close(usage)
	if hello.Flags != protocol.FlagReconnect {
		k.t.Fatalf("the client came back with %+v", hello)
	}
	p.welcome(3, false)
	p.expect(protocol.Need)
	return p
}

// goOn has the keeper go on with a client that has come back.
func (k *keeper) goOn(p *peer) {
	k.mu.Lock()
	k.p = p
	k.mu.Unlock()
	go k.hear(p)
}

func (k *keeper) things() string {
	k.t.Helper()
	k.c.order("things")
	line := <-k.c.lines
	k.c.wait("things: 0")
	return line
}

// Memory of every size leaves and comes back many times, at the same addresses, in several contexts, and nothing is lost.
func TestMovableSuspends(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	k := managed(t, 1)
	k.store(0, storeBytes)
	for _, kib := range []int{1, 3, 17, 900, 1024, 1025, 2048, 5000, 16000} {
		k.c.do("alloc %d", kib)
	}
	for _, order := range []string{"pooled 7", "pooled 700", "pooled 5000", "pooled 9000", "own 2048", "own 8192", "hide 4096"} {
		k.c.do("%s", order)
	}
	k.c.do("second")
	k.c.do("alloc 6000")
	k.c.do("alloc 2")
	k.suspend(0)
	k.resume(0)
	before, things := k.used(0), k.things()
	for i := range rounds {
		if m := k.suspend(0); m.Value > 48*mib {
			t.Fatalf("%d bytes are resident of a suspended client", m.Value)
		}
		if i == 0 {
			if have := k.used(0); have > 48*mib {
				t.Fatalf("%d bytes are on the device", have)
			}
		}
		k.resume(0)
		if i%100 == 0 {
			k.c.do("check")
			k.c.do("show")
		}
	}
	k.c.do("check")
	if have := k.used(0); have != before {
		t.Errorf("there are %d bytes on the device, before there were %d", have, before)
	}
	if have := k.things(); have != things {
		t.Errorf("there are %s, before there were %s", have, things)
	}
	k.c.do("destroy")
	k.c.do("check")
	k.suspend(0)
	k.resume(0)
	k.c.do("check")
}

// Access of other devices holds for what was mapped before and after, and for what has come back.
func TestMovablePeers(t *testing.T) {
	k := managed(t, 2)
	k.store(0, storeBytes)
	k.store(1, storeBytes)
	k.c.do("alloc 3000")
	k.c.do("peer")
	k.c.do("device 1")
	k.c.do("alloc 3000")
	for range 3 {
		k.suspend(0)
		k.suspend(1)
		k.send(0, 512*mib, false)
		k.resume(1)
		k.c.do("check")
	}
	k.c.do("device 0")
}

// Threads allocate, copy and free while memory leaves and comes back.
func TestMovableThreads(t *testing.T) {
	k := managed(t, 2)
	k.store(0, storeBytes)
	k.store(1, storeBytes)
	k.c.do("alloc 9000")
	k.c.do("churn 4")
	for i := range 40 {
		device := uint32(i % 2)
		k.suspend(device)
		k.resume(device)
	}
	k.c.do("stop")
	k.c.do("check")
}

// Levels that change quickly: each answer is to the newest, and in the end all is there.
func TestMovableLevels(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	for range 8 {
		k.c.do("alloc 8192")
	}
	var serial uint64
	for i := range 300 {
		serial = k.send(0, uint64(i*37%96)*mib, true)
	}
	k.answered(0, serial)
	k.resume(0)
	k.c.do("check")
	// A level that holds is answered at once, one in between leaves what it has room for.
	if m := k.answered(0, k.send(0, 200*mib, false)); m.Value < 64*mib || m.Flags != 0 {
		t.Errorf("a level that holds was answered with %+v", m)
	}
	k.c.do("check")
	if m := k.answered(0, k.send(0, 50*mib, true)); m.Value > 50*mib || m.Value < 40*mib || m.Flags != 0 {
		t.Errorf("a level of 50 MiB was answered with %+v", m)
	}
	k.resume(0)
	k.c.do("check")
}

// Without room in the store a Keep is refused before the program is touched: at once, although a stream of it would keep the
// lock from being shut.
func TestMovableNoStore(t *testing.T) {
	k := managed(t, 1)
	k.c.do("alloc 9000")
	k.c.do("block")
	for _, bytes := range []uint64{0, 4 * mib} {
		if bytes != 0 {
			k.store(0, bytes)
		}
		m := k.answered(0, k.send(0, 0, false))
		if m.Flags != protocol.FlagRefused || m.Extra != protocol.WhyStore || m.Value < 8*mib {
			t.Errorf("without a store the client said %+v", m)
		}
		k.c.do("check")
	}
	k.c.do("pass")
	k.store(0, storeBytes)
	k.suspend(0)
	k.resume(0)
	k.c.do("check")
}

// disk gives the client a second store of a device, which is a file on a disk.
func (k *keeper) disk(device uint32, file *os.File, bytes uint64) {
	k.t.Helper()
	m := protocol.Message{Kind: protocol.Store, Device: device, Value: bytes}
	if _, _, err := k.p.conn.WriteMsgUnix(m.Append(nil), unix.UnixRights(int(file.Fd())), nil); err != nil {
		k.t.Fatal(err)
	}
}

// What the memory file has no room for goes to the one on the disk, in the middle of an allocation too, and both files
// come back to a new daemon.
func TestMovableDisk(t *testing.T) {
	k := managed(t, 1)
	file, err := os.CreateTemp(t.TempDir(), "store")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	k.store(0, 38*mib)
	k.disk(0, file, 512*mib)
	for range 3 {
		k.c.do("alloc 30000") // 29.3 MiB
	}
	k.c.do("alloc 5")
	for range 3 {
		k.suspend(0)
		if s, err := file.Stat(); err != nil || s.Size() < 50*mib || s.Size() > 60*mib {
			t.Errorf("the disk has %d bytes, %v", s.Size(), err)
		}
		k.resume(0)
		k.c.do("check")
	}
	k.suspend(0)
	p := k.restart()
	for _, want := range []struct {
		fd    int
		flags uint32
	}{{int(file.Fd()), protocol.FlagMore}, {k.stores[0], 0}} {
		m, fd := p.read()
		var has, is unix.Stat_t
		if err := errors.Join(unix.Fstat(fd, &has), unix.Fstat(want.fd, &is)); err != nil || has.Ino != is.Ino || m.Flags != want.flags {
			t.Errorf("the client came back with %+v and inode %d, %v; want flags %d and inode %d", m, has.Ino, err, want.flags, is.Ino)
		}
		unix.Close(fd)
	}
	k.goOn(p)
	k.resume(0)
	k.c.do("check")
}

// unwritable is a file that cannot be written.
func unwritable(t *testing.T) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// Where the disk cannot be written, what has left comes back, and the program goes on.
func TestMovableDiskFails(t *testing.T) {
	k := managed(t, 1)
	file := unwritable(t)
	k.store(0, 30*mib)
	k.disk(0, file, 512*mib)
	for range 4 {
		k.c.do("alloc 20000")
	}
	m := k.answered(0, k.send(0, 0, false))
	if m.Flags != protocol.FlagRefused || m.Extra != protocol.WhyStore || m.Value < 80*mib {
		t.Errorf("the client says %+v", m)
	}
	k.c.do("check")
}

// An allocation waits for its level, and fails if there will be none.
func TestMovableNeed(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	k.c.do("alloc 4096")
	k.refuse(100 * mib)
	k.c.order("alloc 100000")
	k.c.wait("alloc 100000: 2")
	k.c.do("alloc 40000")
	k.refuse(0)
	k.c.do("alloc 100000")
	k.c.do("check")
	k.c.do("free")
	for deadline := time.After(patience); ; { // unasked
		select {
		case m := <-k.kept:
			if m.Serial == 0 && m.Value < 100*mib {
				return
			}
			continue
		case <-deadline:
			t.Fatal("the client does not say that it has freed memory")
		}
	}
}

// The daemon comes and goes while memory is away or on its way.
func TestMovableReconnect(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	k := managed(t, 1)
	k.store(0, storeBytes)
	k.c.do("alloc 20000")
	k.c.do("alloc 5")
	for i := range rounds {
		switch i % 3 {
		case 0:
			k.send(0, 0, true)
		case 1:
			k.send(0, 512*mib, true)
		}
		p := k.restart()
		m, fd := p.read()
		if m.Kind != protocol.Kept || m.Serial != 0 || fd < 0 {
			t.Fatalf("the client came back with %+v and descriptor %d", m, fd)
		}
		var have, want unix.Stat_t
		unix.Fstat(fd, &have)
		unix.Fstat(k.stores[0], &want)
		unix.Close(fd)
		if have.Ino != want.Ino {
			t.Error("the client came back with another store")
		}
		k.goOn(p)
	}
	k.resume(0)
	k.c.do("check")
}

// A capture ends with its stream, or with its context, and keeps no memory on the device from then on.
func TestMovableAbandonedCapture(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	k.c.do("alloc 3000")
	for _, end := range []string{"abandon", "destroy"} {
		if end == "destroy" {
			k.c.do("second")
		}
		k.c.do("capture")
		k.c.do("%s", end)
		k.suspend(0)
		k.resume(0)
		k.c.do("check")
	}
}

// Another process opens what legacy IPC has given away, and both see one memory, which stays on the device. A handle of what
// is freed, and one that nobody has given, open nothing.
func TestMovableShared(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	other := k.another(1)
	k.c.do("alloc 30000") // moves
	k.suspend(0)
	k.resume(0)
	for _, kib := range []int{3000, 3, 300000} {
		k.c.do("alloc %d", kib)
		k.c.do("seed 1")
		k.c.order("give")
		handle := <-k.c.lines
		k.c.wait("give: 0")
		other.order("open %s", strings.Repeat("5a", 64))
		other.wait(fmt.Sprintf("open %s: 1", strings.Repeat("5a", 64)))
		at, digit := len(handle)-20, "0" // of the secret
		if handle[at:at+1] == digit {
			digit = "1"
		}
		wrong := handle[:at] + digit + handle[at+1:]
		other.order("open %s", wrong)
		other.wait(fmt.Sprintf("open %s: 1", wrong))
		k.c.order("check")
		k.c.wait("check: 999")
		k.c.order("fill")
		k.c.wait("fill: 0")
		other.do("open %s", handle)
		k.c.do("seed 2")
		k.c.do("check")
		if m := k.answered(0, k.send(0, 0, true)); m.Flags != 0 || m.Value < 2*mib {
			t.Errorf("a client that has shared memory said %+v", m)
		}
		k.resume(0)
		k.c.do("check")
		other.do("write 3")
		k.c.do("seed 3")
		k.c.do("check")
		k.c.do("free")
		other.do("opened")
		other.order("open %s", handle)
		other.wait(fmt.Sprintf("open %s: 1", handle))
		k.c.do("check")
	}
}

// A client that is killed while its memory moves leaves nothing.
func TestMovableKilled(t *testing.T) {
	for i := range 5 {
		k := managed(t, 1)
		k.store(0, storeBytes)
		for range 10 {
			k.c.do("alloc 20000")
		}
		k.send(0, 0, true)
		time.AfterFunc(time.Duration(i)*2*time.Millisecond, func() { k.c.cmd.Process.Kill() })
		for range k.c.lines {
		}
		for deadline := time.Now().Add(patience); k.used(0) != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes are left on the device", k.used(0))
			}
		}
	}
}
