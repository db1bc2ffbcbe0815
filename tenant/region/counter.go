package region

import (
	"sync/atomic"
	"unsafe"
)

// sequenceBits is the width of the sequence number in Counter.Last.
const sequenceBits = 48

// patience is how often an atomic change is tried against others that are quicker. Honest ones leave a gap long before;
// a process that writes without end keeps only its own lgpu's clients from being settled.
const patience = 1 << 10

// account is a counter with the ledgers of all clients against it. Every word is shared with processes that may write
// anything there.
type account struct {
	counter *Counter
	ledger  *[MaxClients]Client // whose field at offset is the ledger
	offset  uintptr
}

func (u *Usage) hostAccount() account {
	return account{&u.Host, &u.Client, unsafe.Offsetof(Client{}.Host)}
}

func (u *Usage) deviceAccount(device int) account {
	offset := unsafe.Offsetof(Client{}.Device) + uintptr(device)*unsafe.Sizeof(Ledger{})
	return account{&u.Device[device].Memory, &u.Client, offset}
}

func (a account) of(client int) *Ledger {
	return (*Ledger)(unsafe.Add(unsafe.Pointer(&a.ledger[client]), a.offset))
}

func identity(client int, sequence uint64) uint64 {
	return uint64(client)<<sequenceBits | sequence&(1<<sequenceBits-1)
}

// held is what a client is charged for, by its ledger. It is exact for a dead one, and a snapshot of a live one.
func (a account) held(client int) int64 {
	l := a.of(client)
	begun := atomic.LoadUint64(&l.Begun)
	record := &l.Record[begun&1]
	// In this order: an operation leaves the counter only after it is noted.
	applied := atomic.LoadUint64(&a.counter.Last) == identity(client, begun)
	applied = applied || atomic.LoadUint64(&l.Applied) >= begun
	held := atomic.LoadInt64(&record.Before)
	if applied {
		held += atomic.LoadInt64(&record.Delta)
	}
	return held
}

// settle gives back what a dead client holds beyond keep. False: a tenant never stops writing.
func (a account) settle(client int, keep uint64) bool {
	held := a.held(client)
	return held <= 0 || uint64(held) <= keep || a.change(client, held, int64(keep)-held)
}

// change adds delta to the held bytes of a client that is not live, as an operation of that client: so an authority that dies
// meanwhile leaves what the next one can do again, exactly. False: a tenant never stops writing.
func (a account) change(client int, held, delta int64) bool {
	l := a.of(client)
	sequence := atomic.LoadUint64(&l.Begun) + 1
	record := &l.Record[sequence&1]
	atomic.StoreInt64(&record.Before, held)
	atomic.StoreInt64(&record.Delta, delta)
	atomic.StoreUint64(&l.Begun, sequence)
	bytes, last := atomic.LoadUint64(&a.counter.Bytes), atomic.LoadUint64(&a.counter.Last)
	for range patience {
		if !a.note(last) {
			return false
		}
		next := bytes + uint64(delta)
		if delta < 0 {
			next = bytes - min(bytes, uint64(-delta)) // less than it is charged: a tenant has written over the counter
		}
		var swapped bool
		if swapped, bytes, last = swap(a.counter, bytes, last, next, identity(client, sequence)); swapped {
			return true
		}
	}
	return false
}

// note records that operation last took effect, before it is replaced.
func (a account) note(last uint64) bool {
	client, sequence := last>>sequenceBits, last&(1<<sequenceBits-1)
	if sequence == 0 || client >= MaxClients {
		return true
	}
	applied := &a.of(int(client)).Applied
	for range patience {
		seen := atomic.LoadUint64(applied)
		if seen >= sequence || atomic.CompareAndSwapUint64(applied, seen, sequence) {
			return true
		}
	}
	return false
}

// swap replaces both words of c by one atomic operation, if they are bytes and last; if not, it returns what they are.
//
//go:noescape
func swap(c *Counter, bytes, last, newBytes, newLast uint64) (swapped bool, nowBytes, nowLast uint64)
