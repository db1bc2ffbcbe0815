package shmem

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
)

// mailboxes carry short messages between some PEs of the job, by the heap: the others take no part.
type mailboxes struct {
	job    *job
	exec   *executor
	routes *routes
	heap   *symmetricHeap
	ops    *operations

	// mu is held throughout calls that make or end teams, which wait for other PEs and are in the same order at all.
	mu sync.Mutex
	// +checklocks:mu
	count []uint64 // by PE: exchanges with it so far
}

// exchange gives each of some PEs what the others bring, at most mailPayload bytes, and returns when all are there. The
// caller holds mu.
func (m *mailboxes) exchange(op string, members []int, mine []byte) ([][]byte, error) {
	numbers := make([]uint64, len(members))
	for i, pe := range members {
		m.count[pe]++
		numbers[i] = m.count[pe]
	}
	mailbox := m.heap.reserved.mailbox
	return m.swap(op, members, numbers, mine, func(i int) uint64 { return mailbox + uint64(members[i])*2*mailBytes })
}

// exchangeIn is exchange among the members of a team, by the team's own mails: PEs without GPUs can be in collective
// operations of several teams at once. The caller holds t.blocking.
func (m *mailboxes) exchangeIn(op string, t *team, mine []byte) ([][]byte, error) {
	t.count++
	numbers := slices.Repeat([]uint64{t.count}, len(t.members))
	mails := m.heap.reserved.mails[t.id]
	return m.swap(op, t.members, numbers, mine, func(i int) uint64 { return mails + uint64(i)*2*mailBytes })
}

// swap is the exchange with each member that has a number. box is the offset in every heap of the two mails of a
// member.
//
// A PE may be one exchange ahead of another, never two: it ends one when it has the other's mail of it, which the other
// sends after the end of the one before. Hence two mails for each pair are enough.
//
// An exchange that fails is final for the job. Some members have its mails, others may yet take them for an answer, and
// the PEs would no longer agree on which call comes next.
func (m *mailboxes) swap(op string, members []int, numbers []uint64, mine []byte, box func(i int) uint64) (out [][]byte, err error) {
	defer func() {
		if err != nil && m.job.lost.Load() == nil && !m.job.closed.Load() {
			m.job.b.Abort(1, fmt.Sprintf("PE %d gave up: %v", m.job.rank, err))
		}
	}()
	me := slices.Index(members, m.job.rank)
	out = make([][]byte, len(members))
	for i, pe := range members {
		if i == me {
			out[i] = append(slices.Clone(mine), make([]byte, mailPayload-len(mine))...)
			continue
		}
		if err := m.send(m.heap.heapBase+box(me)+numbers[i]&1*mailBytes, mine, numbers[i], pe); err != nil {
			return nil, wrap(op, err)
		}
	}
	deadline := m.job.deadline()
	for i, pe := range members {
		if i == me {
			continue
		}
		if out[i], err = m.receive(op, m.heap.heapBase+box(i)+numbers[i]&1*mailBytes, numbers[i], pe, deadline); err != nil {
			return nil, err
		}
	}
	if m.job.over() { // the mails may be those of a PE that gave up
		return nil, m.job.lostError(op)
	}
	return out, nil
}

// receive waits for the mail of this number from a PE, which comes at an address of this PE's heap.
func (m *mailboxes) receive(op string, at, number uint64, pe int, deadline time.Time) ([]byte, error) {
	for wait := time.Microsecond; ; wait = min(2*wait, 200*time.Microsecond) {
		n, err := m.exec.readWord(at + mailPayload)
		if err != nil {
			return nil, wrap(op, err)
		}
		if n == number {
			break
		}
		if err := m.job.check(op); err != nil {
			return nil, err
		}
		if time.Now().After(deadline) {
			return nil, fault(layout.StatusTimeout, op, pe, "not there after %v", m.job.timeout)
		}
		time.Sleep(wait)
	}
	payload := make([]byte, mailPayload)
	return payload, wrap(op, m.exec.read(payload, at))
}

// send puts a payload, and then its number, at an address of a PE's heap.
func (m *mailboxes) send(at uint64, payload []byte, number uint64, pe int) error {
	if m.exec.plain() {
		to := m.routes.Ptr(at, pe)
		if to == 0 {
			return notMapped("mail", pe)
		}
		copy(cuda.Bytes(to, mailPayload), payload)
		storeWord(to+mailPayload, number)
		return nil
	}
	if base := m.routes.mapped[pe]; base != 0 {
		to := base + at - m.heap.heapBase
		if err := m.exec.write(to, payload); err != nil {
			return err
		}
		return m.exec.writeWord(to+mailPayload, number)
	}
	// From the box for mails of this PE to itself, which there are none of: other calls use the stage meanwhile.
	stage := m.heap.heapBase + m.heap.reserved.mailbox + uint64(m.job.rank)*2*mailBytes
	if err := m.exec.write(stage, payload); err != nil {
		return err
	}
	if err := m.ops.putTo("mail", 0, at, stage, uint64(len(payload)), pe, true); err != nil {
		return err
	}
	return m.ops.signalTo("mail", 0, at+mailPayload, number, layout.SignalSet, pe)
}
