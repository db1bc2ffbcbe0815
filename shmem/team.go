package shmem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
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
	// host is the same team with an area and counters of its own, for the blocking barrier and sync: they may be called
	// while operations of the team are in progress on streams, and must not take part in these.
	host layout.Team

	// blocking is held throughout the team's blocking calls, and by no other call: another PE may be waiting for that.
	blocking sync.Mutex
	// +checklocks:blocking
	stream uintptr // for blocking calls, from the first on
	// +checklocks:blocking
	count uint64 // exchanges among the members so far
	// +checklocks:blocking
	ended bool
}

// teams are the teams that this PE is in.
type teams struct {
	job      *job
	exec     *executor
	routes   *routes
	heap     *symmetricHeap
	tables   *tables
	mail     *mailboxes // mail.mu is held by calls that make and end teams
	maxTeams int

	byID [layout.MaxTeams]atomic.Pointer[team]
}

// begin makes a team's stream if this is the first call to need it, and waits for what the PE's own stream still has to
// send: a collective call tells others that all of that is there. The caller holds blocking.
func (t *team) begin(op string, x *executor) error {
	if err := x.ctx.Do(func() (err error) {
		if t.stream == 0 {
			t.stream, err = x.d.StreamCreate(cuda.StreamNonBlocking)
		}
		return err
	}); err != nil {
		return wrap(op, err)
	}
	return wrap(op, x.drain())
}

// end ends a team's blocking calls: it waits for one in progress, and later ones fail.
func (t *team) end(x *executor) error {
	t.blocking.Lock()
	defer t.blocking.Unlock()
	t.ended = true
	if t.stream == 0 {
		return nil
	}
	stream := t.stream
	t.stream = 0
	return x.ctx.Do(func() error { return x.d.StreamDestroy(stream) })
}

// openTeams makes the teams that exist from the start, in the image of the tables.
func (s *teams) openTeams(image []byte) error {
	all := make([]int, s.job.size)
	for pe := range all {
		all[pe] = pe
	}
	same := func(with func(pe int) bool) []int {
		return slices.DeleteFunc(slices.Clone(all), func(pe int) bool { return !with(pe) })
	}
	nodeOf := func(of int) []int {
		return same(func(pe int) bool { return s.job.peers[pe].Host == s.job.peers[of].Host })
	}
	mine := slices.Index(nodeOf(s.job.rank), s.job.rank)
	for id, members := range [][]int{
		layout.TeamWorld:  all,
		layout.TeamShared: s.sharedOf(s.job.rank),
		layout.TeamNode:   nodeOf(s.job.rank),
		layout.TeamSameMyPE: same(func(pe int) bool {
			return slices.Index(nodeOf(pe), pe) == mine
		}),
		layout.TeamSameGPU: same(func(pe int) bool {
			return pe == s.job.rank || s.job.self.SameGPU(s.job.peers[pe])
		}),
	} {
		t, list := s.newTeam(TeamID(id), members)
		if err := s.storeTeam(t, list, func(at uint64, b []byte) error {
			copy(image[at-s.tables.base:], b)
			return nil
		}); err != nil {
			return err
		}
		s.byID[id].Store(t)
	}
	return nil
}

// sharedOf are the PEs that a PE maps and that map it, if all of them also map each other; else the PE alone.
func (s *teams) sharedOf(of int) []int {
	set := func(a int) []int {
		var out []int
		for b := range s.job.size {
			if a == b || s.routes.direct(a, b) && s.routes.direct(b, a) {
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

// newTeam makes a team of these members, of which this PE is one. The list is what goes into its memory where its
// members are no arithmetic sequence.
func (s *teams) newTeam(id TeamID, members []int) (*team, []byte) {
	t := &team{id: id, members: members}
	e := &t.entry
	e.PEs, e.Index, e.Start, e.Stride = uint32(len(members)), uint32(slices.Index(members, s.job.rank)), uint32(members[0]), 1
	if len(members) > 1 {
		e.Stride = uint32(members[1] - members[0]) // wraps where the sequence falls: then there is a list
	}
	sequence := len(members) < 2 || members[1] > members[0]
	for i, pe := range members {
		sequence = sequence && (i == 0 || pe-members[i-1] == int(e.Stride))
	}
	var list []byte
	e.List = s.tables.lists + uint64(id)*uint64(s.job.size)*4
	if !sequence {
		e.Stride = 0
		for _, pe := range members {
			list = binary.LittleEndian.AppendUint32(list, uint32(pe))
		}
	}
	e.Sync = s.heap.reserved.areas[id]
	e.Counters = s.tables.counters + uint64(id)*layout.CounterBytes
	direct := true // the same on all members
	for _, a := range members {
		for _, b := range members {
			direct = direct && s.routes.direct(a, b)
		}
	}
	if direct {
		e.Flags |= layout.TeamDirect
	}
	t.host = *e
	t.host.Sync = s.heap.reserved.hosts[id]
	t.host.Counters = e.Counters + uint64(s.maxTeams)*layout.CounterBytes
	return t, list
}

// storeTeam writes a team where kernels find it, its entry last.
func (s *teams) storeTeam(t *team, list []byte, write func(uint64, []byte) error) error {
	if len(list) > 0 {
		if err := write(t.entry.List, list); err != nil {
			return err
		}
	}
	return write(s.tables.teams+uint64(t.id)*uint64(teamBytes), unsafe.Slice((*byte)(unsafe.Pointer(&t.entry)), teamBytes))
}

// team finds a team by name.
func (s *teams) team(op string, id TeamID) (*team, error) {
	if uint32(id) < layout.MaxTeams {
		if t := s.byID[id].Load(); t != nil {
			return t, nil
		}
	}
	return nil, s.noTeam(op, id)
}

func (s *teams) noTeam(op string, id TeamID) error {
	return fault(layout.StatusArgument, op, -1, "there is no team %d here", int32(id))
}

// ended is the error of a call that waited for another call of its team until the team ended.
func (s *teams) ended(op string, t *team) error {
	if err := s.job.check(op); err != nil {
		return err
	}
	return s.noTeam(op, t.id)
}

// endAll ends all teams' blocking calls.
func (s *teams) endAll() error {
	var errs []error
	for id := range s.byID {
		if t := s.byID[id].Load(); t != nil {
			errs = append(errs, t.end(s.exec))
		}
	}
	return errors.Join(errs...)
}

// infos describes all teams.
func (s *teams) infos() (list []TeamInfo) {
	for id := range s.byID {
		if t := s.byID[id].Load(); t != nil {
			list = append(list, TeamInfo{TeamID(id), slices.Clone(t.members), t.entry.Flags&layout.TeamDirect != 0})
		}
	}
	return list
}

// TeamMyPE is this PE's index in a team, -1 if there is no such team here.
func (s *teams) TeamMyPE(id TeamID) int {
	t, err := s.team("", id)
	if err != nil {
		return -1
	}
	return int(t.entry.Index)
}

// TeamPEs is how many members a team has, -1 if there is no such team here.
func (s *teams) TeamPEs(id TeamID) int {
	t, err := s.team("", id)
	if err != nil {
		return -1
	}
	return len(t.members)
}

// TeamMembers lists a team's PEs by their index, nil if there is no such team here.
func (s *teams) TeamMembers(id TeamID) []int {
	t, err := s.team("", id)
	if err != nil {
		return nil
	}
	return slices.Clone(t.members)
}

// TeamTranslate is the index in the team to of the PE that has an index in the team from, -1 if it is not a member.
func (s *teams) TeamTranslate(from TeamID, index int, to TeamID) int {
	a, err := s.team("", from)
	if err != nil || index < 0 || index >= len(a.members) {
		return -1
	}
	b, err := s.team("", to)
	if err != nil {
		return -1
	}
	return slices.Index(b.members, a.members[index])
}

// TeamSplitStrided makes a team of size members of a parent: those with the indices start, start+stride and so on. All
// members of the parent call it; those not in the new team get InvalidTeam and no error. Where no number is free for
// the new team, all get the error.
func (s *teams) TeamSplitStrided(parent TeamID, start, stride, size int) (TeamID, error) {
	const op = "team split strided"
	if err := s.job.check(op); err != nil {
		return InvalidTeam, err
	}
	t, err := s.team(op, parent)
	if err != nil {
		return InvalidTeam, err
	}
	n := len(t.members)
	last := start + (size-1)*stride
	if size < 1 || size > n || start < 0 || start >= n || stride == 0 && size > 1 || stride > n || stride < -n ||
		last < 0 || last >= n {
		return InvalidTeam, fault(layout.StatusArgument, op, -1, "%d members from %d by %d of a team of %d", size, start, stride, n)
	}
	var members []int
	for i := range size {
		members = append(members, t.members[start+i*stride])
	}
	id, err := s.makeTeam(op, members)
	if err = s.agreed(op, t, err); err != nil {
		return InvalidTeam, errors.Join(err, s.dropTeams(id))
	}
	return id, nil
}

// TeamSplit2D arranges a parent's members in rows of xRange, the last perhaps shorter, and makes a team of each row (x)
// and of each column (y). All members of the parent call it, and get both, or an error and neither.
func (s *teams) TeamSplit2D(parent TeamID, xRange int) (x, y TeamID, err error) {
	const op = "team split 2d"
	if err := s.job.check(op); err != nil {
		return InvalidTeam, InvalidTeam, err
	}
	t, err := s.team(op, parent)
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
	if x, err = s.makeTeam(op, row); err == nil || Status(err) == layout.StatusMemory {
		var second error
		y, second = s.makeTeam(op, column) // also without a row: others of the column may have theirs
		err = errors.Join(err, second)
	}
	if err = s.agreed(op, t, err); err != nil {
		return InvalidTeam, InvalidTeam, errors.Join(err, s.dropTeams(x, y))
	}
	return x, y, nil
}

// agreed tells all of a parent's members if one of them has no number free for a team: then all have an error, and each
// ends what it has made. After any other error the members cannot exchange anything more.
func (s *teams) agreed(op string, parent *team, failure error) error {
	if failure != nil && Status(failure) != layout.StatusMemory {
		return failure
	}
	s.mail.mu.Lock()
	defer s.mail.mu.Unlock()
	all, err := s.mail.exchange(op, parent.members, binary.LittleEndian.AppendUint64(nil, uint64(Status(failure))))
	if err != nil {
		return err
	}
	for i, b := range all {
		if failure == nil && binary.LittleEndian.Uint64(b) != uint64(layout.StatusOK) {
			failure = fault(layout.StatusMemory, op, parent.members[i],
				"no number is free for its team: each PE can be in %d teams (LSHMEM_MAX_TEAMS)", s.maxTeams)
		}
	}
	return failure
}

// dropTeams ends the teams that a failed split has made. All their members do so.
func (s *teams) dropTeams(ids ...TeamID) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, s.TeamDestroy(id))
	}
	return errors.Join(errs...)
}

// TeamCreate makes a team of any PEs of the job, in the given order. All its members call it with the same list. Others
// may call it too: they get InvalidTeam and no error, at once.
func (s *teams) TeamCreate(pes []int) (TeamID, error) {
	const op = "team create"
	if err := s.job.check(op); err != nil {
		return InvalidTeam, err
	}
	seen := make([]bool, s.job.size)
	for _, pe := range pes {
		if pe < 0 || pe >= s.job.size || seen[pe] {
			return InvalidTeam, fault(layout.StatusArgument, op, pe, "it does not exist, or is there twice")
		}
		seen[pe] = true
	}
	if len(pes) == 0 {
		return InvalidTeam, fault(layout.StatusArgument, op, -1, "a team without members")
	}
	return s.makeTeam(op, slices.Clone(pes))
}

// makeTeam agrees with the members on a number that is free at all of them.
func (s *teams) makeTeam(op string, members []int) (TeamID, error) {
	if !slices.Contains(members, s.job.rank) {
		return InvalidTeam, nil
	}
	s.mail.mu.Lock()
	defer s.mail.mu.Unlock()
	r := &s.heap.reserved
	free := uint64(0)
	for id := int(layout.TeamFirstOwned); id < s.maxTeams; id++ {
		if s.byID[id].Load() == nil && r.hosts[id]-r.areas[id] >= uint64(layout.TeamBytes(len(members))) {
			free |= 1 << id
		}
	}
	h := fnv.New64a()
	for _, pe := range members {
		fmt.Fprintln(h, pe)
	}
	mine := binary.LittleEndian.AppendUint64(nil, free)
	mine = binary.LittleEndian.AppendUint64(mine, h.Sum64())
	all, err := s.mail.exchange(op, members, mine)
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
		return InvalidTeam, fault(layout.StatusMemory, op, -1,
			"no team's number is free at all members: each can be in %d teams (LSHMEM_MAX_TEAMS)", s.maxTeams)
	}
	id := TeamID(bits.TrailingZeros64(free))
	t, list := s.newTeam(id, members)
	if err := s.storeTeam(t, list, s.exec.write); err != nil {
		return InvalidTeam, wrap(op, err)
	}
	s.byID[id].Store(t)
	return id, nil
}

// TeamDestroy ends a team that the program made; its operations must be done. All its members call it. For InvalidTeam
// it does nothing.
func (s *teams) TeamDestroy(id TeamID) error {
	const op = "team destroy"
	if id == InvalidTeam {
		return nil
	}
	if err := s.job.check(op); err != nil {
		return err
	}
	t, err := s.team(op, id)
	if err != nil {
		return err
	}
	if uint32(id) < layout.TeamFirstOwned {
		return fault(layout.StatusArgument, op, -1, "team %d exists from the start", id)
	}
	s.mail.mu.Lock()
	defer s.mail.mu.Unlock()
	mine := binary.LittleEndian.AppendUint64(nil, 0)
	mine = binary.LittleEndian.AppendUint64(mine, ^uint64(id))
	all, err := s.mail.exchange(op, t.members, mine)
	if err != nil {
		return err
	}
	for i, b := range all {
		if !slices.Equal(b[:16], mine) {
			return fault(layout.StatusArgument, op, t.members[i], "it makes a team, or ends another")
		}
	}
	// All members are here, so none writes to the area any more, nor will before this PE has told that it is free.
	if err := s.exec.write(s.tables.teams+uint64(id)*uint64(teamBytes), make([]byte, teamBytes)); err != nil {
		return wrap(op, err)
	}
	for _, at := range []uint64{t.entry.Counters, t.host.Counters} {
		if err := s.exec.write(at, make([]byte, layout.CounterBytes)); err != nil {
			return wrap(op, err)
		}
	}
	if err := s.exec.zero(s.heap.heapBase+s.heap.reserved.areas[id], s.heap.reserved.sizes[id]); err != nil {
		return wrap(op, err)
	}
	s.byID[id].Store(nil)
	return wrap(op, t.end(s.exec))
}
