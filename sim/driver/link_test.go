package driver

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/sim/fatbin/fatbintest"
	"github.com/lgpu/lgpu/sim/ptx"
	"github.com/lgpu/lgpu/sim/wire"
)

// TestFatBinary loads the kernel of fixture_test.go from fat binaries as nvcc makes them.
func TestFatBinary(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	for _, how := range []fatbintest.Compression{fatbintest.None, fatbintest.LZ4, fatbintest.Zstd} {
		image := fatbintest.Image(t, how, fatbintest.Entry{Kind: fatbintest.ELF, Arch: 90, Data: []byte("\x7fELF")},
			fatbintest.Entry{Kind: fatbintest.PTX, Arch: 70, Data: store})
		f := c.kernel(image, "store")
		p := c.alloc(64)
		c.want(c.launch(f, shape(1, 16), 0, p, uint64(16), uint32(7)), success)
		c.sync()
		if got := c.get(p, 64); !bytes.Equal(got, bytes.Repeat([]byte{7, 0, 0, 0}, 16)) {
			t.Errorf("compression %v: stores %v", how, got)
		}
		_, _, _, res := c.ModuleLoadData(c.call, image[:len(image)-1], nil, nil, 0, 0)
		c.want(res, errInvalidImage)
	}
	only := fatbintest.Image(t, fatbintest.None, fatbintest.Entry{Kind: fatbintest.ELF, Arch: 90, Data: []byte("\x7fELF")})
	_, _, log, res := c.ModuleLoadData(c.call, only, nil, nil, 64, 64)
	c.want(res, errNoBinary)
	if !strings.Contains(string(log), "no PTX") {
		t.Errorf("log %q", log)
	}
}

// TestLinkedImage loads what the linker makes, and what somebody made of it.
func TestLinkedImage(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	l, res := c.LinkCreate(c.call, nil, nil)
	c.want(res, success)
	_, _, res = c.LinkComplete(c.call, l, 0)
	c.want(res, errInvalidValue)
	for _, src := range [][]byte{store, big} {
		_, res = c.LinkAddData(c.call, l, wire.CU_JIT_INPUT_PTX, src, "", 0)
		c.want(res, success)
	}
	_, res = c.LinkAddData(c.call, l, wire.CU_JIT_INPUT_CUBIN, store, "", 0)
	c.want(res, errNoBinary)
	n, _, res := c.LinkComplete(c.call, l, 0)
	c.want(res, success)
	image, res := c.LinkImage(c.call, l, n)
	c.want(res, success)
	c.want(c.LinkDestroy(c.call, l), success)
	m := c.load(image)
	for _, name := range []string{"store", "none"} {
		_, res := c.ModuleGetFunction(c.call, m, name)
		c.want(res, success)
	}
	if _, size, res := c.ModuleGetGlobal(c.call, m, "table"); res != success || size != 8<<20 {
		t.Errorf("a variable of the second input: %d bytes, result %d", size, res)
	}
	for cut := range image {
		if _, _, _, res := c.ModuleLoadData(c.call, image[:cut], nil, nil, 0, 0); res == success {
			t.Fatalf("the first %d bytes of %d load", cut, len(image))
		}
	}
	binary.LittleEndian.PutUint64(image[16:], 1<<63) // of the first input
	_, _, _, res = c.ModuleLoadData(c.call, image, nil, nil, 0, 0)
	c.want(res, errInvalidImage)
}

func FuzzUnits(f *testing.F) {
	f.Add(linkedImage([]ptx.Unit{{Source: store}, {Source: big}}))
	f.Add(fatbintest.Image(f, fatbintest.LZ4, fatbintest.Entry{Kind: fatbintest.PTX, Arch: 70, Data: store}))
	f.Add(store)
	f.Fuzz(func(t *testing.T, image []byte) {
		list, err := units(image)
		if (err == nil) != (len(list) > 0) {
			t.Fatalf("%d units, %v", len(list), err)
		}
		if err == nil {
			ptx.ParseUnits(ptx.Options{}, list...)
		}
	})
}

// TestOutput overflows the buffer of what kernels print.
func TestOutput(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	o := &output{p: c.Process, limit: 100}
	for i := range 50 {
		o.print(bytes.Repeat([]byte{byte(i)}, 16))
	}
	if got := firsts(o.flush()); !bytes.Equal(got, []byte{44, 45, 46, 47, 48, 49}) {
		t.Errorf("of 50 records %v are left", got)
	}
	o.print(make([]byte, 101))
	if got := o.flush(); len(got) != 0 || o.size != 0 {
		t.Errorf("a record that does not fit: %d records, %d bytes", len(got), o.size)
	}
	if n := c.unread.Load(); n != 6 {
		t.Errorf("%d records are unread, want those that were taken", n)
	}
	c.want(c.CtxSetLimit(c.call, wire.CU_LIMIT_PRINTF_FIFO_SIZE, 1<<16), success)
	if got, res := c.CtxGetLimit(c.call, wire.CU_LIMIT_PRINTF_FIFO_SIZE); res != success || got != 1<<16 {
		t.Errorf("limit %d, result %d", got, res)
	}
}

// firsts is the first byte of each record.
func firsts(records [][]byte) (first []byte) {
	for _, r := range records {
		first = append(first, r[0])
	}
	return first
}
