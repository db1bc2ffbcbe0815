package shmem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
)

// TeamID names a team on a PE. It is the team's index in State.Teams, and the same on all its members.
type TeamID uint32

// Teams that every PE has from the start. Members of the last four differ from PE to PE.
const (
	World       = TeamID(layout.TeamWorld)
	Shared      = TeamID(layout.TeamShared)
	Node        = TeamID(layout.TeamNode)
	SameMyPE    = TeamID(layout.TeamSameMyPE)
	SameGPU     = TeamID(layout.TeamSameGPU)
	InvalidTeam = TeamID(layout.TeamInvalid)
)

const teamBytes = int(unsafe.Sizeof(layout.Team{}))

// team is a team that this PE is in.
type team struct {
	id      TeamID
	members []int // PEs by index in the team
	entry   layout.Team
	// host is the same team with an area and counters of its own, for the blocking barrier and sync: they may be called while
	// operations of the team are under way on streams, and must not take part in these.
	host layout.Team

	// blocking keeps the team's blocking calls apart: no others, which may be what another PE waits for meanwhile.
	blocking sync.Mutex
	// +checklocks:blocking
	stream uintptr // for blocking calls, from the first on
	// +checklocks:blocking
	count uint64 // exchanges among the members so far
	// +checklocks:blocking
	ended bool
}

// internal is the library's own part of the heap, at its beginning: the teams' synchronization areas, then mailboxes, by
// which PEs agree on new teams without those that are not in them, and a little memory for values that go through queues.
type internal struct {
	areas   []uint64 // offset by team
	sizes   []uint64
	hosts   []uint64 // offset by team of the area for blocking calls, behind the other
	mails   []uint64 // offset by team of [members][2][mailBytes], as mailbox, for collective operations of PEs without GPUs
	mailbox uint64   // [PEs][2][mailBytes]: from each PE, by parity
	stage   uint64   // stageBytes
	bytes   uint64
	bases   []uint64 // every PE's heap in its own process

	// +checklocks:mu
	mu    sync.Mutex // of calls that make or end teams, which are in the same order at all PEs
	count []uint64   // exchanges with each PE so far
}

// A mail is mailBytes: a payload, and in the last word its number, which is written last.
const (
	mailBytes    = 128
	mailPayload  = mailBytes - 8
	internalUnit = 256
)

// areaBytes is enough for a team of up to n PEs.
func areaBytes(n int) uint64 {
	most := 0
	for i := 1; i <= n; i++ {
		most = max(most, layout.TeamBytes(i))
	}
	return roundUp(uint64(most), internalUnit)
}

// planInternal lays the library's own part of the heap out, and returns its size. It needs nothing but what all PEs know.
func (p *PE) planInternal() uint64 {
	hosts, gpus := map[uint64]int{}, map[string]int{}
	node, gpu := 1, 1
	for _, q := range p.peers {
		hosts[q.Host]++
		node = max(node, hosts[q.Host])
		if q.HasGPU() {
			key := fmt.Sprint(q.Host, q.GPU)
			gpus[key]++
			gpu = max(gpu, gpus[key])
		}
	}
	in := &p.internal
	in.areas, in.sizes = make([]uint64, p.maxTeams), make([]uint64, p.maxTeams)
	in.hosts, in.mails = make([]uint64, p.maxTeams), make([]uint64, p.maxTeams)
	at := uint64(0)
	for id := range p.maxTeams {
		n := p.size
		switch uint32(id) {
		case layout.TeamShared, layout.TeamNode:
			n = node
		case layout.TeamSameMyPE:
			n = len(hosts)
		case layout.TeamSameGPU:
			n = gpu
		}
		in.areas[id] = at
		in.hosts[id] = at + areaBytes(n)
		in.sizes[id] = areaBytes(n) + roundUp(uint64(layout.LineOffset(n)), internalUnit) // a sync sends no lines
		if p.plain() {                                                                    // then all are
			in.mails[id] = at + in.sizes[id]
			in.sizes[id] += uint64(n) * 2 * mailBytes
		}
		at += in.sizes[id]
	}
	in.mailbox = at
	at += roundUp(uint64(p.size)*2*mailBytes, internalUnit)
	in.stage = at
	at += stageBytes
	in.bytes = at
	in.count = make([]uint64, p.size)
	return at
}

// openTeams makes the teams that exist from the start, in the image of the tables.
func (p *PE) openTeams(image []byte) error {
	all := make([]int, p.size)
	for pe := range all {
		all[pe] = pe
	}
	same := func(with func(pe int) bool) []int {
		return slices.DeleteFunc(slices.Clone(all), func(pe int) bool { return !with(pe) })
	}
	nodeOf := func(of int) []int { return same(func(pe int) bool { return p.peers[pe].Host == p.peers[of].Host }) }
	mine := slices.Index(nodeOf(p.rank), p.rank)
	for id, members := range [][]int{
		layout.TeamWorld:  all,
		layout.TeamShared: p.sharedOf(p.rank),
		layout.TeamNode:   nodeOf(p.rank),
		layout.TeamSameMyPE: same(func(pe int) bool {
			return slices.Index(nodeOf(pe), pe) == mine
		}),
		layout.TeamSameGPU: same(func(pe int) bool {
			return pe == p.rank || p.self.HasGPU() && p.peers[pe].HasGPU() && p.peers[pe].Host == p.self.Host && p.peers[pe].GPU == p.self.GPU
		}),
	} {
		t, list := p.newTeam(TeamID(id), members)
		if err := p.storeTeam(t, list, func(at uint64, b []byte) error {
			copy(image[at-p.tables.base:], b)
			return nil
		}); err != nil {
			return err
		}
		p.teams[id].Store(t)
	}
	return nil
}

// sharedOf are the PEs that a PE maps and that map it, if all of them do so among each other; else the PE alone.
func (p *PE) sharedOf(of int) []int {
	set := func(a int) []int {
		var out []int
		for b := range p.size {
			if a == b || p.direct(a, b) && p.direct(b, a) {
				out = append(out, b)
			}
		}
		return out
	}
	own := set(of)
	for _, pe := range own {
		if !slices.Equal(set(pe), own) {
			return []int{of}
		}
	}
	return own
}

// direct says whether one PE loads from and stores to another's heap.
func (p *PE) direct(from, to int) bool { return p.matrix[from][to]&1 != 0 }

// newTeam makes a team of these members, of which this PE is one. The list is what goes into its memory where its members
// are no arithmetic sequence.
func (p *PE) newTeam(id TeamID, members []int) (*team, []byte) {
	t := &team{id: id, members: members}
	e := &t.entry
	e.PEs, e.Index, e.Start, e.Stride = uint32(len(members)), uint32(slices.Index(members, p.rank)), uint32(members[0]), 1
	if len(members) > 1 {
		e.Stride = uint32(members[1] - members[0]) // wraps where the sequence falls: then there is a list
	}
	sequence := len(members) < 2 || members[1] > members[0]
	for i, pe := range members {
		sequence = sequence && (i == 0 || pe-members[i-1] == int(e.Stride))
	}
	var list []byte
	e.List = p.tables.lists + uint64(id)*uint64(p.size)*4
	if !sequence {
		e.Stride = 0
		for _, pe := range members {
			list = binary.LittleEndian.AppendUint32(list, uint32(pe))
		}
	}
	e.Sync = p.internal.areas[id]
	e.Counters = p.tables.counters + uint64(id)*layout.CounterBytes
	direct := true // the same on all members
	for _, a := range members {
		for _, b := range members {
			direct = direct && p.direct(a, b)
		}
	}
	if direct {
		e.Flags |= layout.TeamDirect
	}
	t.host = *e
	t.host.Sync = p.internal.hosts[id]
	t.host.Counters = e.Counters + uint64(p.maxTeams)*layout.CounterBytes
	return t, list
}

// storeTeam writes a team where kernels find it, its entry last.
func (p *PE) storeTeam(t *team, list []byte, write func(uint64, []byte) error) error {
	if len(list) > 0 {
		if err := write(t.entry.List, list); err != nil {
			return err
		}
	}
	return write(p.tables.teams+uint64(t.id)*uint64(teamBytes), unsafe.Slice((*byte)(unsafe.Pointer(&t.entry)), teamBytes))
}

// team finds a team by name.
func (p *PE) team(op string, id TeamID) (*team, error) {
	if uint32(id) < layout.MaxTeams {
		if t := p.teams[id].Load(); t != nil {
			return t, nil
		}
	}
	return nil, p.noTeam(op, id)
}

func (p *PE) noTeam(op string, id TeamID) error {
	return fault(layout.StatusArgument, op, -1, "there is no team %d here", int32(id))
}

// TeamMyPE is this PE's index in a team, -1 if there is no such team here.
func (p *PE) TeamMyPE(id TeamID) int {
	t, err := p.team("", id)
	if err != nil {
		return -1
	}
	return int(t.entry.Index)
}

// TeamPEs is how many members a team has, -1 if there is no such team here.
func (p *PE) TeamPEs(id TeamID) int {
	t, err := p.team("", id)
	if err != nil {
		return -1
	}
	return len(t.members)
}

// TeamMembers lists a team's PEs by their index, nil if there is no such team here.
func (p *PE) TeamMembers(id TeamID) []int {
	t, err := p.team("", id)
	if err != nil {
		return nil
	}
	return slices.Clone(t.members)
}

// TeamTranslate is the index in one team of the PE with an index in another, -1 if it is not in it.
func (p *PE) TeamTranslate(from TeamID, index int, to TeamID) int {
	a, err := p.team("", from)
	if err != nil || index < 0 || index >= len(a.members) {
		return -1
	}
	b, err := p.team("", to)
	if err != nil {
		return -1
	}
	return slices.Index(b.members, a.members[index])
}

// TeamSplitStrided makes a team of size members of a parent: those with the indices start, start+stride and so on. All members
// of the parent call it; those not in the new team get InvalidTeam and no error. Where no number is free for it, all get the
// error.
func (p *PE) TeamSplitStrided(parent TeamID, start, stride, size int) (TeamID, error) {
	const op = "team split strided"
	if err := p.check(op); err != nil {
		return InvalidTeam, err
	}
	t, err := p.team(op, parent)
	if err != nil {
		return InvalidTeam, err
	}
	n := len(t.members)
	last := start + (size-1)*stride
	if size < 1 || size > n || start < 0 || start >= n || stride == 0 && size > 1 || stride > n || stride < -n || last < 0 || last >= n {
		return InvalidTeam, fault(layout.StatusArgument, op, -1, "%d members from %d by %d of a team of %d", size, start, stride, n)
	}
	var members []int
	for i := range size {
		members = append(members, t.members[start+i*stride])
	}
	id, err := p.makeTeam(op, members)
	if err = p.agreed(op, t, err); err != nil {
		return InvalidTeam, errors.Join(err, p.dropTeams(id))
	}
	return id, nil
}

// TeamSplit2D arranges a parent's members in rows of xRange, the last perhaps shorter, and makes of each row a team (x) and of
// each column a team (y). All members of the parent call it, and get both or an error and neither.
func (p *PE) TeamSplit2D(parent TeamID, xRange int) (x, y TeamID, err error) {
	const op = "team split 2d"
	if err := p.check(op); err != nil {
		return InvalidTeam, InvalidTeam, err
	}
	t, err := p.team(op, parent)
	if err != nil {
		return InvalidTeam, InvalidTeam, err
	}
	if xRange < 1 {
		return InvalidTeam, InvalidTeam, fault(layout.StatusArgument, op, -1, "rows of %d members", xRange)
	}
	mine := int(t.entry.Index)
	var row, column []int
	for i, pe := range t.members {
		if i/xRange == mine/xRange {
			row = append(row, pe)
		}
		if i%xRange == mine%xRange {
			column = append(column, pe)
		}
	}
	if x, err = p.makeTeam(op, row); err == nil || Status(err) == layout.StatusMemory {
		var second error
		y, second = p.makeTeam(op, column) // also without a row: others of the column may have theirs
		err = errors.Join(err, second)
	}
	if err = p.agreed(op, t, err); err != nil {
		return InvalidTeam, InvalidTeam, errors.Join(err, p.dropTeams(x, y))
	}
	return x, y, nil
}

// agreed makes the want of a team's number at one of a parent's members an error of all, after which each gives back what it
// has made. Other errors are such that the members do not meet again.
func (p *PE) agreed(op string, parent *team, failure error) error {
	if failure != nil && Status(failure) != layout.StatusMemory {
		return failure
	}
	in := &p.internal
	in.mu.Lock()
	defer in.mu.Unlock()
	all, err := p.exchange(op, parent.members, binary.LittleEndian.AppendUint64(nil, uint64(Status(failure))))
	if err != nil {
		return err
	}
	for i, b := range all {
		if failure == nil && binary.LittleEndian.Uint64(b) != uint64(layout.StatusOK) {
			failure = fault(layout.StatusMemory, op, parent.members[i], "no number is free for its team: each PE can be in %d teams (LSHMEM_MAX_TEAMS)", p.maxTeams)
		}
	}
	return failure
}

// dropTeams ends the teams that a split that failed has made. All their members do so.
func (p *PE) dropTeams(ids ...TeamID) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, p.TeamDestroy(id))
	}
	return errors.Join(errs...)
}

// TeamCreate makes a team of any PEs of the job, in the given order. All its members call it with the same list. Others may
// call it too: they get InvalidTeam and no error, at once.
func (p *PE) TeamCreate(pes []int) (TeamID, error) {
	const op = "team create"
	if err := p.check(op); err != nil {
		return InvalidTeam, err
	}
	seen := make([]bool, p.size)
	for _, pe := range pes {
		if pe < 0 || pe >= p.size || seen[pe] {
			return InvalidTeam, fault(layout.StatusArgument, op, pe, "it does not exist, or is there twice")
		}
		seen[pe] = true
	}
	if len(pes) == 0 {
		return InvalidTeam, fault(layout.StatusArgument, op, -1, "a team without members")
	}
	return p.makeTeam(op, slices.Clone(pes))
}

// makeTeam agrees with the members on a number that is free at all of them.
func (p *PE) makeTeam(op string, members []int) (TeamID, error) {
	if !slices.Contains(members, p.rank) {
		return InvalidTeam, nil
	}
	in := &p.internal
	in.mu.Lock()
	defer in.mu.Unlock()
	free := uint64(0)
	for id := int(layout.TeamFirstOwned); id < p.maxTeams; id++ {
		if p.teams[id].Load() == nil && in.hosts[id]-in.areas[id] >= uint64(layout.TeamBytes(len(members))) {
			free |= 1 << id
		}
	}
	h := fnv.New64a()
	for _, pe := range members {
		fmt.Fprintln(h, pe)
	}
	mine := binary.LittleEndian.AppendUint64(nil, free)
	mine = binary.LittleEndian.AppendUint64(mine, h.Sum64())
	all, err := p.exchange(op, members, mine)
	if err != nil {
		return InvalidTeam, err
	}
	for i, b := range all {
		if binary.LittleEndian.Uint64(b[8:]) != h.Sum64() {
			return InvalidTeam, fault(layout.StatusArgument, op, members[i], "it makes a team of other members, or ends one")
		}
		free &= binary.LittleEndian.Uint64(b)
	}
	if free == 0 {
		return InvalidTeam, fault(layout.StatusMemory, op, -1, "no team's number is free at all members: each can be in %d teams (LSHMEM_MAX_TEAMS)", p.maxTeams)
	}
	id := TeamID(bits.TrailingZeros64(free))
	t, list := p.newTeam(id, members)
	if err := p.storeTeam(t, list, p.write); err != nil {
		return InvalidTeam, wrap(op, err)
	}
	p.teams[id].Store(t)
	return id, nil
}

// TeamDestroy ends a team that a program made; its operations must be done. All its members call it. InvalidTeam is nothing.
func (p *PE) TeamDestroy(id TeamID) error {
	const op = "team destroy"
	if id == InvalidTeam {
		return nil
	}
	if err := p.check(op); err != nil {
		return err
	}
	t, err := p.team(op, id)
	if err != nil {
		return err
	}
	if uint32(id) < layout.TeamFirstOwned {
		return fault(layout.StatusArgument, op, -1, "team %d exists from the start", id)
	}
	in := &p.internal
	in.mu.Lock()
	defer in.mu.Unlock()
	mine := binary.LittleEndian.AppendUint64(nil, 0)
	mine = binary.LittleEndian.AppendUint64(mine, ^uint64(id))
	all, err := p.exchange(op, t.members, mine)
	if err != nil {
		return err
	}
	for i, b := range all {
		if !slices.Equal(b[:16], mine) {
			return fault(layout.StatusArgument, op, t.members[i], "it makes a team, or ends another")
		}
	}
	// All members are here, so nobody writes to the area any more; and nobody will before this PE has told that it is free.
	if err := p.write(p.tables.teams+uint64(id)*uint64(teamBytes), make([]byte, teamBytes)); err != nil {
		return wrap(op, err)
	}
	for _, at := range []uint64{t.entry.Counters, t.host.Counters} {
		if err := p.write(at, make([]byte, layout.CounterBytes)); err != nil {
			return wrap(op, err)
		}
	}
	if err := p.zero(p.heapBase+in.areas[id], in.sizes[id]); err != nil {
		return wrap(op, err)
	}
	p.teams[id].Store(nil)
	return wrap(op, p.end(t))
}

// exchange gives each of some PEs what the others bring, at most mailPayload bytes, and returns when all are there. The caller
// holds internal.mu.
func (p *PE) exchange(op string, members []int, mine []byte) ([][]byte, error) {
	in := &p.internal
	numbers := make([]uint64, len(members))
	for i, pe := range members {
		in.count[pe]++
		numbers[i] = in.count[pe]
	}
	return p.swap(op, members, numbers, mine, func(i int) uint64 { return in.mailbox + uint64(members[i])*2*mailBytes })
}

// exchangeIn is exchange among the members of a team, by mails of its own: PEs without GPUs can be in collective operations of
// several teams at once. The caller holds t.blocking.
func (p *PE) exchangeIn(op string, t *team, mine []byte) ([][]byte, error) {
	t.count++
	mails := p.internal.mails[t.id]
	return p.swap(op, t.members, slices.Repeat([]uint64{t.count}, len(t.members)), mine, func(i int) uint64 { return mails + uint64(i)*2*mailBytes })
}

// swap is the exchange with each member that has a number. box is the offset in every heap of the two mails of a member.
//
// A PE may be one exchange ahead of another, never two: it ends one when it has the other's mail of it, which the other sends
// after the end of the one before. Hence two places for each pair are enough.
//
// One that fails is final for the job. Mails of it are at some members, others may yet take them for an answer, and who counts
// it and who does not would not agree any more on which call comes next.
func (p *PE) swap(op string, members []int, numbers []uint64, mine []byte, box func(i int) uint64) (out [][]byte, err error) {
	defer func() {
		if err != nil && p.lost.Load() == nil && !p.closed.Load() {
			p.b.Abort(1, fmt.Sprintf("PE %d gave up: %v", p.rank, err))
		}
	}()
	me := slices.Index(members, p.rank)
	out = make([][]byte, len(members))
	for i, pe := range members {
		if i == me {
			out[i] = append(slices.Clone(mine), make([]byte, mailPayload-len(mine))...)
			continue
		}
		if err := p.mail(p.heapBase+box(me)+numbers[i]&1*mailBytes, mine, numbers[i], pe); err != nil {
			return nil, wrap(op, err)
		}
	}
	deadline := p.deadline()
	for i, pe := range members {
		if i == me {
			continue
		}
		slot := p.heapBase + box(i) + numbers[i]&1*mailBytes
		for wait := time.Microsecond; ; wait = min(2*wait, 200*time.Microsecond) {
			n, err := p.readWord(slot + mailPayload)
			if err != nil {
				return nil, wrap(op, err)
			}
			if n == numbers[i] {
				break
			}
			if err := p.check(op); err != nil {
				return nil, err
			}
			if time.Now().After(deadline) {
				return nil, fault(layout.StatusTimeout, op, pe, "not there after %v", p.timeout)
			}
			time.Sleep(wait)
		}
		out[i] = make([]byte, mailPayload)
		if err := p.read(out[i], slot); err != nil {
			return nil, wrap(op, err)
		}
	}
	select {
	case <-p.b.Lost(): // which watch may not have seen yet: the mails may be of one who gave up
		return nil, p.lostError(op)
	default:
		return out, nil
	}
}

// mail puts a payload, and then its number, into a PE's heap.
func (p *PE) mail(slot uint64, payload []byte, number uint64, pe int) error {
	if p.plain() {
		to := p.Ptr(slot, pe)
		if to == 0 {
			return p.notMapped("mail", pe)
		}
		copy(cuda.Bytes(to, mailPayload), payload)
		storeWord(to+mailPayload, number)
		return nil
	}
	if p.mapped[pe] != 0 {
		if err := p.write(p.mapped[pe]+slot-p.heapBase, payload); err != nil {
			return err
		}
		return p.writeWord(p.mapped[pe]+slot-p.heapBase+mailPayload, number)
	}
	// From the place for mails of this PE to itself, which there are none of: other calls use the stage meanwhile.
	stage := p.heapBase + p.internal.mailbox + uint64(p.rank)*2*mailBytes
	if err := p.write(stage, payload); err != nil {
		return err
	}
	if err := p.putTo("mail", 0, slot, stage, uint64(len(payload)), pe, true); err != nil {
		return err
	}
	return p.signalTo("mail", 0, slot+mailPayload, number, layout.SignalSet, pe)
}

// plain says whether the PE's own processor does its operations: there is no GPU, so that the heap lies in host memory.
func (p *PE) plain() bool { return p.ctx == nil }
