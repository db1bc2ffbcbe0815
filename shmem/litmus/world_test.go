package litmus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/hca"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
)

// setup is what a world is made like.
type setup struct {
	pes, nics, queues int
	depth, batch      uint32
	heap              uint64 // bytes
	shift             uint32 // log2 of the heap bytes of a key
	start             uint64 // of all counters
	ibufCells         uint32
	// mapped says what of PE b's heap PE a sees: 0, 1 or 1|layout.PeerAtomic are added to its address; -1: nothing.
	mapped  func(a, b int) int
	flags   func(queue int) uint32 // layout.Queue*, of each PE's i-th
	fabric  hca.Fabric
	evil    *hca.Adversary
	timeout time.Duration
	// noAdapter leaves the queues to the program.
	noAdapter bool
	// late leaves the queues unconnected until the program asks for it.
	late bool
	// version replaces the layout's.
	version uint32
}

// Ways to see other PEs' heaps.
func mapAll(a, b int) int { return layout.PeerAtomic }
func mapNone(a, b int) int {
	return -1
}

// mapMixed: itself and its successor are mapped, the successor without atomic operations.
func mapMixed(a, b int) int {
	switch b - a {
	case 0:
		return layout.PeerAtomic
	case 1:
		return 0
	}
	return -1
}

// header is struct world of litmus.cc.
type header struct {
	PEs, HeapBytes, Queues, Depth, Start uint64
	State                                [16]uint64 // offsets
}

// world is the memory that a program and its adapters share.
type world struct {
	setup
	t       testing.TB
	fd      int
	shm     []byte
	next    uint64
	base    uint64 // of the memory, in the program
	devices []*hca.Device
	connect []func() error
	pairs   []pair
	random  *rand.Rand
}

// pair is a queue as its two users know it.
type pair struct {
	pe    int
	words *layout.Queue
	queue *hca.Queue
}

const memory = 64 << 20

func newWorld(t testing.TB, s setup, seed uint64) *world {
	t.Helper()
	fd, err := unix.MemfdCreate("litmus", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, memory); err != nil {
		t.Fatal(err)
	}
	shm, err := unix.Mmap(fd, 0, memory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{setup: s, t: t, fd: fd, shm: shm, next: 4096, random: rand.New(rand.NewPCG(seed, 1))}
	t.Cleanup(func() {
		for _, d := range w.devices {
			_ = d.Close()
		}
		_ = unix.Munmap(shm)
	})
	return w
}

// alloc takes zeroed memory and returns its offset.
func (w *world) alloc(n, align uint64) uint64 {
	at := (w.next + align - 1) &^ (align - 1)
	w.next = at + n
	if w.next > memory {
		w.t.Fatalf("the world needs more than %d bytes", memory)
	}
	return at
}

func (w *world) bytes(at, n uint64) []byte { return w.shm[at : at+n : at+n] }

func at[T any](w *world, offset uint64) *T { return (*T)(unsafe.Pointer(&w.shm[offset])) }

func (w *world) u64(at uint64, v uint64) { binary.NativeEndian.PutUint64(w.shm[at:], v) }

// build lays the world out for a program that has mapped it at base.
func (w *world) build(base uint64) error {
	w.base = base
	n, nics, queues := uint64(w.pes), uint64(w.nics), uint64(w.queues)
	chunks := w.heap >> w.shift
	head := at[header](w, 0)
	*head = header{PEs: n, HeapBytes: w.heap, Queues: queues, Depth: uint64(w.depth), Start: w.start}
	heaps := make([]uint64, n)
	for pe := range heaps {
		heaps[pe] = w.alloc(w.heap, 1<<21)
		head.State[pe] = w.alloc(uint64(unsafe.Sizeof(layout.State{})), 64)
	}
	version := w.version
	if version == 0 {
		version = layout.Version
	}
	local, remote := make([]uint64, n), make([]uint64, n) // key tables
	for pe := range n {
		s := at[layout.State](w, head.State[pe])
		peers, remotes := w.alloc(8*n, 64), w.alloc(8*n, 64)
		local[pe] = w.alloc(chunks*nics*uint64(unsafe.Sizeof(layout.Key{})), 64)
		remote[pe] = w.alloc(chunks*n*nics*uint64(unsafe.Sizeof(layout.Key{})), 64)
		*s = layout.State{
			Version: version, PE: uint32(pe), PEs: uint32(n), HeapBase: base + heaps[pe], HeapBytes: w.heap,
			Peers: base + peers, Remote: base + remotes, QueuesPerPE: uint32(queues), NICs: uint32(nics), KeyShift: w.shift,
			LocalKeys: base + local[pe], RemoteKeys: base + remote[pe],
			Control:      base + w.alloc(uint64(unsafe.Sizeof(layout.Control{})), 64),
			TimeoutNanos: uint64(w.timeout),
		}
		for b := range n {
			w.u64(remotes+8*b, base+heaps[b])
			if how := w.mapped(int(pe), int(b)); how >= 0 {
				w.u64(peers+8*b, base+heaps[b]|uint64(how))
				if b < layout.InlinePeers {
					s.Peer[b] = base + heaps[b] | uint64(how)
				}
			}
		}
		s.Self = base + head.State[pe]
		s.Queues = base + w.alloc(n*queues*uint64(unsafe.Sizeof(layout.Queue{})), 256)
	}
	devices, err := w.adapters(heaps)
	if err != nil {
		return err
	}
	w.keys(head, devices, heaps, local, remote)
	return w.queuePairs(head, devices)
}

// adapters makes each PE's.
func (w *world) adapters(heaps []uint64) ([][]*hca.Device, error) {
	all := make([][]*hca.Device, w.pes)
	for pe := range all {
		for nic := range w.nics {
			if w.noAdapter {
				all[pe] = append(all[pe], nil)
				continue
			}
			evil := w.evil
			if evil != nil {
				e := *evil
				e.Seed += uint64(pe*w.nics + nic)
				evil = &e
			}
			d, err := hca.New(hca.Config{Fabric: w.fabric, Adversary: evil, Logf: w.t.Logf})
			if err != nil {
				return nil, err
			}
			w.devices = append(w.devices, d)
			all[pe] = append(all[pe], d)
		}
	}
	return all, nil
}

// register makes a range of the world the memory of a key.
func (w *world) register(d *hca.Device, key uint32, offset, n uint64) error {
	if d == nil {
		return nil
	}
	m, err := hca.NewHostMemory(w.base+offset, w.bytes(offset, n))
	if err != nil {
		return err
	}
	return d.RegisterMemory(key, w.base+offset, n, hca.AllAccess, m)
}

// keys registers each heap in ranges of one to three chunks, with a key each, and fills the tables.
func (w *world) keys(head *header, devices [][]*hca.Device, heaps, local, remote []uint64) {
	chunks := w.heap >> w.shift
	size := uint64(unsafe.Sizeof(layout.Key{}))
	n, nics := uint64(w.pes), uint64(w.nics)
	for pe := range n {
		for nic := range nics {
			for first := uint64(0); first < chunks; {
				count := min(1+w.random.Uint64N(3), chunks-first)
				key := uint32(0x1000 + first<<8 | pe<<4 | nic)
				if err := w.register(devices[pe][nic], key, heaps[pe]+first<<w.shift, count<<w.shift); err != nil {
					w.t.Fatal(err)
				}
				entry := layout.Key{End: (first + count) << w.shift, Key: bits.ReverseBytes32(key)}
				for c := first; c < first+count; c++ {
					*at[layout.Key](w, local[pe]+(c*nics+nic)*size) = entry
					for a := range n {
						*at[layout.Key](w, remote[a]+((c*n+pe)*nics+nic)*size) = entry
					}
				}
				first += count
			}
		}
	}
	for pe := range n {
		s := at[layout.State](w, head.State[pe])
		for i := range uint64(layout.InlineKeys) {
			if i < chunks*nics {
				s.LocalInline[i] = *at[layout.Key](w, local[pe]+i*size)
			}
			if i < chunks*n*nics {
				s.RemoteInline[i] = *at[layout.Key](w, remote[pe]+i*size)
			}
		}
	}
}

// queuePairs makes and connects all queues.
func (w *world) queuePairs(head *header, devices [][]*hca.Device) error {
	n, queues := w.pes, w.queues
	made := map[[3]int]*hca.Queue{}
	for a := range n {
		s := at[layout.State](w, head.State[a])
		for b := range n {
			for i := range queues {
				nic := i % w.nics
				number := uint32(0x100 + (a*n+b)*queues + i)
				q := at[layout.Queue](w, s.Queues-w.base+uint64(i*n+b)*uint64(unsafe.Sizeof(layout.Queue{})))
				wq, cq := w.alloc(uint64(w.depth)*64, 4096), w.alloc(64, 64)
				record, doorbell := w.alloc(64, 64), w.alloc(64, 64)
				ibufBytes := uint64(1+w.ibufCells) * layout.IbufCell
				ibuf := w.alloc(ibufBytes, 4096)
				key := 1<<31 | number
				var flags uint32
				if w.flags != nil {
					flags = w.flags(i)
				}
				*q = layout.Queue{WQ: w.base + wq, Record: w.base + record + 4, Doorbell: w.base + doorbell, CQ: w.base + cq, Ibuf: w.base + ibuf,
					Number: number, Depth: w.depth, Batch: w.batch, IbufCells: w.ibufCells, IbufKey: bits.ReverseBytes32(key),
					PE: uint32(b), NIC: uint32(nic), Flags: flags,
					Reserved: w.start, Ready: w.start, Posted: w.start, Consumed: w.start, GetHead: w.start, GetTail: w.start, Atomics: w.start,
					IbufHead: 1<<32 - 3, IbufTail: 1<<32 - 3}
				entry := w.bytes(cq, 64)
				for j := range entry {
					entry[j] = 0xff
				}
				if w.start != 0 {
					c := mlx5.Completion{Opcode: mlx5.CompletionRequester, Queue: number, Counter: uint16(w.start - 1)}
					c.Put((*[64]byte)(entry))
				}
				binary.BigEndian.PutUint32(w.bytes(record+4, 4), uint32(uint16(w.start)))
				config := hca.QueueConfig{Number: number, WQ: w.bytes(wq, uint64(w.depth)*64), Record: w.bytes(record, 8),
					Doorbell: w.bytes(doorbell, 8), Start: w.start, CQ: entry, Producer: hca.ProducerDoorbell}
				if flags&layout.QueueHostPosts != 0 {
					w.u64(doorbell, w.start)
					config.Producer, config.HostPosts, config.Doorbell, config.Record = hca.ProducerHostPosts, w.bytes(doorbell, 8), nil, nil
				}
				if w.noAdapter {
					continue
				}
				if err := w.register(devices[a][nic], key, ibuf, ibufBytes); err != nil {
					return err
				}
				created, err := devices[a][nic].CreateQueue(config)
				if err != nil {
					return err
				}
				made[[3]int{a, b, i}] = created
				w.pairs = append(w.pairs, pair{a, q, created})
			}
		}
	}
	for where, q := range made {
		other := made[[3]int{where[1], where[0], where[2]}]
		w.connect = append(w.connect, func() error { return q.Connect(context.Background(), other.Endpoint()) })
	}
	if w.late {
		return nil
	}
	return w.connectAll()
}

func (w *world) connectAll() error {
	for _, c := range w.connect {
		if err := c(); err != nil {
			return err
		}
	}
	return nil
}

// result is how a program ended.
type result struct {
	err    error  // nil: exit status 0
	output string // what it wrote
}

// run starts the program with a test's name, a seed and a number of rounds, and is its adapters until it ends.
func (w *world) run(program, test string, seed uint64, rounds int, limit time.Duration, env ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "3", fmt.Sprint(memory), test, fmt.Sprint(seed), fmt.Sprint(rounds))
	cmd.Env = append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1 exitcode=66", "ASAN_OPTIONS=detect_leaks=0",
		"UBSAN_OPTIONS=halt_on_error=1 print_stacktrace=1")
	cmd.Env = append(cmd.Env, env...)
	shared := os.NewFile(uintptr(mustDup(w.t, w.fd)), "litmus")
	defer shared.Close()
	cmd.ExtraFiles = []*os.File{shared}
	var errors bytes.Buffer
	cmd.Stderr = &errors
	stdin, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	var output strings.Builder
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		line := lines.Text()
		var base uint64
		switch {
		case line == "connect":
			err = w.connectAll()
		case strings.HasPrefix(line, "base "):
			if _, err = fmt.Sscanf(line, "base %x", &base); err == nil {
				err = w.build(base)
			}
		default:
			fmt.Fprintln(&output, line)
			continue
		}
		if err != nil {
			w.t.Errorf("%s: %v", line, err)
			cancel()
			break
		}
		_, _ = io.WriteString(stdin, "go\n")
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		err = fmt.Errorf("ended after %v: %w", limit, ctx.Err())
	}
	text := output.String() + errors.String()
	if err != nil {
		text += w.dump()
	}
	if len(text) > 6000 {
		text = text[:6000] + "\n..."
	}
	return result{err, text}
}

// dump tells what became of the queues that were used.
func (w *world) dump() string {
	var b strings.Builder
	for _, p := range w.pairs {
		q := p.words
		if q.Reserved == w.start && p.queue.Err() == nil {
			continue
		}
		fmt.Fprintf(&b, "queue %#x, PE %d to %d: reserved %d, ready %d, posted %d, consumed %d, status %d, lock %d; record %x, doorbell %x, completion %x; %v, %v, %d completions\n",
			q.Number, p.pe, q.PE, q.Reserved, q.Ready, q.Posted, q.Consumed, q.Status, q.Lock, w.bytes(q.Record-w.base, 4), w.bytes(q.Doorbell-w.base, 8),
			w.bytes(q.CQ-w.base+60, 4), p.queue.State(), p.queue.Err(), p.queue.Completions())
	}
	return b.String()
}

func mustDup(t testing.TB, fd int) int {
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
