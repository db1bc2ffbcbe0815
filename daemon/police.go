package daemon

import (
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/policy/limits"
)

// processKey names a process for good.
type processKey = tenant.Process

// sightings is how often in a row something must be seen before it is reported: a process that has just ended is still
// on a driver's list, and one that begins is there before its books are.
const sightings = 2

// Tolerance of the driver's count against a lgpu's: what is allocated between the two looks, and what drivers round up.
const (
	toleranceBytes   = 64 << 20
	toleranceDivisor = 50 // 2 %
)

// tolerance is how far the driver's count may be above an amount.
func tolerance(bytes uint64) uint64 { return max(toleranceBytes, bytes/toleranceDivisor) }

// patrol looks at the devices of an origin once: what is true there, and whether that is what the books say.
func (n *Node) patrol(o *origin) {
	for _, d := range n.devicesOf(o) {
		facts, err := o.facts(d.UUID)
		n.observe(d, facts, err)
		if err != nil || d.Partitioned {
			continue
		}
		if facts.Namespaced {
			n.blind.Do(func() {
				n.log.Warn("the daemon runs in a container, where the driver's process numbers mean nothing: " +
					"strangers on a device are not seen")
			})
			facts.Processes = nil
		}
		n.inspect(d, facts)
	}
	n.tree.Observe()
}

// devicesOf returns the devices of an origin.
func (n *Node) devicesOf(o *origin) (mine []*device) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.all {
		if d.origin == o {
			mine = append(mine, d)
		}
	}
	return mine
}

// observe notes what was seen of a device. It is not well once it could not be reached twice in a row.
func (n *Node) observe(d *device, facts gpu.Facts, err error) {
	var event *Event
	uuid := d.UUID
	n.mu.Lock()
	if err != nil {
		d.failures++
		if d.failures == sightings {
			d.fault = err.Error()
			event = &Event{Kind: DeviceFault, Device: &uuid, Text: fmt.Sprintf("device %s cannot be reached: %v",
				d.Short(), err)}
		}
	} else {
		if d.fault != "" {
			event = &Event{Kind: DeviceWell, Device: &uuid, Text: fmt.Sprintf("device %s can be reached again",
				d.Short())}
		}
		d.failures, d.fault, d.facts, d.sampled = 0, "", facts, time.Now()
	}
	n.mu.Unlock()
	if event != nil {
		n.emit(*event)
	}
}

// inspect compares the driver's processes with the clients. Only the goroutine of the device's origin calls it.
func (n *Node) inspect(d *device, facts gpu.Facts) {
	clients := map[int]tenant.Client{}
	for _, c := range n.tenants.Clients() {
		clients[c.Peer.PID] = c
	}
	servers := n.modes.Processes(d.UUID)
	held := map[uint64][]holder{}
	seen := map[processKey]bool{}
	for _, p := range facts.Processes {
		if c, ok := clients[p.PID]; ok {
			held[c.LGPU] = append(held[c.LGPU], holder{c, p.Memory})
			continue
		}
		if p.PID == os.Getpid() || slices.Contains(servers, p.PID) {
			continue
		}
		s, err := proc.Live(p.PID)
		if err != nil || slices.Contains(servers, s.Parent) {
			continue // it has ended, is in a PID namespace that this one does not see, or serves clients of MPS
		}
		key := processKey{PID: p.PID, Start: s.Start}
		seen[key] = true
		if d.strangers[key]++; d.strangers[key] == sightings {
			n.stranger(d, key, s, p)
		}
	}
	for key := range d.strangers {
		if !seen[key] {
			delete(d.strangers, key)
		}
	}
	n.compare(d, held)
	n.watchHigh(d)
}

// holder is a client with what the driver says that it holds.
type holder struct {
	tenant.Client
	memory uint64
}

// stranger reports a process that uses a device without being a client of an lgpu.
func (n *Node) stranger(d *device, key processKey, s proc.Status, p gpu.Process) {
	uid, _ := uidOf(key.PID)
	uuid := d.UUID
	e := Event{
		Kind: PoliceStranger, Device: &uuid, PID: key.PID, UID: uid, Bytes: p.Memory,
		Text: fmt.Sprintf("process %d (%s) of user %d holds %s of device %s and is a client of no lgpu", key.PID,
			s.Comm, uid,
			units.FormatSize(p.Memory), d.Short()),
	}
	belongs := false
	if evidence, err := tenant.Observe(key.PID, n.clientOf); err == nil {
		var node limits.Node
		if node, belongs = n.owner(evidence); belongs {
			e.Path, e.ID = node.Path, node.ID
			e.Text = fmt.Sprintf("process %d (%s) of user %d belongs to %s but holds %s of device %s past its limits",
				key.PID, s.Comm, uid,
				node.Path, units.FormatSize(p.Memory), d.Short())
		}
	}
	n.emit(e)
	if belongs && n.config.Police != PoliceReport || n.config.Police == PoliceStopStrangers {
		n.stop(key, e)
	}
}

// clientOf returns the lgpu that a process is a client of, or 0.
func (n *Node) clientOf(p tenant.Process) uint64 {
	for _, c := range n.tenants.Clients() {
		if c.Peer.Process == p {
			return c.LGPU
		}
	}
	return 0
}

// compare reports lgpus that hold more of a device than their books or their limit say.
func (n *Node) compare(d *device, held map[uint64][]holder) {
	for id, holders := range held {
		var sum uint64
		for _, h := range holders {
			sum += h.memory
		}
		node, ok := n.tree.ByID(id)
		books, inBooks := n.usageOf(id)[d.UUID]
		if !ok || !inBooks {
			continue
		}
		limit := limits.NoLimit
		if e, ok := node.Device(d.Identity()); ok {
			limit = e.Memory
		}
		overLimit := limit != limits.NoLimit && sum > limit && sum-limit > tolerance(limit)
		// The books of an lgpu whose clients have not come back after a restart are with them.
		linked := !slices.ContainsFunc(holders, func(h holder) bool { return !h.Linked })
		overBooks := linked && sum > books.Used && sum-books.Used > tolerance(books.Used)
		if !overLimit && !overBooks {
			delete(d.overruns, id)
			continue
		}
		if d.overruns[id]++; d.overruns[id] != sightings {
			continue
		}
		n.overrun(d, node, holders, sum, books.Used, limit, overLimit)
	}
	for id := range d.overruns {
		if held[id] == nil {
			delete(d.overruns, id)
		}
	}
}

// overrun reports an lgpu that holds too much, and its client that does most of it.
func (n *Node) overrun(d *device, node limits.Node, holders []holder, sum, books, limit uint64, overLimit bool) {
	excess := func(h holder) uint64 {
		if l := n.lgpuOf(node.ID); l != nil {
			n.mu.Lock()
			i := slices.Index(l.record.Devices, d.UUID)
			n.mu.Unlock()
			if i >= 0 && i < len(h.Memory) {
				return h.memory - min(h.memory, h.Memory[i])
			}
		}
		return h.memory
	}
	worst := slices.MaxFunc(holders, func(a, b holder) int {
		if ea, eb := excess(a), excess(b); ea != eb {
			return int(ea/1024) - int(eb/1024)
		}
		return b.Peer.PID - a.Peer.PID
	})
	uuid := d.UUID
	e := Event{
		Kind: PoliceOverrun, Path: node.Path, ID: node.ID, Device: &uuid, PID: worst.Peer.PID, UID: worst.Peer.UID,
		Bytes: sum,
		Text: fmt.Sprintf("%s holds %s of device %s by the driver's count, where its own says %s", node.Path,
			units.FormatSize(sum),
			d.Short(), units.FormatSize(books)),
	}
	if overLimit {
		e.Text += fmt.Sprintf(" and its limit is %s", units.FormatSize(limit))
	}
	n.emit(e)
	if overLimit && n.config.Police != PoliceReport {
		n.stop(worst.Peer.Process, e)
	}
}

// watchHigh reports lgpus that have come above their memory.high.
func (n *Node) watchHigh(d *device) {
	for _, node := range n.tree.Nodes() {
		e, ok := node.Device(d.Identity())
		l := n.lgpuOf(node.ID)
		if !ok || l == nil {
			continue
		}
		used := n.usageOf(node.ID)[d.UUID].Used
		above := used > e.High
		n.mu.Lock()
		was := l.high[d.UUID]
		if l.high == nil {
			l.high = map[gpu.UUID]bool{}
		}
		l.high[d.UUID] = above
		n.mu.Unlock()
		if above && !was {
			uuid := d.UUID
			n.emit(Event{
				Kind: MemoryHigh, Path: node.Path, ID: node.ID, Device: &uuid, Bytes: used,
				Text: fmt.Sprintf("%s uses %s of device %s, above its memory.high of %s", node.Path,
					units.FormatSize(used), d.Short(),
					units.FormatSize(e.High)),
			})
		}
	}
}

// stop ends a process for what it did: SIGTERM, and SIGKILL where that has not helped after Config.StopGrace. Never
// process
// 1, the daemon, or one that the daemon descends from.
func (n *Node) stop(p processKey, why Event) {
	self, err := tenant.Observe(os.Getpid(), func(tenant.Process) uint64 { return 0 })
	spared := p.PID <= 1 || p.PID == os.Getpid() || err != nil ||
		slices.ContainsFunc(self.Ancestors, func(a tenant.Ancestor) bool { return a.PID == p.PID })
	if spared {
		n.log.Warn("a process that should be stopped is spared", "pid", p.PID, "error", err)
		return
	}
	h, err := proc.Open(p.PID, p.Start)
	if err != nil {
		return // it has ended
	}
	why.Kind = PoliceStopped
	why.Text = fmt.Sprintf("process %d is stopped: %s", p.PID, why.Text)
	n.emit(why)
	n.work.Add(1)
	go func() {
		defer n.work.Done()
		defer h.Close()
		for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
			if err := h.Signal(s); err != nil {
				n.log.Warn("a process cannot be stopped", "pid", p.PID, "signal", s, "error", err)
				return
			}
			if h.WaitFor(n.ctx, n.config.StopGrace) {
				return
			}
		}
	}()
}
