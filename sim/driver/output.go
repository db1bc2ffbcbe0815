package driver

import (
	"slices"
	"sync"

	"github.com/lgpu/lgpu/sim/wire"
)

// output is what the kernels of a context have printed and the program has not been given yet. Of more than limit bytes
// the oldest records are lost, as in the real driver's buffer (CU_LIMIT_PRINTF_FIFO_SIZE).
type output struct {
	p *Process

	mu      sync.Mutex // engines print without Driver.mu; taken after it
	limit   uint64
	records [][]byte
	size    uint64
}

// defaultOutput is the size of the buffer that the real driver has.
const defaultOutput = 1 << 20

// print adds a record.
func (o *output) print(record []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.records = append(o.records, record)
	o.size += uint64(len(record))
	o.p.unread.Add(int64(1))
	for lost := o.limit; o.size > lost; {
		o.size -= uint64(len(o.records[0]))
		o.records[0] = nil
		o.records = o.records[1:]
		o.p.unread.Add(-1)
	}
}

// flush empties the buffer and returns what was in it.
func (o *output) flush() [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.records
	o.records, o.size = nil, 0
	return all
}

// resize changes the limit.
func (o *output) resize(limit uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limit = limit
}

// flush gives the program what its kernels have printed, before the call that it is made in returns. The caller has no
// lock. Threads that flush at the same time wait for each other, so that none returns before what it waited for is out.
func (p *Process) flush(call *wire.Call) {
	if p.unread.Load() == 0 {
		return
	}
	p.printing.Lock()
	defer p.printing.Unlock()
	p.d.mu.Lock()
	records := p.spilled
	p.spilled = nil
	for _, c := range p.contexts {
		records = append(records, c.output.flush()...)
	}
	p.d.mu.Unlock()
	if err := call.Print(slices.Concat(records...)); err != nil {
		p.d.log.Debug("print", "process", p.pid, "error", err)
	}
	p.unread.Add(-int64(len(records)))
}
