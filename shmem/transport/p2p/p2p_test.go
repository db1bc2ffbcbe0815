package p2p

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/transport"
)

const heapBytes, pieceBytes = 8 << 20, 2 << 20

// pair makes two connected transports of host memory in this process, each with a reserved heap.
func pair(t *testing.T) (ts [2]*Transport, bases [2]uint64) {
	t.Helper()
	var peers []transport.PeerInfo
	for pe := range ts {
		p := transport.ThisProcess()
		p.PE, p.Kind = uint32(pe), transport.Host
		peers = append(peers, p)
	}
	for pe := range ts {
		ts[pe] = New(Config{Self: peers[pe], HeapBytes: heapBytes, Timeout: 5 * time.Second})
		var err error
		if bases[pe], err = ReserveHost(heapBytes); err != nil {
			t.Fatal(err)
		}
		if c := ts[pe].Capability(peers[pe], peers[1-pe]); c&transport.AMO == 0 || c&transport.RMA != transport.RMA || c&transport.GPUInitiated != 0 {
			t.Errorf("capability %v", c)
		}
		if _, err := ts[pe].Endpoints(peers, []transport.Capability{transport.RMA, transport.RMA}); err != nil {
			t.Fatal(err)
		}
		if err := ts[pe].Connect(nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(ts[pe].Close(), ts[pe].Close(), ReleaseHost(bases[pe], heapBytes)); err != nil {
				t.Error(err)
			}
		})
	}
	return ts, bases
}

// piece makes a piece of heap.
func piece(t *testing.T, base uint64, index int) transport.Chunk {
	t.Helper()
	fd, err := CreateHost(pieceBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	at := base + uint64(index)*pieceBytes
	if err := MapHost(at, pieceBytes, fd); err != nil {
		t.Fatal(err)
	}
	return transport.Chunk{Index: index, Offset: uint64(index) * pieceBytes, Bytes: pieceBytes, Address: at, Kind: transport.Host, FD: fd}
}

func TestAttach(t *testing.T) {
	ts, bases := pair(t)
	for _, index := range []int{2, 0} { // any order, with holes
		blobs := make([][]byte, 2)
		for pe := range ts {
			c := piece(t, bases[pe], index)
			cuda.Bytes(c.Address, 8)[5] = byte(10*index + pe + 1)
			var err error
			if blobs[pe], err = ts[pe].Register(c); err != nil {
				t.Fatal(err)
			}
		}
		for pe := range ts {
			if err := ts[pe].Attach(index, blobs); err != nil {
				t.Fatal(err)
			}
			base, atomic := ts[pe].Address(1 - pe)
			if got := cuda.Bytes(base+uint64(index)*pieceBytes, 8)[5]; got != byte(10*index+1-pe+1) || !atomic {
				t.Errorf("PE %d sees %d in chunk %d, atomic %v", pe, got, index, atomic)
			}
		}
	}
	if base, _ := ts[0].Address(7); base != 0 {
		t.Error("an address of no PE")
	}
	for pe := range ts {
		if err := errors.Join(ts[pe].Detach(2), ts[pe].Detach(2)); err != nil {
			t.Error(err)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	// The own two of each PE, and the other's chunk 0 at each.
	if n := strings.Count(string(maps), "lshmem-heap"); n != 6 {
		t.Errorf("%d mappings of heaps, want 6", n)
	}
}

// TestAttachErrors: what does not fit is refused, and leaves nothing mapped.
func TestAttachErrors(t *testing.T) {
	ts, bases := pair(t)
	blobs := make([][]byte, 2)
	for pe := range ts {
		var err error
		if blobs[pe], err = ts[pe].Register(piece(t, bases[pe], 0)); err != nil {
			t.Fatal(err)
		}
	}
	good, err := parseBlob(blobs[1])
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(b *blob)) []byte {
		b := good
		f(&b)
		return b.append(nil)
	}
	for name, bad := range map[string][]byte{
		"nothing":       nil,
		"short":         blobs[1][:40],
		"longer":        append(bytes.Clone(blobs[1]), 0),
		"other bytes":   change(func(b *blob) { b.bytes *= 2 }),
		"other offset":  change(func(b *blob) { b.offset = pieceBytes }),
		"other kind":    change(func(b *blob) { b.kind = uint32(transport.Device) }),
		"wrong token":   change(func(b *blob) { b.token[3]++ }),
		"no socket":     change(func(b *blob) { b.socket = "@lshmem-nobody" }),
		"a file's name": change(func(b *blob) { b.socket = "/tmp/x" }),
	} {
		if err := ts[0].Attach(0, [][]byte{blobs[0], bad}); err == nil || !strings.Contains(err.Error(), "PE 1") {
			t.Errorf("%s: %v", name, err)
		}
		if len(ts[0].attached[0]) != 0 {
			t.Errorf("%s: something is attached", name)
		}
	}
	if err := ts[0].Attach(0, blobs); err != nil {
		t.Error(err)
	}
	if err := ts[1].Attach(5, blobs); err == nil {
		t.Error("a chunk that was not registered was attached")
	}
	// Once detached, the token is worth nothing.
	if err := ts[1].Detach(0); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(good.socket, good.token, time.Second); err == nil || !strings.Contains(err.Error(), "no such piece") {
		t.Errorf("an old token: %v", err)
	}
}

// TestStoppedPeer: a peer that takes the connection and does not answer is an error of that PE, and a timeout.
func TestStoppedPeer(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@lshmem-test-" + t.Name() + fmt.Sprint(os.Getpid()), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	name := "@" + strings.TrimPrefix(l.Addr().String(), "@")
	if _, err := fetch(name, [tokenBytes]byte{}, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v is no timeout", err)
	}
	// Without one it lasts until the peer is gone.
	done := make(chan error, 1)
	go func() {
		_, err := fetch(name, [tokenBytes]byte{}, 0)
		done <- err
	}()
	for range 2 { // the connection of the first is still there
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		select {
		case err := <-done:
			t.Fatalf("it ended with %v", err)
		default:
		}
		c.CloseWrite()
	}
	if err := <-done; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the peer went away: %v", err)
	}
}

// TestServer: who connects and says nothing holds nobody up, and half a token gets nothing.
func TestServer(t *testing.T) {
	s, err := serve(200 * time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	token := [tokenBytes]byte{1, 2, 3}
	s.offer(token, func() (int, error) { return unix.Dup(int(f.Fd())) })
	silent, err := net.Dial("unix", s.name)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	silent.Write(token[:5])
	fd, err := fetch(s.name, token, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the descriptor would be inherited: %#x, %v", flags, err)
	}
	unix.Close(fd)
	if n, err := silent.Read(make([]byte, 8)); n != 0 || err != io.EOF {
		t.Errorf("who said nothing got %d bytes, %v", n, err)
	}
	s.offer(token, func() (int, error) { return -1, errors.New("out of everything") })
	if _, err := fetch(s.name, token, time.Second); err == nil || !strings.Contains(err.Error(), "out of everything") {
		t.Errorf("%v", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if _, err := fetch(s.name, token, time.Second); err == nil {
		t.Error("it answers after its end")
	}
}

// TestFiles: only memory files that keep their size are mapped.
func TestFiles(t *testing.T) {
	base, err := ReserveHost(heapBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer ReleaseHost(base, heapBytes)
	loose, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(loose)
	if err := unix.Ftruncate(loose, pieceBytes); err != nil {
		t.Fatal(err)
	}
	if err := MapHost(base, pieceBytes, loose); err == nil {
		t.Error("a file that can shrink was mapped")
	}
	small, err := CreateHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(small)
	if err := MapHost(base, pieceBytes, small); err == nil {
		t.Error("a file that is too small was mapped")
	}
}

func TestCapability(t *testing.T) {
	self := transport.ThisProcess()
	self.Kind = transport.Host
	tr := New(Config{Self: self})
	for name, change := range map[string]func(p *transport.PeerInfo){
		"another machine":           func(p *transport.PeerInfo) { p.Host++ },
		"another user":              func(p *transport.PeerInfo) { p.UID++ },
		"another network namespace": func(p *transport.PeerInfo) { p.Network++ },
		"another kind":              func(p *transport.PeerInfo) { p.Kind = transport.Device },
	} {
		p := self
		p.PE = 1
		change(&p)
		if c := tr.Capability(self, p); c != 0 {
			t.Errorf("%s: %v", name, c)
		}
	}
	gpu := self
	gpu.PE, gpu.Ordinal = 1, 0
	if c := tr.Capability(self, gpu); c&transport.Atomics != 0 || c&transport.RMA == 0 {
		t.Errorf("host memory that a GPU uses too: %v", c)
	}
}

func FuzzBlob(f *testing.F) {
	f.Add((&blob{kind: 1, index: 2, socket: "@x"}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		parsed, err := parseBlob(b)
		if err == nil && !bytes.Equal(parsed.append(nil), b) {
			t.Errorf("%+v is not what it was read from", parsed)
		}
	})
}
