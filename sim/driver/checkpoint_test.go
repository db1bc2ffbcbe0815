package driver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/kernels"
	"github.com/lgpu/lgpu/sim/wire"
)

// bare connects a process that has done nothing, in the memory of g.
func (b *bench) bare(g *program) *client {
	b.t.Helper()
	p, err := b.d.Connect(wire.Peer{PID: 2000, Host: g})
	if err != nil {
		b.t.Fatal(err)
	}
	return &client{Process: p, t: b.t, prog: g, call: wire.NewCall(0, 1, g)}
}

// started connects a process that has called cuInit and has a context.
func (b *bench) started() *client {
	b.t.Helper()
	c := b.bare(newProgram())
	c.want(c.Init(c.call, 0, 0, "", "", ""), success)
	c.use(0)
	return c
}

// image is the process's checkpoint.
func (c *client) image() []byte {
	c.t.Helper()
	c.want(c.CheckpointDrain(c.call, 0, 0), success)
	size, _, res := c.CheckpointSave(c.call, 0, 0, 0)
	c.want(res, success)
	b := make([]byte, size)
	n, reason, res := c.CheckpointSave(c.call, uint64(c.prog.buffer(b)), size, 1000)
	if res != success || n > size {
		c.t.Fatalf("result %d (%s), %d bytes of %d", res, reason, n, size)
	}
	return b[:n]
}

// hostPages is host memory on its way from one hardware to the next.
type hostPages struct {
	file               *os.File
	addr, size, offset uint64
}

// takePages takes all host memory that the process has mapped.
func (c *client) takePages() (all []hostPages) {
	c.t.Helper()
	for _, a := range c.allocs.all() {
		if a.host == nil {
			continue
		}
		offset, res := c.CheckpointTakePages(c.call, a.base)
		c.want(res, success)
		all = append(all, hostPages{c.call.GivenFile(), a.base, a.host.Size(), offset})
	}
	return all
}

// load reads a checkpoint into a new process of b, with the program of the old one.
func (b *bench) load(old *client, img []byte, pairs []wire.CUcheckpointGpuPair, pages ...hostPages) (*client, Result, string) {
	b.t.Helper()
	c := b.bare(old.prog)
	for _, pg := range pages {
		c.call.SetFile(pg.file)
		c.want(c.CheckpointGivePages(c.call, pg.addr, pg.size, pg.offset), success)
	}
	reason, res := c.CheckpointLoad(c.call, uint64(c.prog.buffer(img)), uint64(len(img)), pairs, 1000)
	c.call, c.ctx = wire.NewCall(old.ctx, 1, c.prog), old.ctx
	return c, res, strings.TrimRight(string(reason), "\x00")
}

// restore is load that succeeds.
func (b *bench) restore(old *client, img []byte, pairs []wire.CUcheckpointGpuPair, pages ...hostPages) *client {
	b.t.Helper()
	c, res, reason := b.load(old, img, pairs, pages...)
	if res != success {
		b.t.Fatalf("result %d: %s", res, reason)
	}
	return c
}

// twin is a machine whose devices have the same UUIDs, as the next hardware process on a socket has.
func twin(t *testing.T, devices int, memory uint64) *bench { return newBench(t, devices, memory) }

// objectsOf are the objects of an image, but for what the passing of time changes.
func objectsOf(t *testing.T, b []byte) map[string]any {
	t.Helper()
	h, err := parseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	var o map[string]any
	d := json.NewDecoder(bytes.NewReader(b[headerSize : headerSize+h.objects]))
	d.UseNumber()
	if err := d.Decode(&o); err != nil {
		t.Fatal(err)
	}
	if points, ok := o["Points"].([]any); ok {
		for _, p := range points {
			delete(p.(map[string]any), "Age")
		}
	}
	return o
}

// rewritten is an image with other objects, and a sum that fits.
func rewritten(t testing.TB, b []byte, change func(*image)) []byte {
	t.Helper()
	h, err := parseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	rest := b[headerSize+h.objects:]
	img, err := h.parseObjects(b[headerSize : headerSize+h.objects])
	if err != nil {
		t.Fatal(err)
	}
	change(img)
	begin, err := img.encode(h.sources)
	if err != nil {
		t.Fatal(err)
	}
	return append(begin, rest...)
}

// TestCheckpoint saves a process with one of everything, and goes on with it in another machine.
func TestCheckpoint(t *testing.T) {
	c := newBench(t, 2, 256<<20).started()
	f := c.kernel(store, "store")
	p := c.alloc(3 << 20)
	data := bytes.Repeat([]byte("what is in memory. "), 150000)
	c.put(p, data)
	s := c.stream(1)
	pooled, res := c.MemAllocAsync(c.call, 1000, s)
	c.want(res, success)
	gone, res := c.MemAllocAsync(c.call, 1000, s)
	c.want(res, success)
	c.want(c.MemFreeAsync(c.call, gone, s), success)
	first, last := c.event(0), c.event(0)
	c.want(c.EventRecord(c.call, first, s), success)
	c.want(c.launch(f, shape(1, 32), s, uint64(pooled), uint64(8), uint32(7)), success)
	c.want(c.EventRecord(c.call, last, s), success)
	c.sync()
	took, res := c.EventElapsedTime(c.call, first, last)
	c.want(res, success)

	g, res := c.GraphCreate(c.call, 0)
	c.want(res, success)
	k := c.kernelNode(g, nil, f, p, uint64(4), uint32(9))
	ran := 0
	fn := c.prog.function(func(wire.InvokeKind, wire.HostAddr, wire.HostAddr, wire.HostAddr) { ran++ })
	_, res = c.GraphAddHostNode(c.call, g, []wire.CUgraphNode{k}, &wire.CUDA_HOST_NODE_PARAMS{Fn: fn})
	c.want(res, success)
	x := c.instantiate(g)
	captured := c.stream(1)
	c.want(c.StreamBeginCapture(c.call, captured, wire.CU_STREAM_CAPTURE_MODE_RELAXED), success)
	c.want(c.launch(f, shape(1, 32), captured, p+64, uint64(4), uint32(3)), success)
	lib, _, _, res := c.LibraryLoadData(c.call, kernels.Linear, nil, nil, nil, nil, 0, 0)
	c.want(res, success)
	saxpy, res := c.LibraryGetKernel(c.call, lib, "saxpy")
	c.want(res, success)
	free, _, res := c.MemGetInfo(c.call)
	c.want(res, success)

	img := c.image()
	c.Close()
	r := twin(t, 2, 256<<20).restore(c, img, nil)
	if again := r.image(); !reflect.DeepEqual(objectsOf(t, again), objectsOf(t, img)) {
		t.Errorf("the image of what was read is another one:\n%s\n%s", again[:3000], img[:3000])
	}
	if now, _, res := r.MemGetInfo(r.call); res != success || now != free {
		t.Errorf("%d bytes are free, and %d were", now, free)
	}
	if !bytes.Equal(r.get(p, len(data)), data) {
		t.Error("memory has other contents")
	}
	if w := r.word(uint64(pooled) + 28); w != 7 {
		t.Errorf("pooled memory holds %d", w)
	}
	if again, res := r.EventElapsedTime(r.call, first, last); res != success || again != took {
		t.Errorf("between the events there are %v ms, and there were %v (%d)", again, took, res)
	}
	r.want(r.GraphLaunch(r.call, x, s), success)
	within(t, "the graph", r.sync0(s))
	if w := r.word(p); w != 9 || ran != 1 {
		t.Errorf("the graph has stored %d, and its function has run %d times", w, ran)
	}
	g2, res := r.StreamEndCapture(r.call, captured)
	r.want(res, success)
	r.want(r.GraphLaunch(r.call, r.instantiate(g2), s), success)
	within(t, "the captured graph", r.sync0(s))
	if w := r.word(p + 64); w != 3 {
		t.Errorf("the captured graph has stored %d", w)
	}
	if kf, res := r.KernelGetFunction(r.call, saxpy); res != success || kf == 0 {
		t.Errorf("the library's kernel: %d", res)
	}
	r.want(r.MemFree(r.call, wire.CUdeviceptr(p)), success)
	if next := r.alloc(4096); next == p {
		t.Errorf("%#x is given out again at once", p)
	}
}

// sync0 synchronises a stream.
func (c *client) sync0(s wire.CUstream) func() {
	return func() {
		c.t.Helper()
		if res := c.StreamSynchronize(c.call, s); res != success {
			c.t.Errorf("synchronize: %d", res)
		}
	}
}

// TestCheckpointSwapsDevices reads a process onto the devices in another order: what its ordinals mean stays.
func TestCheckpointSwapsDevices(t *testing.T) {
	b := newBench(t, 2, 64<<20)
	c := b.started()
	p := c.alloc(10 << 20)
	c.put(p, []byte("on the first"))
	old := []wire.CUuuid{b.d.devices[0].uuid, b.d.devices[1].uuid}
	img := c.image()
	c.Close()
	used := func(i int) uint64 { return b.m.Devices[i].Memory.Total() - b.m.Devices[i].Memory.Free() }
	r := b.restore(c, img, []wire.CUcheckpointGpuPair{{OldUuid: old[0], NewUuid: old[1]}, {OldUuid: old[1], NewUuid: old[0]}})
	if used(0) != 0 || used(1) < 10<<20 {
		t.Errorf("the devices have %d and %d bytes in use", used(0), used(1))
	}
	if got := string(r.get(p, 12)); got != "on the first" {
		t.Errorf("memory holds %q", got)
	}
	if uuid, res := r.DeviceGetUuid(r.call, 0); res != success || uuid != old[1] {
		t.Errorf("ordinal 0 is device %x (%d)", uuid, res)
	}
	if dev, res := r.CtxGetDevice(r.call, 0); res != success || dev != 0 {
		t.Errorf("the context is on ordinal %d (%d)", dev, res)
	}
}

// TestCheckpointRefuses: what is other processes' too stays where it is, and the refusal says what it is.
func TestCheckpointRefuses(t *testing.T) {
	b := newBench(t, 1, 128<<20)
	exported := func(c *client) {
		h := c.physical(2 << 20)
		c.want(c.MemExportToShareableHandle(c.call, h, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), success)
		f := c.call.GivenFile()
		t.Cleanup(func() { f.Close() })
	}
	for name, do := range map[string]func(*client){
		"CUDA IPC: memory or an event that was given": func(c *client) {
			_, res := c.IpcGetMemHandle(c.call, wire.CUdeviceptr(c.alloc(4096)))
			c.want(res, success)
		},
		"memory whose descriptor is open": exported,
		"CUDA IPC: memory of another process": func(c *client) {
			o := b.started()
			h, res := o.IpcGetMemHandle(o.call, wire.CUdeviceptr(o.alloc(4096)))
			c.want(res, success)
			_, res = c.IpcOpenMemHandle(c.call, h, uint32(wire.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
			c.want(res, success)
		},
		"CUDA IPC: an event of another process": func(c *client) {
			o := b.started()
			h, res := o.IpcGetEventHandle(o.call, o.event(eventInterprocess|eventDisableTiming))
			c.want(res, success)
			_, res = c.IpcOpenEventHandle(c.call, h)
			c.want(res, success)
		},
		"imported memory handles": func(c *client) {
			o := b.started()
			h := o.physical(2 << 20)
			c.want(o.MemExportToShareableHandle(o.call, h, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), success)
			c.call.SetFile(o.call.GivenFile())
			_, res := c.MemImportFromShareableHandle(c.call, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
			c.want(res, success)
		},
	} {
		c := b.started()
		do(c)
		c.want(c.CheckpointDrain(c.call, 0, 0), success)
		_, reason, res := c.CheckpointSave(c.call, 0, 0, 1000)
		if res != errNotSupported || !strings.Contains(string(reason), name) {
			t.Errorf("%s: result %d, %q", name, res, reason)
		}
		c.alloc(4096) // it goes on
		c.Close()
	}
}

func (c *client) physical(size uint64) wire.CUmemGenericAllocationHandle {
	c.t.Helper()
	h, res := c.MemCreate(c.call, size, &wire.CUmemAllocationProp{Type: wire.CU_MEM_ALLOCATION_TYPE_PINNED,
		RequestedHandleTypes: wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, Location: wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE}}, 0)
	c.want(res, success)
	return h
}

// TestRestoreFails: an image that cannot be read leaves nothing behind, and can be read elsewhere or later.
func TestRestoreFails(t *testing.T) {
	b := newBench(t, 2, 64<<20)
	c := b.started()
	c.put(c.alloc(20<<20), bytes.Repeat([]byte{1}, 5<<20))
	img := c.image()
	c.Close()
	uuid := []wire.CUuuid{b.d.devices[0].uuid, b.d.devices[1].uuid}
	pair := func(a, z int) wire.CUcheckpointGpuPair {
		return wire.CUcheckpointGpuPair{OldUuid: uuid[a], NewUuid: uuid[z]}
	}
	flipped := slices.Clone(img)
	flipped[len(flipped)-pieceHead-100] ^= 4
	for name, try := range map[string]struct {
		img   []byte
		pairs []wire.CUcheckpointGpuPair
		want  Result
		why   string
	}{
		"half a map":       {img, []wire.CUcheckpointGpuPair{pair(0, 1)}, errInvalidValue, "1 pairs for 2 devices"},
		"twice the old":    {img, []wire.CUcheckpointGpuPair{pair(0, 1), pair(0, 0)}, errInvalidValue, "names"},
		"twice the new":    {img, []wire.CUcheckpointGpuPair{pair(0, 1), pair(1, 1)}, errInvalidValue, "place of two"},
		"an unknown one":   {img, []wire.CUcheckpointGpuPair{pair(0, 1), {OldUuid: uuid[1]}}, errInvalidValue, "no device"},
		"a flipped bit":    {flipped, nil, errInvalidImage, "sum of piece"},
		"a flipped letter": {slices.Replace(slices.Clone(img), 50, 51, img[50]^1), nil, errInvalidImage, "sum of the objects"},
		"a part":           {img[:len(img)-1], nil, errInvalidImage, "bytes"},
		"too much":         {append(slices.Clone(img), 0), nil, errInvalidImage, "1 bytes follow"},
		"another version":  {slices.Replace(slices.Clone(img), 8, 9, 9), nil, errInvalidImage, "version 9"},
		"nothing":          {nil, nil, errInvalidImage, "0 bytes of"},
		"another chip":     {rewritten(t, img, func(i *image) { i.Devices[0].Units++ }), nil, errNotSupported, "another chip"},
	} {
		r, res, why := b.load(c, try.img, try.pairs)
		if res != try.want || !strings.Contains(why, try.why) {
			t.Errorf("%s: result %d, %q", name, res, why)
		}
		r.Close()
	}
	full := b.started()
	full.alloc(40 << 20)
	r, res, why := b.load(c, img, nil)
	if res != errOutOfMemory || !strings.Contains(why, "no room") {
		t.Errorf("on a full device: %d, %q", res, why)
	}
	r.Close()
	full.Close()
	r = b.restore(c, img, nil)
	if _, res := r.CheckpointLoad(r.call, uint64(r.prog.buffer(img)), uint64(len(img)), nil, 0); res != errIllegalState {
		t.Errorf("a second image is read: %d", res)
	}
}

// TestCheckpointWaits: what is at work is waited for, as long as the caller has said.
func TestCheckpointWaits(t *testing.T) {
	c := newBench(t, 1, 64<<20).started()
	p := c.alloc(4096)
	s := c.stream(1)
	c.want(c.StreamWaitValue32(c.call, s, wire.CUdeviceptr(p), 1, uint32(wire.CU_STREAM_WAIT_VALUE_EQ)), success)
	c.want(c.CheckpointDrain(c.call, 1, 0), errNotReady)
	if _, _, res := c.CheckpointSave(c.call, 0, 0, 0); res != errIllegalState {
		t.Errorf("a process at work is saved: %d", res)
	}
	c.want(c.StreamWriteValue32(c.call, c.stream(1), wire.CUdeviceptr(p), 1, 0), success)
	within(t, "drain", func() { c.want(c.CheckpointDrain(c.call, 0, 1), success) })
}

// TestCheckpointMovesHostMemory: pinned memory is the program's, and the next hardware reaches the same pages.
func TestCheckpointMovesHostMemory(t *testing.T) {
	c := newBench(t, 1, 64<<20).started()
	const addr, n, off = 0x7f0000000000, 8192, 4096
	mine := memfd(t, 3*4096)
	defer mine.Close()
	f, err := duplicate(mine)
	if err != nil {
		t.Fatal(err)
	}
	c.call.SetFile(f)
	c.want(c.MemHostMap(c.call, addr, n, off, 0, 1), success)
	pages := c.takePages()
	if len(pages) != 1 || pages[0].offset != off {
		t.Fatalf("pages %+v", pages)
	}
	k := c.kernel(store, "store")
	img := c.image()
	c.Close()
	b := twin(t, 1, 64<<20)
	if r, res, why := b.load(c, img, nil); res != errInvalidValue || !strings.Contains(why, "has not come") {
		t.Errorf("without its host memory: %d, %q", res, why)
	} else {
		r.Close()
	}
	r := b.restore(c, img, nil, pages...)
	r.want(r.launch(k, shape(1, 32), 0, uint64(addr), uint64(16), uint32(5)), success)
	r.sync()
	got := make([]byte, 64)
	if _, err := mine.ReadAt(got, off); err != nil {
		t.Fatal(err)
	}
	if want := bytes.Repeat([]byte{5, 0, 0, 0}, 16); !bytes.Equal(got, want) {
		t.Errorf("the program reads %v", got)
	}
}

// TestCheckpointAnyState makes random calls, saves the process and reads it: the image of what was read is the same.
func TestCheckpointAnyState(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	saved := 0
	for seed := range rounds {
		c := newBench(t, 2, 64<<20).started()
		h := &hostile{r: rand.New(rand.NewPCG(uint64(seed), 11))}
		f := c.kernel(store, "store")
		h.handles = append(h.handles, uint64(c.ctx), uint64(f), c.alloc(4096), c.alloc(4<<20), uint64(c.stream(0)), uint64(c.event(0)))
		for range 300 {
			h.call(c, waits...)
		}
		if c.CheckpointDrain(c.call, 200, 0) != success {
			continue
		}
		if _, _, res := c.CheckpointSave(c.call, 0, 0, 0); res == errNotSupported {
			continue
		}
		img := c.image()
		pages := c.takePages()
		c.Close()
		r := twin(t, 2, 64<<20).restore(c, img, nil, pages...)
		again := r.image()
		if got, want := objectsOf(t, again), objectsOf(t, img); !reflect.DeepEqual(got, want) {
			for key := range want {
				if !reflect.DeepEqual(got[key], want[key]) {
					t.Errorf("seed %d: %s is\n%v\nand was\n%v", seed, key, got[key], want[key])
				}
			}
		}
		if h, _ := parseHeader(img); !bytes.Equal(again[headerSize+int(h.objects):], img[headerSize+int(h.objects):]) {
			t.Errorf("seed %d: sources or memory differ", seed)
		}
		r.Close()
		saved++
	}
	if saved < rounds/2 {
		t.Errorf("%d of %d processes were saved", saved, rounds)
	}
}

// tamper changes one thing in what JSON has been read to.
func tamper(r *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		if len(keys) == 0 {
			return v
		}
		key := keys[r.IntN(len(keys))]
		if r.IntN(20) == 0 {
			delete(v, key)
		} else {
			v[key] = tamper(r, v[key])
		}
	case []any:
		if len(v) == 0 {
			return v
		}
		i := r.IntN(len(v))
		switch r.IntN(20) {
		case 0:
			return slices.Delete(v, i, i+1)
		case 1:
			return append(v, v[i])
		}
		v[i] = tamper(r, v[i])
	case bool:
		return !v
	case json.Number:
		n, _ := strconv.ParseUint(string(v), 10, 64)
		return []uint64{0, 1, n + 1, n - 1, n ^ 1<<r.IntN(64), r.Uint64(), n + 512, 1 << 40}[r.IntN(8)]
	}
	return v
}

// TestTamperedImages reads images in which somebody has changed something: they are refused, or what was read can be
// used at random and ended, and nothing is left (the fixture checks).
func TestTamperedImages(t *testing.T) {
	rounds := 3000
	if testing.Short() {
		rounds = 200
	}
	var imgs [][]byte
	for seed := range uint64(10) {
		c := newBench(t, 2, 64<<20).started()
		h := &hostile{r: rand.New(rand.NewPCG(seed, 13))}
		h.handles = append(h.handles, uint64(c.ctx), uint64(c.kernel(store, "store")), c.alloc(4096), uint64(c.stream(0)))
		for range 200 {
			h.call(c, append(waits, "MemAllocManaged")...)
		}
		if c.CheckpointDrain(c.call, 200, 0) == success {
			if _, _, res := c.CheckpointSave(c.call, 0, 0, 0); res == success {
				imgs = append(imgs, c.image())
			}
		}
		c.Close()
	}
	if len(imgs) < 3 {
		t.Fatalf("%d processes were saved", len(imgs))
	}
	b := newBench(t, 2, 64<<20)
	read := 0
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 17))
		img := imgs[r.IntN(len(imgs))]
		h, _ := parseHeader(img)
		var o any
		d := json.NewDecoder(bytes.NewReader(img[headerSize : headerSize+h.objects]))
		d.UseNumber()
		if err := d.Decode(&o); err != nil {
			t.Fatal(err)
		}
		for range 1 + r.IntN(3) {
			o = tamper(r, o)
		}
		objects, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		read += b.tampered(t, seed, objects, h.sources, img[headerSize+h.objects:])
	}
	if read < rounds/50 || read > rounds*9/10 {
		t.Errorf("%d images of %d were read", read, rounds)
	}
}

// tampered reads an image, and uses what comes of it. It returns 1 if it was read.
func (b *bench) tampered(t *testing.T, seed int, objects []byte, sources uint64, rest []byte) int {
	img := append([]byte(imageMagic), imageVersion, 0, 0, 0)
	img = binary.LittleEndian.AppendUint32(img, crc32.Checksum(objects, castagnoli))
	img = binary.LittleEndian.AppendUint64(img, uint64(len(objects)))
	img = binary.LittleEndian.AppendUint64(img, sources)
	img = append(append(img, objects...), rest...)
	c, res, _ := b.load(&client{prog: newProgram()}, img, nil)
	c.t = t
	defer c.Close()
	if res != success {
		return 0
	}
	h := &hostile{r: rand.New(rand.NewPCG(uint64(seed), 19)), handles: slices.Sorted(maps.Keys(c.handles.objects))}
	if len(c.contexts) > 0 {
		c.call = wire.NewCall(wire.CUcontext(c.contexts[0].handle), 1, c.prog)
	}
	for range 60 {
		h.call(c, waits...)
	}
	return 1
}

// FuzzImage reads objects that somebody has made up.
func FuzzImage(f *testing.F) {
	m, err := hw.NewMachine(hw.Config{Memory: 64 << 20, Units: 4, Virtual: true})
	if err != nil {
		f.Fatal(err)
	}
	d, err := New(m, Options{ContextBytes: 4 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"Devices":[],"Visible":[0]}`), []byte{})
	f.Add([]byte(`{"Devices":[{"Units":4}],"Contexts":[{"Handle":1,"Streams":[1]}]}`), []byte{0, 1, 2})
	f.Fuzz(func(t *testing.T, objects, rest []byte) {
		(&bench{t: t, m: m, d: d}).tampered(t, 0, objects, 0, rest)
		if used := m.Devices[0].Memory.Total() - m.Devices[0].Memory.Free(); used != 0 {
			t.Errorf("%d bytes are left", used)
		}
	})
}
