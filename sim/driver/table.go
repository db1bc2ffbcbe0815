package driver

// kind is the kind of an object behind a handle.
type kind uint8

const (
	kindContext kind = iota + 1
	kindModule
	kindFunction
	kindLibrary
	kindKernel
	kindStream
	kindEvent
	kindArray
	kindMipmap
	kindPool
	kindPhysical
	kindGraph
	kindNode
	kindExec
	kindLinker
	kindUser
)

// handleBase keeps handles out of every program's mappings, so that one that is followed like a pointer faults.
const handleBase = uint64(0x5) << 60

// table is the handles of one process. A handle is its kind, and a number that is never used again.
type table struct {
	objects map[uint64]any
	next    uint64
}

func newTable() table { return table{objects: map[uint64]any{}} }

// add gives an object its handle. Numbers are spread, so that a handle that is off by a little is no handle.
func (t *table) add(k kind, o any) uint64 {
	for {
		t.next++
		h := handleBase | uint64(k)<<48 | (t.next*0x9E3779B1&0xFFFFFFFF)<<4
		if _, taken := t.objects[h]; !taken {
			t.objects[h] = o
			return h
		}
	}
}

func (t *table) remove(h uint64) { delete(t.objects, h) }

// lookup finds the object behind a handle; nil where there is none of type T.
func lookup[T any](t *table, h uint64) *T {
	o, _ := t.objects[h].(*T)
	return o
}
