package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/hostcopy"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/policy/limits"
	policy "github.com/lgpu/lgpu/policy/residence"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/policy/slot"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// residencePeriod is the longest time between two looks at what lgpus without memory.overcommit use.
const residencePeriod = time.Second

// residence keeps what clients of lgpus with memory.overcommit have on their devices within the budgets, and has their
// memory leave when an lgpu is suspended. One goroutine (keep) does everything: what clients say is put into a queue, so
// that nobody who says something waits, and orders go out in the order in which they were given.
type residence struct {
	daemon *Daemon
	keeper *hostcopy.Keeper
	wake   chan struct{}

	queueMu sync.Mutex // guards queue and known; nothing is locked below it
	queue   []func(now time.Time)
	known   map[uint64]bool // lgpus that look has met

	mu      sync.Mutex // guards what follows; changed by keep alone
	policy  *policy.Policy
	holders map[holder]*holding
	lgpus   map[uint64]*managed
	number  int

	images imageFiles

	first  map[uint64]time.Time     // of keep: when lgpus without gates were first asked for
	memory map[uint64]policy.Memory // of keep: as the gates were told
	turns  limits.Turns             // of keep: as the policy was told
}

// holder is what is needed of a tenant.Holder.
type holder interface {
	Identity() (lgpu uint64, peer tenant.Peer, devices [][16]byte)
	Note(device int, held tenant.Held) error
	Send(device int, m protocol.Message, fds ...int)
	Ended() bool
}

// holding is what a client has.
type holding struct {
	holder
	id      policy.Client
	peer    tenant.Peer
	devices []held
}

// held is what a client has of one device.
type held struct {
	uuid    gpu.UUID
	noted   tenant.Held
	files   [hostcopy.Tiers]*hostcopy.Copy // nil before they are needed
	sizes   [hostcopy.Tiers]uint64
	growing bool
	urgent  bool      // something waits for the files to grow
	wanted  uint64    // size that all files are to have together
	away    bool      // it has not said Kept since it was lost, or since the daemon began
	failure string    // for people; empty if all is well
	said    time.Time // when it last said what it has
	hides   bool      // the driver says that it has more
	silent  time.Time // the order whose silence was reported
}

// managed is an lgpu with memory.overcommit.
type managed struct {
	suspended bool              // as the tree says
	evicted   bool              // its programs leave their devices, whatever the tree says
	frozen    bool              // its files are written to an image, and so grow no more
	known     bool              // the tree has been read
	told      bool              // what the last event said
	unfit     map[gpu.UUID]bool // likewise
}

var _ tenant.ResidenceHandler = (*residence)(nil)

func newResidence(n *Daemon) *residence {
	r := &residence{
		daemon: n, wake: make(chan struct{}, 1), holders: map[holder]*holding{}, lgpus: map[uint64]*managed{},
		first: map[uint64]time.Time{}, memory: map[uint64]policy.Memory{}, known: map[uint64]bool{},
		// Above all serials of the daemon before, which clients may still answer.
		policy: policy.New(policy.Options{Serial: uint64(time.Now().UnixNano())}),
	}
	most := ownBound()
	budget := func() uint64 { return min(n.tree.HostBudget(), most) }
	r.images = imageFiles{residence: r, arriving: map[arrival][]*arrivingFile{}}
	r.keeper = hostcopy.New(hostcopy.Options{Budget: budget, Available: available, Dir: n.config.Copies})
	return r
}

// post has keep do something.
func (r *residence) post(do func(now time.Time)) {
	r.queueMu.Lock()
	r.queue = append(r.queue, do)
	r.queueMu.Unlock()
	r.look()
}

// look has keep look at what there is to do. It waits for nothing and takes no lock.
func (r *residence) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Joined implements tenant.ResidenceHandler.
func (r *residence) Joined(h *tenant.Holder, before []tenant.Held) { r.joined(h, before) }

func (r *residence) joined(h holder, before []tenant.Held) {
	id, peer, devices := h.Identity()
	r.post(func(time.Time) {
		r.number++
		of := &holding{holder: h, id: policy.Client{LGPU: id, Index: r.number}, peer: peer}
		for i, uuid := range devices {
			d := held{uuid: uuid}
			if before != nil {
				d.noted, d.away = before[i], true
			}
			of.devices = append(of.devices, d)
			if d.noted != (tenant.Held{}) {
				r.policy.Restore(of.id, d.uuid, d.noted.Taken)
			}
		}
		r.holders[h] = of
		r.images.arrived(of)
	})
}

// Wanted implements tenant.ResidenceHandler.
func (r *residence) Wanted(h *tenant.Holder, device int, level, least uint64) {
	r.wanted(h, device, level, least)
}

func (r *residence) wanted(h holder, device int, level, least uint64) {
	r.post(func(now time.Time) {
		if of := r.holders[h]; of != nil {
			if r.policy.Refuses(of.id, of.devices[device].uuid, level) {
				r.buryOthers(h)
			}
			r.policy.Need(now, of.id, of.devices[device].uuid, level)
			if level != 0 {
				r.policy.Least(of.id, of.devices[device].uuid, least)
			}
		}
	})
}

// Fixed implements tenant.ResidenceHandler.
func (r *residence) Fixed(h *tenant.Holder, device int, m protocol.Message) { r.fixed(h, device, m) }

func (r *residence) fixed(h holder, device int, m protocol.Message) {
	r.post(func(now time.Time) {
		of := r.holders[h]
		if of == nil {
			return
		}
		uuid := of.devices[device].uuid
		bytes := min(m.Value, r.ceiling(of.id.LGPU, uuid))
		answer := protocol.Message{Kind: protocol.Keep, Flags: protocol.FlagFixed, ID: m.ID}
		unfit, budget, is := r.policy.Spoils(of.id, uuid, bytes)
		if is && r.buryOthers(h) {
			unfit, budget, is = r.policy.Spoils(of.id, uuid, bytes)
		}
		if is && m.ID != 0 {
			answer.Flags |= protocol.FlagRefused
			r.keepOut(of, uuid, unfit, budget)
		} else {
			r.policy.Fixed(now, of.id, uuid, bytes)
		}
		if m.ID != 0 {
			of.Send(device, answer)
		}
	})
}

// ceiling is the most that an lgpu can have of a device, whatever its clients say.
func (r *residence) ceiling(id uint64, uuid gpu.UUID) uint64 {
	d := r.daemon.inventory.device(uuid)
	dir, ok := r.daemon.tree.ByID(id)
	if d == nil || !ok {
		return 0
	}
	gets, _ := dir.Device(d.Identity())
	return gets.MemoryMax.Or(d.Memory)
}

// Kept implements tenant.ResidenceHandler.
func (r *residence) Kept(h *tenant.Holder, device int, m protocol.Message, store int) {
	r.said(h, device, m, store)
}

func (r *residence) said(h holder, device int, m protocol.Message, store int) {
	if store >= 0 {
		own, err := unix.FcntlInt(uintptr(store), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			r.daemon.log.Warn("what a client brings cannot be kept", "error", err)
		}
		store = own
	}
	r.post(func(now time.Time) {
		file := (*os.File)(nil)
		if store >= 0 {
			file = os.NewFile(uintptr(store), "store")
			defer file.Close()
		}
		if of := r.holders[h]; of != nil {
			r.kept(now, of, device, m, file)
		}
	})
}

// kept notes what a client has resident. Called by keep with mu held.
func (r *residence) kept(now time.Time, of *holding, device int, m protocol.Message, file *os.File) {
	d := &of.devices[device]
	if d.away {
		if m.Serial != 0 || m.Flags&^protocol.FlagMore != 0 {
			return // it is for the daemon before, or the connection before; what it has now, and its files, come next
		}
		r.adopt(of, device, file)
		if file != nil && m.Flags&protocol.FlagMore != 0 {
			return
		}
		d.away = false
		r.welcome(of, device)
	}
	if m.Flags&protocol.FlagAsOf != 0 && !r.policy.Latest(of.id, d.uuid, m.ID) {
		return
	}
	why := uint64(0)
	if m.Flags&protocol.FlagRefused != 0 {
		why = max(m.Extra, 1)
	}
	if m.Serial != 0 {
		d.failure = ""
	}
	if why == protocol.WhyStore { // it had no room before, perhaps
		d.wanted = max(d.wanted, d.noted.Taken)
		d.urgent = true
		if d.growing {
			d.files[hostcopy.Memory].Hurry()
		}
		r.grow(of, device)
	}
	if why != 0 && !(why == protocol.WhyStore && d.growing) {
		r.fail(of, device, whyNot(why))
	}
	d.said = now
	if m.Flags&protocol.FlagMoving != 0 {
		r.policy.Moving(now, of.id, d.uuid, m.ID, m.Value)
		return
	}
	if m.Serial != 0 && m.Flags&protocol.FlagRefused == 0 {
		r.policy.Holds(of.id, d.uuid, m.Extra)
	}
	r.policy.Kept(now, of.id, d.uuid, m.Serial, m.Value, why)
}

// most is the largest file that a client can need for a device.
func (r *residence) most(uuid gpu.UUID) uint64 {
	if d := r.daemon.inventory.device(uuid); d != nil {
		return d.Memory
	}
	return 0
}

// Lost implements tenant.ResidenceHandler.
func (r *residence) Lost(h *tenant.Holder) { r.lost(h) }

func (r *residence) lost(h holder) {
	r.post(func(time.Time) {
		if of := r.holders[h]; of != nil {
			r.policy.Lost(of.id)
			for i := range of.devices {
				of.devices[i].away = true
			}
		}
	})
}

// Left implements tenant.ResidenceHandler.
func (r *residence) Left(h *tenant.Holder) { r.left(h) }

func (r *residence) left(h holder) { r.post(func(time.Time) { r.bury(h) }) }

// bury gives away all that a client had. Called by keep with mu held.
func (r *residence) bury(h holder) {
	of := r.holders[h]
	if of == nil {
		return
	}
	delete(r.holders, h)
	r.policy.Leave(of.id)
	for _, d := range of.devices {
		for _, c := range d.files {
			if c != nil {
				r.daemon.work.Go(c.Close) // it waits for a Grow to end
			}
		}
	}
}

// buryOthers takes out the clients beside one that have died, and of which that has not been said yet: who begins once
// another has ended is not refused because of it. It says whether there were any. Called by keep with mu held.
func (r *residence) buryOthers(h holder) (some bool) {
	for other := range r.holders {
		if other != h && other.Ended() {
			r.bury(other)
			some = true
		}
	}
	return some
}

// read notes what the tree says of a directory.
func (r *residence) read(dir limits.Directory) {
	if !dir.Overcommit || !r.daemon.lgpus.admits(dir.ID) {
		return
	}
	r.queueMu.Lock()
	r.known[dir.ID] = true
	r.queueMu.Unlock()
	r.post(func(now time.Time) {
		l := r.managed(dir.ID)
		if !l.known {
			l.told, l.known = dir.Suspended, true
		}
		l.suspended = dir.Suspended
		r.policy.Suspend(now, dir.ID, l.suspended || l.evicted)
	})
}

// managed is an lgpu, which is noted if it is not yet. Called by keep with mu held.
func (r *residence) managed(id uint64) *managed {
	l := r.lgpus[id]
	if l == nil {
		l = &managed{unfit: map[gpu.UUID]bool{}}
		r.lgpus[id] = l
	}
	return l
}

// forget drops an lgpu that tenants do not know any more.
func (r *residence) forget(id uint64) {
	r.queueMu.Lock()
	known := r.known[id]
	delete(r.known, id)
	r.queueMu.Unlock()
	if !known {
		return
	}
	r.post(func(time.Time) {
		delete(r.lgpus, id)
		delete(r.first, id)
		r.policy.Remove(id)
	})
}

// keep does what there is to do until ctx ends.
func (r *residence) keep(ctx context.Context) {
	if err := os.Mkdir(r.daemon.config.Copies, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		r.daemon.log.Warn("there is no folder for what has left devices", "error", err)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			r.close()
			return
		case <-r.wake:
		case <-timer.C:
		}
		if next := r.step(time.Now()); !next.IsZero() {
			timer.Reset(max(time.Until(next), time.Millisecond))
		}
	}
}

// close gives the files up, which the clients have.
func (r *residence) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.holders {
		for _, d := range of.devices {
			for _, c := range d.files {
				if c != nil {
					c.Close()
				}
			}
		}
	}
	r.keeper.Close()
}

// step does what there is to do now, and says when there will be more.
func (r *residence) step(now time.Time) (next time.Time) {
	r.queueMu.Lock()
	todo := r.queue
	r.queue = nil
	r.queueMu.Unlock()
	if len(todo) == 0 && len(r.holders) == 0 {
		return time.Time{} // keep alone changes holders
	}
	devices := r.daemon.inventory.present()
	plain := r.plain(devices)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range devices {
		r.policy.SetDevice(d.UUID, r.daemon.tree.Budget(d.Identity()), plain[d.UUID])
	}
	for _, do := range todo {
		do(now)
	}
	if turns := r.daemon.tree.Turns(); turns != r.turns {
		r.turns = turns
		r.policy.SetTurns(turns.Least, turns.Most, turns.Latency)
	}
	r.compare(devices)
	r.open()
	if len(r.holders) == 0 {
		r.tell(devices)
		return time.Time{}
	}
	orders, next := r.policy.Settle(now, r.view(now, devices))
	r.open()
	r.deliver(orders)
	if late := r.watch(now); !late.IsZero() && (next.IsZero() || late.Before(next)) {
		next = late
	}
	r.tell(devices)
	if least := now.Add(residencePeriod); next.IsZero() || least.Before(next) {
		next = least
	}
	return next
}

// plain is what lgpus without memory.overcommit are charged for on each device.
func (r *residence) plain(devices []*device) map[gpu.UUID]uint64 {
	n := r.daemon
	plain, most := map[gpu.UUID]uint64{}, map[gpu.UUID]uint64{}
	for _, d := range devices {
		most[d.UUID] = d.Memory
	}
	for _, id := range n.lgpus.admitted() {
		if dir, ok := n.tree.ByID(id); !ok || dir.Overcommit || n.Releases.is(id) {
			continue
		}
		record, _ := n.lgpus.record(id)
		used, err := n.tenants.Usage(id)
		for i, uuid := range record.Devices {
			if err == nil && i < len(used.Devices) {
				plain[uuid] += min(used.Devices[i].Used, most[uuid])
			}
		}
	}
	return plain
}

// figureAfter is how long after a client's word the driver's figure is compared with it.
const figureAfter = 500 * time.Millisecond

// compare compares what clients say with what the driver says, where it tells processes apart: who says that memory has left
// which has not would have others get room that is not there. Called by keep with mu held.
func (r *residence) compare(devices []*device) {
	for _, of := range r.holders {
		for i := range of.devices {
			d := &of.devices[i]
			at := slices.IndexFunc(devices, func(o *device) bool { return o.UUID == d.uuid })
			if at < 0 {
				continue
			}
			s := r.daemon.inventory.sample(devices[at])
			p := slices.IndexFunc(s.Processes, func(p gpu.Process) bool { return p.PID == of.peer.PID })
			if s.Namespaced || p < 0 || s.at.Before(d.said.Add(figureAfter)) {
				continue
			}
			hides := r.policy.Seen(of.id, d.uuid, s.Processes[p].Memory)
			if hides && !d.hides {
				r.fail(of, i, fmt.Sprintf("the driver says that it has %s there, which is more than it says",
					units.FormatSize(s.Processes[p].Memory)))
			}
			d.hides = hides
		}
	}
}

// view is what the policy is told of lgpus. Called by keep with mu held.
func (r *residence) view(now time.Time, devices []*device) policy.View {
	gates := r.daemon.gates
	v := policy.View{Resting: gates.Resting, Idle: func(id uint64) time.Duration { return r.idle(now, id) }, Gang: r.gang}
	for _, id := range r.policy.LGPUs() {
		if r.policy.Asks(id) && r.policy.Memory(id) != policy.Here {
			gates.Wish(id) // it may wait for its memory before it comes to its gate
		}
	}
	var places []dispatch.Place
	for _, d := range devices {
		places = gates.Order(d.UUID, places)
	}
	for _, p := range places {
		v.Order = append(v.Order, slot.Place{ID: p.LGPU, Rank: p.Rank, Lead: p.Lead})
	}
	return v
}

// idle says for how long an lgpu has had no work, as its gates have it.
func (r *residence) idle(now time.Time, id uint64) time.Duration {
	if idle, ok := r.daemon.gates.Idle(id); ok {
		delete(r.first, id)
		return idle
	}
	if r.first[id].IsZero() {
		r.first[id] = now
	}
	return now.Sub(r.first[id])
}

// gang is the gang that an lgpu is in; empty for none.
func (r *residence) gang(id uint64) string {
	dir, ok := r.daemon.tree.ByID(id)
	if !ok {
		return ""
	}
	return gangOf(r.daemon.tree, dir)
}

// open tells the gates which lgpus have their memory where they can use it. Called by keep with mu held.
func (r *residence) open() {
	states := map[policy.Memory]schedule.Memory{policy.Here: schedule.Here, policy.Away: schedule.Away, policy.Coming: schedule.Coming}
	set := func(id uint64, m policy.Memory) {
		if r.memory[id] == m {
			return
		}
		if r.memory[id] = m; m == policy.Here {
			delete(r.memory, id)
		}
		r.daemon.gates.SetMemory(id, states[m])
	}
	ids := r.policy.LGPUs()
	for id := range r.memory {
		if !slices.Contains(ids, id) {
			set(id, policy.Here)
		}
	}
	for _, id := range ids {
		set(id, r.policy.Memory(id))
	}
}

// deliver notes and sends orders, and has files grow. Called by keep with mu held.
func (r *residence) deliver(orders []policy.Order) {
	taken := map[policy.Client]map[policy.Device]uint64{}
	for _, id := range r.policy.LGPUs() {
		for _, s := range r.policy.Seats(id) {
			if taken[s.Client] == nil {
				taken[s.Client] = map[policy.Device]uint64{}
			}
			taken[s.Client][s.Device] = s.Taken
		}
	}
	byClient := map[policy.Client]*holding{}
	for _, of := range r.holders {
		byClient[of.id] = of
		for i := range of.devices {
			d := &of.devices[i]
			if now := taken[of.id][d.uuid]; now != d.noted.Taken {
				r.note(of, i, tenant.Held{Taken: now, Stores: d.noted.Stores})
			}
		}
	}
	for _, o := range orders {
		of := byClient[o.Client]
		if of == nil {
			continue
		}
		device := slices.IndexFunc(of.devices, func(d held) bool { return d.uuid == o.Device })
		if device < 0 {
			continue
		}
		m := protocol.Message{Kind: protocol.Keep, Serial: o.Serial, Value: o.Level}
		if o.Refused {
			m.Flags = protocol.FlagRefused
			r.refuse(of, o.Device)
		}
		of.Send(device, m)
		if d := &of.devices[device]; !o.Refused && o.Level > d.wanted {
			d.wanted = o.Level
			r.grow(of, device)
		}
	}
}

// note writes down what a client has.
func (r *residence) note(of *holding, device int, h tenant.Held) {
	of.devices[device].noted = h
	if err := of.Note(device, h); err != nil {
		r.daemon.log.Warn("what a client has resident cannot be noted", "pid", of.peer.PID, "error", err)
	}
}

// watch reports clients that do not do what they were told, and says when to look again. Called by keep with mu held.
func (r *residence) watch(now time.Time) (next time.Time) {
	patience := r.daemon.config.Patience
	for _, of := range r.holders {
		for _, s := range r.policy.Seats(of.id.LGPU) {
			i := slices.IndexFunc(of.devices, func(d held) bool { return d.uuid == s.Device })
			if s.Client != of.id || s.Since.IsZero() || i < 0 || of.devices[i].silent.Equal(s.Since) {
				continue
			}
			if late := s.Since.Add(patience); now.Before(late) {
				if next.IsZero() || late.Before(next) {
					next = late
				}
				continue
			}
			of.devices[i].silent = s.Since
			r.fail(of, i, fmt.Sprintf("it has not answered for %v", patience))
			if r.daemon.config.Police != PoliceReport {
				r.daemon.work.Go(func() { r.daemon.stopper.end(of.peer.Process, func() {}) })
			}
		}
	}
	return next
}

// bit is 1 for true.
func bit(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}
