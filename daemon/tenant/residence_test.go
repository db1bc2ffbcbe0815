package tenant

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// levelCall is a call of the ResidenceHandler.
type levelCall struct {
	what   string // joined, wanted, kept, lost or left
	holder *Holder
	device int
	level  uint64
	m      protocol.Message
	held   []Held
	store  region.Inode // of what came along; zero without
}

type residenceHandler struct{ *daemon }

func (r residenceHandler) level(c levelCall) {
	select {
	case r.levels <- c:
	default:
	}
}

func (r residenceHandler) Joined(h *Holder, held []Held) {
	r.level(levelCall{what: "joined", holder: h, held: held})
}
func (r residenceHandler) Wanted(h *Holder, device int, level, _ uint64) {
	r.level(levelCall{what: "wanted", holder: h, device: device, level: level})
}
func (r residenceHandler) Fixed(h *Holder, device int, m protocol.Message) {
	r.level(levelCall{what: "fixed", holder: h, device: device, m: m})
}
func (r residenceHandler) Kept(h *Holder, device int, m protocol.Message, store int) {
	c := levelCall{what: "kept", holder: h, device: device, m: m}
	var stat unix.Stat_t
	if store >= 0 && unix.Fstat(store, &stat) == nil {
		c.store = region.Inode{Device: stat.Dev, Number: stat.Ino}
	}
	r.level(c)
}
func (r residenceHandler) Lost(h *Holder) { r.level(levelCall{what: "lost", holder: h}) }
func (r residenceHandler) Left(h *Holder) { r.level(levelCall{what: "left", holder: h}) }

// awaitLevel waits for the next call, which must be this one.
func (d *daemon) awaitLevel(what string) levelCall {
	d.t.Helper()
	select {
	case c := <-d.levels:
		if c.what != what {
			d.t.Fatalf("%+v, not %s", c, what)
		}
		return c
	case <-time.After(timeout):
		d.t.Fatalf("no %s", what)
	}
	return levelCall{}
}

// managed adds an lgpu with memory.overcommit.
func (d *daemon) managed(id uint64) {
	d.t.Helper()
	l := limits(1000)
	for i := range l.Devices {
		l.Devices[i].Overcommit = 1
	}
	if err := d.AddLGPU(LGPU{ID: id, Name: fmt.Sprint("lgpu-", id), Limits: l}); err != nil {
		d.t.Fatal(err)
	}
}

func memoryFile(t *testing.T) (fd int, inode region.Inode) {
	t.Helper()
	fd, err := unix.MemfdCreate("store", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		t.Fatal(err)
	}
	return fd, region.Inode{Device: stat.Dev, Number: stat.Ino}
}

func TestResidentMemory(t *testing.T) {
	d := serve(t)
	d.managed(1)
	p := d.client(1)
	h := d.awaitLevel("joined").holder
	if id, peer, devices := h.Identity(); id != 1 || peer.PID != p.pid() || len(devices) != 2 {
		t.Errorf("%d, %+v, %v", id, peer, devices)
	}
	p.want("ok", "say %d 1 0 %d", protocol.Need, protocol.FlagResident)
	if c := d.awaitLevel("wanted"); c.device != 1 || c.level != 0 || c.holder != h {
		t.Errorf("%+v", c)
	}
	p.want("ok", "say %d 1 4096 %d", protocol.Need, protocol.FlagResident)
	if c := d.awaitLevel("wanted"); c.level != 4096 {
		t.Errorf("%+v", c)
	}
	p.want("ok", "say %d 1 100 %d", protocol.Need, protocol.FlagResident|protocol.FlagFixed)
	if c := d.awaitLevel("fixed"); c.device != 1 || c.m.Value != 100 || c.holder != h {
		t.Errorf("%+v", c)
	}
	h.Send(1, protocol.Message{Kind: protocol.Keep, Serial: 7, Value: 4096})
	p.want(fmt.Sprintf("%d 1 7 4096 files 0", protocol.Keep), "hear-level")
	p.want("ok", "kept 1 7 100 %d %d", protocol.FlagRefused, protocol.WhyBusy)
	if c := d.awaitLevel("kept"); c.m.Serial != 7 || c.m.Value != 100 || c.m.Extra != protocol.WhyBusy || c.store != (region.Inode{}) {
		t.Errorf("%+v", c)
	}
	fd, _ := memoryFile(t)
	h.Send(1, protocol.Message{Kind: protocol.Store, Value: 5}, fd)
	p.want(fmt.Sprintf("%d 1 0 5 files 1", protocol.Store), "hear-level")
	p.want("ok", "close")
	d.awaitLevel("lost")
	h.Send(1, protocol.Message{Kind: protocol.Keep}) // nobody hears it
	p.want("welcome", "resume")
	p.want("ok", "kept 1 0 50 0 0")
	if c := d.awaitLevel("kept"); c.holder != h {
		t.Error("another holder after a reconnect")
	}
	p.kill()
	for what := ""; what != "left"; { // lost comes before or after
		c := <-d.levels
		if what = c.what; what != "lost" && what != "left" {
			t.Fatalf("%+v", c)
		}
	}
	if err := h.Note(1, Held{Taken: 1}); err != nil {
		t.Error(err)
	}
}

// TestResidentMemoryUnmanaged: of an lgpu whose memory stays, such a message breaks the protocol; and so does a file
// that nobody expects.
func TestResidentMemoryUnmanaged(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	d.managed(2)
	for _, message := range []string{
		fmt.Sprintf("say %d 0 0 %d", protocol.Need, protocol.FlagResident),
		fmt.Sprintf("say %d 0 0 0", protocol.Kept),
	} {
		p := d.client(1)
		p.want("ok", "%s", message)
		p.want("error EOF", "hear")
	}
	for _, message := range []string{
		fmt.Sprintf("say %d 0 0 0", protocol.Keep), fmt.Sprintf("say %d 0 0 0", protocol.Store),
		fmt.Sprintf("say %d 99 0 0", protocol.Kept),
	} {
		p := d.client(2)
		p.want("ok", "%s", message)
		p.want("error EOF", "hear")
	}
	p := d.client(2)
	if answer := p.ask("kept-store 0 1"); answer == "ok" { // the kernel may refuse it
		p.want("error EOF", "hear")
	}
}

// TestResidentMemoryRestart: what clients hold is known to the next daemon, and they bring their files once.
func TestResidentMemoryRestart(t *testing.T) {
	dir := t.TempDir()
	first := listening(t, dir).run()
	first.managed(1)
	p, dies := first.client(1), first.client(1)
	h := first.awaitLevel("joined").holder
	other := first.awaitLevel("joined").holder
	if _, peer, _ := h.Identity(); peer.PID != p.pid() {
		h, other = other, h
	}
	fd, inode := memoryFile(t)
	has := Held{Taken: 4096, Stores: [2]region.Inode{inode, {Device: 7, Number: 8}}}
	for _, of := range []*Holder{h, other} {
		if err := of.Note(1, has); err != nil {
			t.Fatal(err)
		}
	}
	h.Send(1, protocol.Message{Kind: protocol.Store, Value: 5}, fd)
	p.want(fmt.Sprintf("%d 1 0 5 files 1", protocol.Store), "hear-level")
	first.stop()
	dies.kill()

	second := listening(t, dir)
	second.managed(1)
	c := second.awaitLevel("joined")
	if len(c.held) != 2 || c.held[0] != (Held{}) || c.held[1] != (has) {
		t.Fatalf("%+v", c.held)
	}
	second.run()
	p.want("welcome", "resume")
	p.want("ok", "kept-more 1 100")
	if k := second.awaitLevel("kept"); k.store != inode || k.m.Flags != protocol.FlagMore {
		t.Errorf("%+v", k)
	}
	p.want("ok", "kept-store 1 100")
	if k := second.awaitLevel("kept"); k.store != inode || k.holder != c.holder {
		t.Errorf("%+v", k)
	}
	if answer := p.ask("kept-store 1 100"); answer == "ok" { // once is enough
		if heard := p.ask("hear"); !strings.HasPrefix(heard, "error") {
			t.Errorf("a second file: %s", heard)
		}
	}
	// Who comes after it, at the same index, holds nothing.
	p.kill()
	second.await("left", p.pid())
	fresh := second.client(1)
	for c := range second.levels {
		if _, peer, _ := c.holder.Identity(); c.what == "joined" && peer.PID == fresh.pid() {
			break
		}
	}
	second.stop()
	third := listening(t, dir)
	third.managed(1)
	if c := third.awaitLevel("joined"); c.held[1] != (Held{}) {
		t.Errorf("a new client has what one before had: %+v", c.held)
	}
	third.run()
}

// TestResidentMemoryFlood: any messages in any order do no harm to others.
func TestResidentMemoryFlood(t *testing.T) {
	d := serve(t)
	d.managed(1)
	p := d.client(1)
	for i := range 2000 {
		if p.ask("kept %d %d %d %d %d", i%2, i%7, uint64(1)<<(i%64), i%3*int(protocol.FlagRefused), i) != "ok" {
			t.Fatal("cut off")
		}
		p.ask("say %d %d %d %d", protocol.Need, i%2, uint64(1)<<(i%64), protocol.FlagResident)
	}
	q := d.client(1)
	q.want("true", "alloc 0 %d", mib)
}
