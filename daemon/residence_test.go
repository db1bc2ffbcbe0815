package daemon

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/hostcopy"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/protocol"
)

const mib = 1 << 20

// fakeHolder is a client that does what it is told, unless it is to be silent.
type fakeHolder struct {
	t       *testing.T
	id      uint64
	devices [][16]byte
	heard   chan protocol.Message
	answer  func(protocol.Message) // nil: silent

	mu    sync.Mutex
	noted tenant.Held // guarded by mu
	notes chan tenant.Held
	fd    int // guarded by mu; of the last Store, -1 before

	ended atomic.Bool
}

func (f *fakeHolder) Ended() bool { return f.ended.Load() }

func (f *fakeHolder) Identity() (uint64, tenant.Peer, [][16]byte) {
	return f.id, tenant.Peer{Process: tenant.Process{PID: 1 << 30}, Comm: "fake"}, f.devices
}

func (f *fakeHolder) Note(device int, h tenant.Held) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if device == 0 {
		f.noted = h
		f.notes <- h
	}
	return nil
}

func (f *fakeHolder) Send(_ int, m protocol.Message, fds ...int) {
	f.mu.Lock()
	if m.Kind == protocol.Keep && m.Value > f.noted.Taken {
		f.t.Errorf("level %d was not noted before it was said: %d", m.Value, f.noted.Taken)
	}
	if len(fds) > 0 {
		f.fd, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	}
	answer := f.answer
	f.mu.Unlock()
	f.heard <- m
	if m.Kind == protocol.Keep && m.Flags == 0 && answer != nil {
		answer(m)
	}
}

// answers has the client answer orders so from now on; nil: it does not.
func (f *fakeHolder) answers(answer func(protocol.Message)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// await returns the next message of a kind.
func (f *fakeHolder) await(kind uint16) protocol.Message {
	f.t.Helper()
	for {
		select {
		case m := <-f.heard:
			if m.Kind == kind {
				return m
			}
		case <-time.After(20 * time.Second):
			f.t.Fatalf("no message of kind %d", kind)
		}
	}
}

// awaitNote waits until such a thing is noted.
func (f *fakeHolder) awaitNote(ok func(tenant.Held) bool) {
	f.t.Helper()
	for !ok(f.held()) {
		select {
		case <-f.notes:
		case <-time.After(20 * time.Second):
			f.t.Fatalf("noted is %+v", f.held())
		}
	}
}

func (f *fakeHolder) held() tenant.Held {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.noted
}

// managedRig is a daemon with an lgpu whose memory can leave its device.
func managedRig(t *testing.T, c Config) (*rig, *Attachment) {
	t.Helper()
	r := start(t, c)
	a := r.holds(t, AttachSpec{Path: "/m", Devices: []string{"0"}, Limits: limits.Request{Overcommit: true}})
	return r, a
}

// client makes a client that does what it is told.
func (r *rig) client(t *testing.T, a *Attachment, before []tenant.Held) *fakeHolder {
	t.Helper()
	f := &fakeHolder{t: t, id: a.ID, heard: make(chan protocol.Message, 1000), notes: make(chan tenant.Held, 1000), fd: -1}
	for _, d := range a.Devices {
		f.devices = append(f.devices, d.UUID)
	}
	if before != nil {
		f.noted = before[0]
	}
	f.answer = func(m protocol.Message) {
		r.residence.said(f, 0, protocol.Message{Kind: protocol.Kept, Serial: m.Serial, Value: m.Value}, -1)
	}
	r.residence.joined(f, before)
	t.Cleanup(func() { r.residence.left(f) })
	return f
}

// need has a client say that it needs a level.
func (r *rig) need(f *fakeHolder, device int, level uint64) {
	r.residence.wanted(f, device, level, level)
}

func (r *rig) write(t *testing.T, path, file, text string) {
	t.Helper()
	if err := r.Tree().Write(path, file, text); err != nil {
		t.Fatal(err)
	}
}

func TestSuspendAndResume(t *testing.T) {
	r, a := managedRig(t, Config{})
	events := r.events(t)
	if l := r.tenants.limits(a.ID); l.Devices[0].Overcommit != 1 {
		t.Error("programs do not learn that their memory can leave")
	}
	f := r.client(t, a, nil)
	r.need(f, 0, 0)
	r.need(f, 0, 3*mib)
	if m := f.await(protocol.Keep); m.Value != 3*mib || m.Flags != 0 {
		t.Fatalf("%+v", m)
	}
	if m := f.await(protocol.Store); m.Value != 4*mib || m.Flags != protocol.FlagPinned || f.fd < 0 {
		t.Errorf("%+v, descriptor %d", m, f.fd)
	}
	if used := r.Snapshot().Daemon.HostCopies; used != 4*mib {
		t.Errorf("%d bytes of copies", used)
	}
	if n := r.Releases.copied(a.ID, a.Devices[0].UUID); n != 3*mib {
		t.Errorf("there is room for %d bytes in copies", n)
	}
	r.write(t, "/", "memory.suspend", "1") // above it
	if m := f.await(protocol.Keep); m.Value != 0 {
		t.Fatalf("%+v", m)
	}
	if e := events.await(t, LgpuSuspended); e.Path != "/m" || e.ID != a.ID {
		t.Errorf("%+v", e)
	}
	late := r.client(t, a, nil) // waits
	r.need(late, 0, 0)
	r.need(late, 0, mib)
	if d := r.node(t, "/m").Devices[0]; d.Resident == nil || d.Evicted == nil {
		t.Errorf("%+v", d)
	}
	r.write(t, "/", "memory.suspend", "0")
	if m := f.await(protocol.Keep); m.Value != 3*mib {
		t.Errorf("%+v", m)
	}
	if m := late.await(protocol.Keep); m.Value != mib {
		t.Errorf("%+v", m)
	}
	events.await(t, LgpuResumed)
	r.need(f, 0, 1<<60)
	if m := f.await(protocol.Keep); m.Flags != protocol.FlagRefused {
		t.Errorf("more than there is: %+v", m)
	}
	r.residence.left(f)
	r.residence.left(late)
	for deadline := time.Now().Add(20 * time.Second); r.residence.keeper.Used(hostcopy.Memory) > 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("copies stay after their clients")
		}
	}
}

// TestResidenceFails: a client that cannot, one that does not answer, and one that lies.
func TestResidenceFails(t *testing.T) {
	r, a := managedRig(t, Config{Patience: 50 * time.Millisecond})
	events := r.events(t)
	f := r.client(t, a, nil)
	r.need(f, 0, 2*mib)
	f.await(protocol.Store)
	f.answers(func(m protocol.Message) {
		r.residence.said(f, 0, protocol.Message{Serial: m.Serial, Value: 2 * mib, Flags: protocol.FlagRefused,
			Extra: protocol.WhyCapture}, -1)
	})
	r.write(t, "/m", "memory.suspend", "1")
	if e := events.await(t, ResidenceFailed); !strings.Contains(e.Text, "captured") || e.ID != a.ID {
		t.Errorf("%+v", e)
	}
	if d := r.node(t, "/m").Devices[0]; d.ResidenceFailure == "" {
		t.Error("the failure is not shown")
	}
	if held := f.held(); held.Taken != 2*mib {
		t.Errorf("its room is not taken: %+v", held)
	}
	r.residence.left(f)

	b := r.holds(t, AttachSpec{Path: "/silent", Devices: []string{"0"}, Limits: limits.Request{Overcommit: true}})
	silent := r.client(t, b, nil)
	silent.answers(nil)
	r.need(silent, 0, mib)
	if e := events.await(t, ResidenceFailed); e.ID != b.ID || !strings.Contains(e.Text, "not answered") {
		t.Errorf("%+v", e)
	}
	for range 100 {
		r.residence.said(silent, 0, protocol.Message{Value: 1 << 63, Serial: 5, Flags: protocol.FlagRefused, Extra: 1 << 40}, -1)
		r.residence.lost(silent)
		r.residence.said(silent, 0, protocol.Message{Value: 1 << 63}, -1)
	}
	silent.await(protocol.Store)
}

// TestCopiesBeyondBudget lie on the disk; where there is none, that is said.
func TestCopiesBeyondBudget(t *testing.T) {
	r, a := managedRig(t, Config{})
	r.write(t, "/", "host.budget", "2MiB")
	f := r.client(t, a, nil)
	r.need(f, 0, 8*mib)
	m := f.await(protocol.Store)
	if m.Flags == protocol.FlagPinned {
		t.Errorf("beyond the budget: %+v", m)
	}
	if m.Value != 8*mib || r.residence.keeper.Used(hostcopy.Memory) != 0 {
		t.Errorf("%+v, %d used", m, r.residence.keeper.Used(hostcopy.Memory))
	}
	if n := r.Releases.copied(a.ID, a.Devices[0].UUID); n != 8*mib {
		t.Errorf("of %d bytes, which go to the disk, host memory for a driver is not wanted", n)
	}
	// One that has begun in memory goes on to the disk, and a new daemon gets both files back.
	r.write(t, "/", "host.budget", "5MiB")
	f = r.client(t, a, nil)
	r.need(f, 0, 4*mib)
	if m := f.await(protocol.Store); m.Value != 4*mib || m.Flags != protocol.FlagPinned {
		t.Errorf("%+v", m)
	}
	memory := f.fd
	r.need(f, 0, 10*mib)
	if m := f.await(protocol.Store); m.Value != 6*mib || m.Flags != 0 || f.fd == memory {
		t.Errorf("%+v", m)
	}
	if now := r.Snapshot().Daemon; now.HostCopies != 4*mib || now.DiskCopies != (8+6)*mib {
		t.Errorf("%d bytes in memory, %d on disks", now.HostCopies, now.DiskCopies)
	}
	f.awaitNote(func(h tenant.Held) bool { return h.Stores[hostcopy.Disk].Number != 0 })
	disk, before := f.fd, f.held()
	r.residence.left(f)
	f = r.client(t, a, []tenant.Held{before})
	r.residence.said(f, 0, protocol.Message{Kind: protocol.Kept, Value: 10 * mib, Flags: protocol.FlagMore}, disk)
	r.residence.said(f, 0, protocol.Message{Kind: protocol.Kept, Value: 10 * mib}, memory)
	f.await(protocol.Keep) // its level, which it is to hear again
	// What the client before had is given up in the background.
	for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		now := r.Snapshot().Daemon
		if now.HostCopies == 4*mib && now.DiskCopies == (8+6)*mib {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the return %d bytes in memory, %d on disks", now.HostCopies, now.DiskCopies)
		}
	}
}

// TestResidenceRestarts: a suspended lgpu stays one over any number of daemons, and its client's file is its own.
func TestResidenceRestarts(t *testing.T) {
	dir := t.TempDir()
	launcher := program(t)
	r := start(t, Config{Dir: dir, Reattach: time.Hour})
	a := r.holds(t, AttachSpec{Path: "/m", Devices: []string{"0"}, Limits: limits.Request{Overcommit: true},
		Launcher: limits.Author{PID: launcher.Process.Pid}})
	f := r.client(t, a, nil)
	r.need(f, 0, 2*mib)
	f.await(protocol.Store)
	f.awaitNote(func(h tenant.Held) bool { return h.Stores[0].Number != 0 })
	store := f.fd
	for restart := range 100 {
		suspend := restart%3 != 0
		text, level := "0", uint64(2*mib)
		if suspend {
			text, level = "1", 0
		}
		r.write(t, "/m", "memory.suspend", text)
		r.stop() // at any moment of that
		before := f.held()
		if before.Taken != 0 && before.Taken != 2*mib {
			t.Fatalf("noted %+v", before)
		}
		r = start(t, Config{Dir: dir, Reattach: time.Hour})
		f = r.client(t, a, []tenant.Held{before})
		r.residence.said(f, 0, protocol.Message{Kind: protocol.Kept, Serial: 1, Value: before.Taken}, -1) // to the one before
		r.residence.said(f, 0, protocol.Message{Kind: protocol.Kept, Value: before.Taken}, store)
		r.need(f, 0, 2*mib) // it waits, or has it
		for {
			if m := f.await(protocol.Keep); m.Value == level {
				break
			}
		}
		f.awaitNote(func(h tenant.Held) bool { return h.Taken == level })
		if used := r.residence.keeper.Used(hostcopy.Memory); used != 2*mib {
			t.Fatalf("restart %d: %d bytes of copies", restart, used)
		}
	}
	// A file of somebody else is not taken.
	r.stop()
	fd, err := unix.MemfdCreate("foreign", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	before := f.held()
	r = start(t, Config{Dir: dir, Reattach: time.Hour})
	r.write(t, "/m", "memory.suspend", "0")
	f = r.client(t, a, []tenant.Held{before})
	r.residence.said(f, 0, protocol.Message{Kind: protocol.Kept, Value: before.Taken}, fd)
	r.need(f, 0, 2*mib)
	f.await(protocol.Store)
	if now := f.held().Stores[0]; now == before.Stores[0] && f.fd < 0 {
		t.Errorf("no file of its own: %+v", now)
	}
}

// TestFullDisk: where nothing can be copied to, that is said, and tried again when the client lacks it.
func TestFullDisk(t *testing.T) {
	r, a := managedRig(t, Config{Copies: "/proc/self/nowhere"})
	r.write(t, "/", "host.budget", "2MiB")
	events := r.events(t)
	f := r.client(t, a, nil)
	f.answers(func(m protocol.Message) {
		k := protocol.Message{Kind: protocol.Kept, Serial: m.Serial, Value: m.Value}
		if m.Value == 0 {
			k.Value, k.Flags, k.Extra = 8*mib, protocol.FlagRefused, protocol.WhyStore
		}
		r.residence.said(f, 0, k, -1)
	})
	r.need(f, 0, 8*mib)
	if e := events.await(t, ResidenceFailed); !strings.Contains(e.Text, "disk") {
		t.Errorf("%+v", e)
	}
	r.write(t, "/", "host.budget", "64MiB")
	r.write(t, "/m", "memory.suspend", "1")
	if m := f.await(protocol.Store); m.Value != 8*mib {
		t.Errorf("%+v", m)
	}
}

// TestOvercommitIsNotSpatial: in spatial mode nothing leaves a device.
func TestOvercommitIsNotSpatial(t *testing.T) {
	r := start(t, Config{})
	_, err := r.Attach(t.Context(), AttachSpec{Path: "/s", Devices: []string{"0"}, Spatial: true, Launcher: self(),
		Limits: limits.Request{Overcommit: true}})
	if err == nil || !strings.Contains(err.Error(), "spatial mode") {
		t.Errorf("%v", err)
	}
}

// rivals attaches another lgpu with memory.overcommit, of a daemon whose devices have so much memory for all, and returns
// a client of each.
func rivals(t *testing.T, budget string) (r *rig, a, b *fakeHolder) {
	t.Helper()
	r, first := managedRig(t, Config{PolicePeriod: 20 * time.Millisecond})
	r.write(t, "/", "memory.budget", budget)
	r.write(t, "/", "slice.min", "10ms")
	second := r.holds(t, AttachSpec{Path: "/n", Devices: []string{"0"}, Limits: limits.Request{Overcommit: true}})
	a, b = r.client(t, first, nil), r.client(t, second, nil)
	for _, f := range []*fakeHolder{a, b} {
		r.need(f, 0, 0)
	}
	r.need(a, 0, 3<<30)
	if m := a.await(protocol.Keep); m.Value != 3<<30 {
		t.Fatalf("%+v", m)
	}
	return r, a, b
}

// awaitLevel waits until a client is told a level for which something holds.
func (f *fakeHolder) awaitLevel(ok func(uint64) bool) {
	f.t.Helper()
	for !ok(f.await(protocol.Keep).Value) {
	}
}

// A client that says that memory has left which has not, by the driver's word, keeps its room: who was given it has to leave.
func TestClientThatLies(t *testing.T) {
	r, a, b := rivals(t, "4GiB")
	events := r.events(t)
	r.need(b, 0, 3<<30)
	b.awaitLevel(func(level uint64) bool { return level == 3<<30 }) // by a's word
	r.gpus.SetFacts(a.devices[0], gpu.Facts{Processes: []gpu.Process{{PID: 1 << 30, Memory: 3 << 30}}})
	e := events.await(t, ResidenceFailed)
	if e.Path != "/m" || !strings.Contains(e.Text, "the driver says that it has 3 GiB there") {
		t.Errorf("%+v", e)
	}
	b.awaitLevel(func(level uint64) bool { return level <= 1<<30 })
	r.gpus.SetFacts(a.devices[0], gpu.Facts{})
}

// What is resident in the midst of a move is less than what is held, though nothing was freed: said when the move is over, it
// changes nothing. What is said after that does.
func TestFreedAsOf(t *testing.T) {
	r, a := managedRig(t, Config{})
	f := r.client(t, a, nil)
	r.need(f, 0, 0)
	r.need(f, 0, 3*mib)
	latest := f.await(protocol.Keep)
	for _, c := range []struct{ asOf, comesBack uint64 }{{latest.Serial - 1, 3 * mib}, {0, 3 * mib}, {0, mib}} {
		if c.comesBack == mib {
			c.asOf = latest.Serial
		}
		r.residence.said(f, 0, protocol.Message{Kind: protocol.Kept, Flags: protocol.FlagAsOf, ID: c.asOf, Value: mib}, -1)
		r.write(t, "/m", "memory.suspend", "1")
		f.awaitLevel(func(level uint64) bool { return level == 0 })
		r.write(t, "/m", "memory.suspend", "0")
		if latest = f.await(protocol.Keep); latest.Value != c.comesBack {
			t.Errorf("as of %d %d bytes come back; want %d", c.asOf, latest.Value, c.comesBack)
		}
	}
}

// A client whose work does not end keeps its memory and goes on, and is asked again later; others wait.
func TestClientThatDoesNotDrain(t *testing.T) {
	r, a, b := rivals(t, "4GiB")
	events := r.events(t)
	obey, busy := a.answer, true
	a.answers(func(m protocol.Message) {
		if m.Value < 3<<30 && busy {
			busy = false
			m = protocol.Message{Kind: protocol.Kept, Serial: m.Serial, Value: 3 << 30, Flags: protocol.FlagRefused, Extra: protocol.WhyBusy}
			r.residence.said(a, 0, m, -1)
			return
		}
		obey(m)
	})
	r.need(b, 0, 3<<30)
	if e := events.await(t, ResidenceFailed); e.Path != "/m" || !strings.Contains(e.Text, "its work does not end") {
		t.Errorf("%+v", e)
	}
	if b.held().Taken > 1<<30 {
		t.Errorf("%d bytes of another's room were given", b.held().Taken)
	}
	b.awaitLevel(func(level uint64) bool { return level == 3<<30 })
}

// What one that has ended had stands in nobody's way, though nobody has said yet that it has ended.
func TestBesideOneThatHasEnded(t *testing.T) {
	r, a, b := rivals(t, "4GiB")
	r.residence.fixed(a, 0, protocol.Message{Value: 3 << 30})
	for _, ended := range []bool{false, true} {
		a.ended.Store(ended)
		r.need(b, 0, 2<<30)
		m := b.await(protocol.Keep)
		if refused := m.Flags&protocol.FlagRefused != 0; refused == ended || ended && m.Value != 2<<30 {
			t.Errorf("beside one of which it is %v that it has ended: %+v", ended, m)
		}
	}
	third := r.holds(t, AttachSpec{Path: "/o", Devices: []string{"0"}, Limits: limits.Request{Overcommit: true}})
	c := r.client(t, third, nil)
	r.need(c, 0, 0)
	for _, ended := range []bool{false, true} {
		b.ended.Store(ended)
		r.residence.fixed(c, 0, protocol.Message{ID: 7, Value: 3 << 30})
		if m := c.await(protocol.Keep); m.Flags&protocol.FlagRefused != 0 == ended {
			t.Errorf("a context, beside one of which it is %v that it has ended: %+v", ended, m)
		}
	}
}

// A context with which another lgpu could not come back is refused, with the reason, as is one that the budget has no room
// for at all; a client's word counts up to what it may have.
func TestContextThatSpoils(t *testing.T) {
	r, _, b := rivals(t, "4GiB")
	events := r.events(t)
	asks := func(f *fakeHolder, bytes uint64) uint32 {
		t.Helper()
		r.residence.fixed(f, 0, protocol.Message{ID: 7, Value: bytes})
		m := f.await(protocol.Keep)
		for m.Flags&protocol.FlagFixed == 0 { // a level
			m = f.await(protocol.Keep)
		}
		if m.ID != 7 || m.Value != 0 {
			t.Errorf("%+v", m)
		}
		return m.Flags &^ protocol.FlagFixed
	}
	if flags := asks(b, 1<<30); flags != 0 {
		t.Error("one that fits is refused")
	}
	if flags := asks(b, 1<<30+1); flags != protocol.FlagRefused {
		t.Error("one that does not fit is let in")
	}
	e := events.await(t, ResidenceFailed)
	for _, part := range []string{"of /n was refused a context", "with which /m could not come back", "memory.budget of the device is 4 GiB"} {
		if e.Path != "/n" || !strings.Contains(e.Text, part) {
			t.Errorf("%s: the event %q does not say %q", e.Path, e.Text, part)
		}
	}
	r.write(t, "/", "memory.budget", "512MiB")
	third := r.holds(t, AttachSpec{Path: "/o", Devices: []string{"0"}, Limits: limits.Request{Overcommit: true}})
	r.write(t, "/o", "memory.max", "1GiB")
	c := r.client(t, third, nil)
	r.need(c, 0, 0)
	if flags := asks(c, 1<<40); flags != protocol.FlagRefused {
		t.Error("a budget that is too small for a context has room for it")
	}
	for { // those of the others come before it
		e := events.await(t, ResidenceFailed)
		if e.Path == "/o" {
			if !strings.Contains(e.Text, "which has no room for it: memory.budget of the device is 512 MiB, and") || !strings.Contains(e.Text, " 2 GiB ") {
				t.Errorf("%q", e.Text)
			}
			break
		}
	}
}
