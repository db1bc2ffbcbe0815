package schedule

import (
	"cmp"
	"slices"
)

// second is how long a gang's seat without work is still opened with the others, and how long delivered time counts.
const second int64 = 1e9

// waitedMax bounds the wait during which credit is not cut, and with it how far a cap can be exceeded after it.
const waitedMax int64 = 200e6

// lateMax bounds the time after which Busy may come on and still be charged in full: what a process claims that it used
// while it did not count is on the accounts of its groups, too.
const lateMax = second

// node is an lgpu or a group.
type node struct {
	id       ID
	up       *node // nil: top
	p        Params
	children int
	accounts []*account // by device; kept while the node exists, so that coming back does not clear a debt
	devices  []Device   // of accounts
	seats    []*seat    // by device
}

func (n *node) seat(dev Device) *seat {
	for _, x := range n.seats {
		if x.dev.id == dev {
			return x
		}
	}
	return nil
}

// below says that n is m or below it.
func (n *node) below(m *node) bool {
	for ; n != nil; n = n.up {
		if n == m {
			return true
		}
	}
	return false
}

func (n *node) mayUse(dev Device) bool {
	return n.p.Devices == nil || slices.Contains(n.p.Devices, dev)
}

// device is one device.
type device struct {
	id        Device
	options   Options
	top       *account
	seats     []*seat // by ID
	holder    *job    // has the device, or keeps it while the rest of its gang's devices is drained
	next      *job    // gets it after holder
	free      *seat   // has it without accounts; then there is no holder
	contended bool    // the holder is charged by the clock
	tick      int64
	dirty     bool
	scan      uint64
}

// seat is an lgpu on a device.
type seat struct {
	node *node
	dev  *device
	*account
	job *job

	busy     int64 // as last reported
	reported int64 // when
	marked   int64 // clock is summed up to here
	clock    int64 // contended time since reported
	charged  int64 // of it or of Busy, since reported
	moved    int64 // when Busy last came on
	counted  int64 // charged since then

	wants  bool
	since  int64 // it wants, or has been drained
	used   int64 // last sign of work
	waited int64 // before this grant

	open   bool // from Open, Seep or Free to Closed
	told   bool // Close has been decided
	held   bool // the seat is part of its job's grant
	late   bool // charged beside the holder: a drain past the bound, a launch let through
	levels int  // of the tree, from below, on which it takes part in fair queueing
	claim  bool // could begin a grant now; scratch of contend
	passed bool // by pick; scratch

	until   int64 // until, wanted and the slice's end, as last told
	wanted  bool
	ends    int64
	drain   int64 // how far beyond a slice it usually lasts
	meter   meter
	metered int64
}

type phase uint8

const (
	idle      phase = iota
	reserving       // keeps devices until all are drained
	running
	closing
)

// job is what is granted together: the seats of one lgpu, or of all lgpus with a gang's name.
type job struct {
	gang  string
	seats []*seat // by device, then ID
	held  []*seat // the grant's
	spare []*seat // for held
	part  []*seat // the next grant's; scratch of ready
	due   int64   // when there may be enough credit; scratch of ready
	phase phase
	late  int   // seats that are
	used  int64 // last sign of work of any seat
	opened,
	ends, // of the slice; 0: nobody else waits
	closed int64 // when Close was decided
	last    bool  // slice of the grant: others come after it
	blocked int64 // since when it was first on some device but not on all; 0: not
}

func bySeat(a, b *seat) int {
	return cmp.Or(cmp.Compare(a.dev.id, b.dev.id), cmp.Compare(a.node.id, b.node.id))
}

func (j *job) add(x *seat) {
	i, _ := slices.BinarySearchFunc(j.seats, x, bySeat)
	j.seats = slices.Insert(j.seats, i, x)
	x.job = j
}

// without returns list less x.
func without(list []*seat, x *seat) []*seat {
	if i := slices.Index(list, x); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// Buckets of a meter, and their length.
const (
	buckets = 20
	bucket  = second / buckets
)

// meter sums time over the last second.
type meter struct {
	sum   [buckets]int64
	epoch [buckets]int64
}

// add spreads spent over from..to.
func (m *meter) add(from, to, spent int64) {
	if oldest := to - second; from < oldest {
		spent = mulDiv(spent, second, to-from)
		from = oldest
	}
	for from < to {
		end := min((from/bucket+1)*bucket, to)
		part := mulDiv(spent, end-from, to-from)
		m.put(from/bucket, part)
		spent -= part
		from = end
	}
	m.put(to/bucket, spent)
}

func (m *meter) put(epoch, spent int64) {
	i := epoch % buckets
	if m.epoch[i] != epoch {
		m.epoch[i], m.sum[i] = epoch, 0
	}
	m.sum[i] += spent
}

// share is the part of the last second, in hundredths of a percent.
func (m *meter) share(now int64) uint32 {
	var sum int64
	for i := range buckets {
		if m.epoch[i] > now/bucket-buckets {
			sum += m.sum[i]
		}
	}
	return uint32(min(mulDiv(sum, int64(Whole), second-bucket+now%bucket), int64(Whole)))
}
