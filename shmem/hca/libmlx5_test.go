package hca

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// library is rdma-core's libmlx5 in a process of its own, which believes to have a device: see testdata/mlx5.c.
type library struct {
	t      *testing.T
	in     io.Writer
	out    *bufio.Scanner
	file   []byte
	number uint32
	wq, cq []byte
	record []byte
	cqRec  []byte
	data   uint64 // address of the process's memory that entries work on
	mem    []byte // that memory
	key    uint32
	posted uint64
}

// Of testdata/mlx5.c.
const (
	libraryData = 1 << 20
	librarySize = 2 << 20
)

func newLibrary(t *testing.T) *library {
	t.Helper()
	for _, need := range []string{"/usr/include/infiniband/mlx5dv.h", "/etc/libibverbs.d/mlx5.driver"} {
		if _, err := os.Stat(need); err != nil {
			t.Skip("rdma-core is not installed (Debian: libibverbs-dev and ibverbs-providers)")
		}
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "mlx5")
	if out, err := exec.Command("cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/mlx5.c", "-libverbs", "-lmlx5").
		CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	const modalias = "pci:v000015B3d00001017sv000015B3sd00000008bc02sc00i00"
	for name, text := range map[string]string{ // a ConnectX-5; 1:3 is /dev/null
		"infiniband_verbs/abi_version": "6", "infiniband_verbs/uverbs0/ibdev": "mlx5_0", "infiniband_verbs/uverbs0/abi_version": "1",
		"infiniband_verbs/uverbs0/dev": "1:3", "infiniband_verbs/uverbs0/device/modalias": modalias,
		"infiniband/mlx5_0/device/modalias": modalias, "infiniband/mlx5_0/node_type": "1: CA", "infiniband/mlx5_0/fw_ver": "16.0",
		"infiniband/mlx5_0/node_guid": "0000:0000:0000:0001",
	} {
		path := filepath.Join(dir, "sys", "class", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(dir, "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(librarySize); err != nil {
		t.Fatal(err)
	}
	file, err := unix.Mmap(int(f.Fd()), 0, librarySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(file) })
	cmd := exec.Command(program, f.Name())
	cmd.Env = append(os.Environ(), "SYSFS_PATH="+filepath.Join(dir, "sys"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("testdata/mlx5.c: %v", err)
		}
	})
	l := &library{t: t, in: in, out: bufio.NewScanner(out), file: file, mem: file[libraryData:]}
	var wq, blocks, record, cq, entries, cqRecord int
	if line := l.line(); true {
		if _, err := fmt.Sscanf(line, "queue %x wq %d %d record %d cq %d %d cqrecord %d data %x key %x", &l.number, &wq, &blocks, &record, &cq, &entries,
			&cqRecord, &l.data, &l.key); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	l.wq, l.cq = file[wq:wq+64*blocks], file[cq:cq+64*entries]
	l.record, l.cqRec = file[record:record+8], file[cqRecord:cqRecord+4]
	return l
}

func (l *library) line() string {
	l.t.Helper()
	if !l.out.Scan() {
		l.t.Fatalf("testdata/mlx5.c said nothing more: %v", l.out.Err())
	}
	return l.out.Text()
}

func (l *library) ask(format string, args ...any) string {
	l.t.Helper()
	if _, err := fmt.Fprintf(l.in, format+"\n", args...); err != nil {
		l.t.Fatal(err)
	}
	return l.line()
}

// Flags of ibv_send_flags, and statuses and opcodes of completions, as verbs.h numbers them.
const (
	sendFence, sendSignaled, sendSolicited, sendInline = 1, 2, 4, 8

	wcSuccess, wcFlushed, wcRemoteAccess = 0, 5, 10

	wcWrite, wcRead, wcSwap, wcAdd = 1, 2, 3, 4
)

// workRequest is a work request as a program gives it to the library.
type workRequest struct {
	op              string
	from, bytes     uint64 // of the process's memory
	remote, key     uint64
	x, y            uint64
	flags           int
	opcode          uint8
	status, wcOp, n int // the completion, if one is asked for
}

// entry is what we write for it.
func (r *workRequest) entry(l *library) *mlx5.Entry {
	e := &mlx5.Entry{Opcode: r.opcode, Queue: l.number, RemoteAddress: r.remote, RemoteKey: uint32(r.key),
		Data: []mlx5.Data{{Bytes: uint32(r.bytes), Key: l.key, Address: l.data + r.from}}}
	for flag, bits := range map[int]uint8{sendFence: mlx5.FenceAll, sendSignaled: mlx5.CtrlCompletion, sendSolicited: mlx5.CtrlSolicited} {
		if r.flags&flag != 0 {
			e.Flags |= bits
		}
	}
	switch r.op {
	case "write":
		if r.x != 0 {
			e.Data = append(e.Data, mlx5.Data{Bytes: uint32(r.y), Key: l.key, Address: l.data + r.x})
		}
	case "writeimm":
		e.Immediate = uint32(r.x)
	case "add":
		e.Atomic.Add = r.x
	case "swap":
		e.Atomic.Compare, e.Atomic.Operand = r.x, r.y
	case "send":
		e.RemoteAddress, e.RemoteKey = 0, 0
	}
	if r.flags&sendInline != 0 {
		e.HasInline, e.Inline, e.Data = true, bytes.Clone(l.mem[r.from:r.from+r.bytes]), nil
	}
	return e
}

// post lets the library post and compares what it wrote with what we write.
func (l *library) post(r *workRequest) {
	l.t.Helper()
	if got := l.ask("post %s %x %x %x %x %x %x %x", r.op, r.from, r.bytes, r.remote, r.key, r.x, r.y, r.flags); got != "posted 0" {
		l.t.Fatalf("%+v: %s", r, got)
	}
	ours := make([]byte, len(l.wq))
	e := r.entry(l)
	next, err := e.Put(ours, l.posted)
	if err != nil {
		l.t.Fatal(err)
	}
	at := int(l.posted*64) % len(l.wq)
	n := 16 * e.Segments
	if e.HasInline { // the padding is whatever was there
		n -= (16 - (4+len(e.Inline))%16) % 16
	}
	for i := range n {
		if k := (at + i) % len(l.wq); ours[k] != l.wq[k] {
			l.t.Fatalf("%+v: byte %d is %#x, the library's %#x\nours   %x\ntheirs %x", r, i, ours[k], l.wq[k], ours[at:min(at+n, len(ours))],
				l.wq[at:min(at+n, len(ours))])
		}
	}
	l.posted = next
	if got := binary.BigEndian.Uint32(l.record[4:]); got != uint32(uint16(next)) {
		l.t.Fatalf("%+v: the doorbell record is %#x, not %#x", r, got, uint16(next))
	}
	// The doorbell is the head of the entry.
	want := mlx5.Doorbell{Opcode: e.Opcode, Index: e.Index, Queue: l.number, Segments: uint8(e.Segments)}
	rung := false
	for _, half := range strings.Fields(l.ask("bell")) {
		b, err := hex.DecodeString(half)
		if err != nil || len(b) != 8 {
			l.t.Fatalf("%q: %v", half, err)
		}
		rung = rung || mlx5.ParseDoorbell((*[8]byte)(b)) == want
	}
	if !rung {
		l.t.Fatalf("%+v: the doorbell was not rung with %+v", r, want)
	}
}

// poll lets the library poll for a completion.
func (l *library) poll() (id uint64, status, opcode, n int) {
	l.t.Helper()
	line := l.ask("poll")
	if _, err := fmt.Sscanf(line, "completion %d %d %d %d", &id, &status, &opcode, &n); err != nil {
		l.t.Fatalf("%q: %v", line, err)
	}
	return id, status, opcode, n
}

// TestLibmlx5: rdma-core's library writes entries, which are byte by byte what package mlx5 writes; the HCA executes
// them; and the library reads the completions.
func TestLibmlx5(t *testing.T) {
	l := newLibrary(t)
	fabric := NewLocal()
	a, b := newDevice(t, Config{Fabric: fabric}), newDevice(t, Config{Fabric: fabric})
	m, err := NewHostMemory(l.data, l.mem)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.RegisterMemory(l.key, l.data, uint64(len(l.mem)), LocalWrite, m); err != nil {
		t.Fatal(err)
	}
	remote := register(t, b, bKey, bStart, pairBytes, AllAccess)
	q, err := a.CreateQueue(QueueConfig{Number: l.number, WQ: l.wq, Record: l.record, Producer: ProducerRecord, CQ: l.cq, CQForm: CQCyclic, CQRecord: l.cqRec})
	if err != nil {
		t.Fatal(err)
	}
	other := newDriver(t, b, 0x22, nil)
	fill(l.mem[:4096], 1)
	binary.NativeEndian.PutUint64(remote[2048:], 40)
	requests := []workRequest{
		{op: "write", from: 100, bytes: 333, remote: bStart + 7, key: bKey, flags: sendSignaled, opcode: mlx5.OpWrite, wcOp: wcWrite},
		{op: "write", from: 0, bytes: 10, remote: bStart + 400, key: bKey, x: 50, y: 20, flags: sendSolicited, opcode: mlx5.OpWrite},
		{op: "read", from: 8192, bytes: 333, remote: bStart + 7, key: bKey, flags: sendSignaled, opcode: mlx5.OpRead, wcOp: wcRead, n: 333},
		{op: "write", from: 1, bytes: 8, remote: bStart + 512, key: bKey, flags: sendSignaled | sendInline, opcode: mlx5.OpWrite, wcOp: wcWrite},
		{op: "write", from: 3, bytes: 12, remote: bStart + 520, key: bKey, flags: sendInline, opcode: mlx5.OpWrite},
		{op: "write", from: 5, bytes: 150, remote: bStart + 600, key: bKey, flags: sendSignaled | sendInline, opcode: mlx5.OpWrite, wcOp: wcWrite},
		{op: "add", from: 9000, bytes: 8, remote: bStart + 2048, key: bKey, x: 2, flags: sendSignaled, opcode: mlx5.OpFetchAdd, wcOp: wcAdd, n: 8},
		{op: "swap", from: 9008, bytes: 8, remote: bStart + 2048, key: bKey, x: 42, y: 77, flags: sendSignaled, opcode: mlx5.OpCompareSwap, wcOp: wcSwap, n: 8},
		{op: "write", from: 2000, bytes: 1, remote: bStart + 800, key: bKey, flags: sendSignaled | sendFence, opcode: mlx5.OpWrite, wcOp: wcWrite},
	}
	ids := uint64(0)
	expect := func(list []workRequest) {
		t.Helper()
		for i, r := range list {
			if r.flags&sendSignaled == 0 && r.status == wcSuccess {
				continue
			}
			id, status, opcode, n := l.poll()
			if id != ids+uint64(i)+1 || status != r.status || status == wcSuccess && opcode != r.wcOp || r.n != 0 && n != r.n {
				t.Fatalf("%+v: request %d, status %d, opcode %d, %d bytes; %v", r, id, status, opcode, n, q.Err())
			}
		}
		ids += uint64(len(list))
		_ = q.Completions() // what the library saw through its memory, the race detector sees through this
	}
	for i := range requests { // nobody executes them yet
		l.post(&requests[i])
	}
	if err := q.Connect(t.Context(), other.queue.Endpoint()); err != nil {
		t.Fatal(err)
	}
	expect(requests)
	for _, c := range []struct{ at, from, n int }{{7, 100, 333}, {400, 0, 10}, {410, 50, 20}, {512, 1, 8}, {520, 3, 12}, {600, 5, 150}, {800, 2000, 1}} {
		if !bytes.Equal(remote[c.at:c.at+c.n], l.mem[c.from:c.from+c.n]) {
			t.Errorf("%d bytes at %d are not what the library sent", c.n, c.at)
		}
	}
	if !bytes.Equal(l.mem[8192:8192+333], l.mem[100:433]) {
		t.Error("the read did not bring back what was written")
	}
	if old, swapped, now := binary.NativeEndian.Uint64(l.mem[9000:]), binary.NativeEndian.Uint64(l.mem[9008:]), binary.NativeEndian.Uint64(remote[2048:]); old != 40 ||
		swapped != 42 || now != 77 {
		t.Errorf("40 + 2, swapped for 77: returned %d, %d; now %d", old, swapped, now)
	}
	// Around both queues several times.
	r := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		var list []workRequest
		for range 1 + r.IntN(12) {
			w := workRequest{op: "write", from: r.Uint64N(1000), bytes: 1 + r.Uint64N(180), remote: bStart + 4096 + r.Uint64N(1000), key: bKey,
				flags: r.IntN(2)*sendSignaled | r.IntN(2)*sendFence | r.IntN(2)*sendInline, opcode: mlx5.OpWrite, wcOp: wcWrite}
			list = append(list, w)
		}
		list[len(list)-1].flags |= sendSignaled
		for i := range list {
			l.post(&list[i])
		}
		expect(list)
	}
	bad := []workRequest{
		{op: "write", from: 0, bytes: 8, remote: bStart, key: bKey + 1, opcode: mlx5.OpWrite, status: wcRemoteAccess},
		{op: "send", from: 0, bytes: 8, flags: sendSignaled, opcode: mlx5.OpSend, status: wcFlushed},
		{op: "writeimm", from: 0, bytes: 8, remote: bStart, key: bKey, x: 0xabcdef, opcode: mlx5.OpWriteImm, status: wcFlushed},
	}
	for i := range bad {
		l.post(&bad[i])
	}
	expect(bad)
	if q.State() != StateError {
		t.Errorf("state %v", q.State())
	}
}
