package tenant

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// TestLostConnection: a client whose connection ends keeps its slot, and comes back to it, from the same process only.
func TestLostConnection(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	d.lgpu(2, 0, 100)
	filler := d.client(1)
	p := d.client(1)
	p.want("true", "alloc 0 %d", 50*mib)
	p.want("ok", "say %d 0 0 0", protocol.Gate)
	seat := d.awaitGate("attach").seat
	if seat.LGPU() != 1 || seat.Client() != 1 || seat.Device() != 0 || seat.UUID() != [16]byte{1} ||
		seat.Peer().PID != p.pid() || seat.Busy() != 0 {
		t.Errorf("seat: lgpu %d, client %d, device %d, %v", seat.LGPU(), seat.Client(), seat.Device(), seat.UUID())
	}
	seat.Send(protocol.Message{Kind: protocol.Open, Value: 5})
	p.want(fmt.Sprintf("%d 0 5", protocol.Open), "hear")
	p.want("ok", "close")
	d.awaitGate("gone")
	// The slot is free for the next connection only after the gate knows that this one is gone.
	for deadline := time.Now().Add(10 * time.Second); d.Clients()[1].Linked && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if c := d.Clients(); len(c) != 2 || c[1].Linked || c[1].Memory[0] != 50*mib {
		t.Errorf("without connection: %+v", c)
	}
	p.want("refused "+strconv.Itoa(int(unix.ESTALE)), "resume-as 2 1")
	p.want("refused "+strconv.Itoa(int(unix.ESTALE)), "resume-as 1 0")
	for _, how := range []string{"unsealed", "small", "perfect"} {
		p.wantKeptOut("resume-forged %s", how)
	}
	p.want("welcome 1 0x1", "resume-forged none") // it is the client, and the daemon has the counters
	p.want("welcome 1 0x1", "resume")
	p.want("welcome 1 0x1", "resume") // over the one that is still there
	p.want("true", "alloc 0 %d", 50*mib)
	filler.want("false", "alloc 0 1")
	p.kill()
	d.await("left", p.pid())
	d.wantUsed(1, 0)
}

// TestRestart: 50 clients outlive their daemon, and the next one takes them over with what they hold; those that died
// meanwhile are settled, and nobody exceeds a limit in between.
func TestRestart(t *testing.T) {
	const clients, each = 50, 2 * mib
	dir := t.TempDir()
	first := listening(t, dir).run()
	budgets := []Budget{{ID: 1, HostMemory: region.NoLimit, Memory: map[[16]byte]uint64{{1}: 200 * mib}}}
	prepare := func(d *daemon) {
		if err := d.SetBudgets(budgets); err != nil {
			t.Fatal(err)
		}
		d.lgpu(1, 1, 150)
		d.lgpu(2, 1, 150)
		d.lgpu(3, 0, 100)
	}
	prepare(first)
	var all []*tenantProcess
	for range clients {
		p := first.client(1)
		p.want("true", "alloc 0 %d", each)
		all = append(all, p)
	}
	lone := first.client(3)
	lone.want("true", "alloc 0 %d", 100*mib)
	first.stop()
	dead := all[:10]
	all = all[10:]
	for _, p := range dead {
		p.kill()
	}
	lone.kill() // the only one: what it held went with it

	second := listening(t, dir)
	prepare(second)
	if n := len(second.Clients()); n != len(all) {
		t.Fatalf("the new daemon knows %d clients, want %d", n, len(all))
	}
	second.run()
	beside := second.client(2) // of the same group, before the others have come back
	beside.want("true", "alloc 0 %d", 50*mib)
	beside.want("false", "alloc 0 %d", 101*mib)
	late := second.tenant(1)
	late.tell("hello 0") // waits for those that have the counters
	for _, how := range []string{"unsealed", "small", "none"} {
		all[0].want("refused "+strconv.Itoa(int(unix.EBADF)), "resume-forged %s", how)
	}
	for _, p := range all {
		p.tell("resume")
	}
	for _, p := range all {
		if answer := p.answer(); !strings.HasPrefix(answer, "welcome") || !strings.HasSuffix(answer, " 0x1") {
			t.Fatalf("a client comes back: %q", answer)
		}
	}
	if answer := late.answer(); !strings.HasPrefix(answer, "welcome") {
		t.Errorf("who came while they were away: %q", answer)
	}
	all[0].wantKeptOut("resume-forged perfect") // others have shown the true counters
	all[0].want("welcome", "resume")
	second.wantUsed(1, uint64(len(all))*each)
	second.wantUsed(3, 0)
	all[0].want("true", "alloc 0 %d", 70*mib) // 150 of 150
	all[1].want("false", "alloc 0 1")
	beside.want("false", "alloc 0 1")
	for _, p := range all {
		p.kill()
		second.await("left", p.pid())
	}
	second.wantUsed(1, 0)
	beside.want("true", "alloc 0 %d", 100*mib)
}

// TestRestartAgain: 20 daemons after each other, of which each finds clients that lived, came, died and allocated
// under the one before. Nothing is lost and nothing is left.
func TestRestartAgain(t *testing.T) {
	const limit = 64
	dir := t.TempDir()
	var all []*tenantProcess
	held := map[*tenantProcess]uint64{}
	var d *daemon
	for round := range 20 {
		if round%2 == 1 { // as one leaves it that is killed
			if err := os.RemoveAll(filepath.Join(dir, "tenant.sock")); err != nil {
				t.Fatal(err)
			}
			stale, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "tenant.sock"), Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			stale.SetUnlinkOnClose(false)
			stale.Close()
		}
		d = listening(t, dir)
		d.lgpu(1, 0, limit)
		d.run()
		for i, p := range all {
			if i == 0 && round%3 == 0 {
				p.kill() // before it has come back
				d.await("left", p.pid())
				delete(held, p)
				continue
			}
			p.want("welcome", "resume")
		}
		if round%3 == 0 && len(all) > 0 {
			all = all[1:]
		}
		for range 2 {
			all = append(all, d.client(1))
		}
		var sum uint64
		for _, p := range all {
			if p.ask("alloc 0 %d", mib) == "true" {
				held[p] += mib
			}
			sum += held[p]
		}
		d.wantUsed(1, sum)
		if sum > limit*mib {
			t.Fatalf("%d bytes of %d MiB are held", sum, limit)
		}
		d.stop()
		all[len(all)-1].kill() // while there is none
		delete(held, all[len(all)-1])
		all = all[:len(all)-1]
	}
	if len(all) < 10 || len(held) == 0 {
		t.Fatalf("%d clients are left, of which %d hold something", len(all), len(held))
	}
	d = listening(t, dir)
	d.lgpu(1, 0, limit)
	d.run()
	for _, p := range all {
		p.want("welcome", "resume")
		p.kill()
		d.await("left", p.pid())
	}
	d.wantUsed(1, 0)
}

// TestRestartOfGroup: what clients of the daemon before may still take is not given to others, until they have seen
// the new daemon's limits; after it, what they leave unused is.
func TestRestartOfGroup(t *testing.T) {
	dir := t.TempDir()
	budgets := []Budget{{ID: 1, HostMemory: region.NoLimit, Memory: map[[16]byte]uint64{{1}: 100 * mib}}}
	first := listening(t, dir).run()
	if err := first.SetBudgets(budgets); err != nil {
		t.Fatal(err)
	}
	first.lgpu(1, 1, 100)
	old := first.client(1)
	old.want(fmt.Sprint(100*mib), "granted 0")
	old.want("true", "alloc 0 %d", 10*mib)
	first.stop()
	second := listening(t, dir)
	if err := second.SetBudgets(budgets); err != nil {
		t.Fatal(err)
	}
	second.lgpu(1, 1, 100)
	second.lgpu(2, 1, 100)
	second.run()
	beside := second.client(2)
	beside.want("false", "alloc 0 1") // the old one may take it all without asking
	old.want("true", "alloc 0 %d", 30*mib)
	old.want("welcome", "resume-unseen")
	beside.want("false", "alloc 0 1") // it may still go by the old limits
	old.want("true", "alloc 0 %d", 10*mib)
	old.want("ok", "say %d 0 0 0", protocol.Need)
	old.want("ok", "say %d 0 1 0", protocol.Need)
	old.want(strconv.Itoa(int(protocol.Memory)), "hear") // so what it has said before, that it sees the limits, is heard
	beside.want("true", "alloc 0 %d", 50*mib)
	beside.want("false", "alloc 0 1")
	old.want("false", "alloc 0 1")
}

// TestRestartExec: a client that has become another program while there was no daemon does not keep others waiting for
// ever.
func TestRestartExec(t *testing.T) {
	dir := t.TempDir()
	first := listening(t, dir).run()
	first.lgpu(1, 0, 100)
	p := first.client(1)
	p.want("true", "alloc 0 %d", 100*mib)
	first.stop()
	p.want("ready", "exec")
	second := listening(t, dir)
	second.lgpu(1, 0, 100)
	second.run()
	other := second.client(1)
	other.want("true", "alloc 0 %d", 100*mib)
	second.launcher(p.process(), 1)
	p.want("welcome", "hello 0")
}
