package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errProtocol is wrapped by every complaint about what a client sent.
var errProtocol = errors.New("wire: broken protocol")

// maxPendingFiles bounds the descriptors that a client may have sent and that no call has taken.
const maxPendingFiles = 4

// channel is the server's end of one connection. It is used by one goroutine at a time, except for close.
type channel struct {
	conn  *net.UnixConn
	mem   []byte
	head  uint64 // of the request ring
	tail  uint64 // of the reply ring
	files []*os.File
	buf   []byte // the record being decoded, a private copy
	// failed is why the client's memory could not be reached: the channel is of no more use.
	failed error

	// Of a watched channel (a service channel, whose end must be seen at once): bell has a value when the socket has
	// delivered something, dead is closed at its end. nil otherwise.
	bell, dead chan struct{}
}

// newChannel makes the shared memory of a connection and returns its descriptor, which the caller closes.
func newChannel(conn *net.UnixConn) (*channel, int, error) {
	fd, err := unix.MemfdCreate("lgpu-sim-channel", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("create channel memory: %w", err)
	}
	if err := unix.Ftruncate(fd, channelSize); err != nil {
		unix.Close(fd)
		return nil, -1, fmt.Errorf("size channel memory: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return nil, -1, fmt.Errorf("seal channel memory: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, channelSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, -1, fmt.Errorf("map channel memory: %w", err)
	}
	return &channel{conn: conn, mem: mem, buf: make([]byte, maxRecord)}, fd, nil
}

// free releases the memory and the descriptors; the channel must not be used any more.
func (ch *channel) free() {
	ch.conn.Close()
	if ch.dead != nil {
		<-ch.dead
	}
	for _, f := range ch.files {
		f.Close()
	}
	ch.files = nil
	unix.Munmap(ch.mem)
	ch.mem = nil
}

func (ch *channel) word64(off int) *uint64 { return (*uint64)(unsafe.Pointer(&ch.mem[off])) }
func (ch *channel) word32(off int) *uint32 { return (*uint32)(unsafe.Pointer(&ch.mem[off])) }

// spins is how often a goroutine yields before it asks for the doorbell.
const spins = 16

// wait blocks until the client has published something. It returns io.EOF when the client is gone.
func (ch *channel) wait() error {
	tail := ch.word64(requestCtl)
	for i := 0; i < spins; i++ {
		if atomic.LoadUint64(tail) != ch.head {
			return nil
		}
		runtime.Gosched()
	}
	sleeping := ch.word32(requestCtl + 128)
	for {
		atomic.SwapUint32(sleeping, 1) // a full barrier, as in send
		if atomic.LoadUint64(tail) != ch.head {
			atomic.StoreUint32(sleeping, 0)
			return nil
		}
		var err error
		if ch.bell == nil {
			err = ch.readSocket()
		} else {
			select {
			case <-ch.bell:
			case <-ch.dead:
				err = io.EOF
			}
		}
		atomic.StoreUint32(sleeping, 0)
		if err != nil {
			return err
		}
	}
}

// watch makes a goroutine of its own read the socket from now on; it ends with the connection.
func (ch *channel) watch() {
	ch.bell, ch.dead = make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ch.dead)
		for ch.readSocket() == nil {
			select {
			case ch.bell <- struct{}{}:
			default:
			}
		}
	}()
}

// readSocket waits for doorbells, and keeps descriptors that come along.
func (ch *channel) readSocket() error {
	var bytes [64]byte
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := ch.conn.ReadMsgUnix(bytes[:], oob)
	if oobn > 0 {
		messages, perr := unix.ParseSocketControlMessage(oob[:oobn])
		if perr != nil {
			return fmt.Errorf("%w: control message: %v", errProtocol, perr)
		}
		for i := range messages {
			fds, perr := unix.ParseUnixRights(&messages[i])
			if perr != nil {
				continue
			}
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				f := os.NewFile(uintptr(fd), "from program")
				if len(ch.files) >= maxPendingFiles {
					f.Close()
					continue
				}
				ch.files = append(ch.files, f)
			}
		}
	}
	if err != nil {
		if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
			return io.EOF
		}
		return err
	}
	if n == 0 {
		return io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 { // a call would wait for it in vain
		return errors.New("wire: no room for a descriptor from a program: too many at once, or the limit of this process")
	}
	return nil
}

// file returns the next descriptor the client sent, waiting for it.
func (ch *channel) file() (*os.File, error) {
	for len(ch.files) == 0 {
		if err := ch.readSocket(); err != nil {
			return nil, err
		}
	}
	f := ch.files[0]
	ch.files = append(ch.files[:0], ch.files[1:]...)
	return f, nil
}

// next returns the next record that the client published. The payload is good until the next call of next.
func (ch *channel) next() (op uint32, payload []byte, err error) {
	for {
		if err := ch.wait(); err != nil {
			return 0, nil, err
		}
		used := atomic.LoadUint64(ch.word64(requestCtl)) - ch.head
		at := int(ch.head % ringSize)
		if used > ringSize || used < 8 {
			return 0, nil, fmt.Errorf("%w: %d bytes in the request ring", errProtocol, used)
		}
		size := atomic.LoadUint32(ch.word32(requestStart + at))
		op = atomic.LoadUint32(ch.word32(requestStart + at + 4))
		limit := uint32(maxRecord)
		if op == opPad {
			limit = ringSize
		}
		if size < 8 || size%8 != 0 || size > limit || uint64(size) > used || at+int(size) > ringSize {
			return 0, nil, fmt.Errorf("%w: record of %d bytes at %d", errProtocol, size, at)
		}
		if op != opPad {
			copy(ch.buf, ch.mem[requestStart+at+8:requestStart+at+int(size)])
		}
		ch.head += uint64(size)
		atomic.StoreUint64(ch.word64(requestCtl+64), ch.head)
		if op != opPad {
			return op, ch.buf[:size-8], nil
		}
	}
}

// send publishes a record. The client takes each before it may cause another, so that there is always room; a client
// that does not is its own loss, and one that reports nonsense loses the connection.
func (ch *channel) send(op uint32, payload []byte) error {
	size := uint64(8 + len(payload))
	if size > maxRecord || size%8 != 0 {
		return fmt.Errorf("%w: reply of %d bytes", errProtocol, size)
	}
	if ch.tail-atomic.LoadUint64(ch.word64(replyCtl+64)) > ringSize-2*maxRecord && ch.tail != atomic.LoadUint64(ch.word64(replyCtl+64)) {
		return fmt.Errorf("%w: replies are not taken", errProtocol)
	}
	if at := ch.tail % ringSize; at+size > ringSize {
		pad := uint32(ringSize - at)
		ch.header(int(at), pad, opPad)
		ch.tail += uint64(pad)
	}
	at := int(ch.tail % ringSize)
	copy(ch.mem[replyStart+at+8:], payload)
	ch.header(at, uint32(size), op)
	ch.tail += size
	// Swap, not Store: the load below must not pass it, and a Store is no full barrier where the race detector stands
	// in for package atomic.
	atomic.SwapUint64(ch.word64(replyCtl), ch.tail)
	if atomic.LoadUint32(ch.word32(replyCtl+128)) != 0 {
		_, err := ch.conn.Write([]byte{1})
		return err
	}
	return nil
}

func (ch *channel) header(at int, size, op uint32) {
	binary.LittleEndian.PutUint32(ch.mem[replyStart+at:], size)
	binary.LittleEndian.PutUint32(ch.mem[replyStart+at+4:], op)
}

// sendFile sends a descriptor over the socket; the record that announces it follows.
func (ch *channel) sendFile(f *os.File) error {
	_, _, err := ch.conn.WriteMsgUnix([]byte{2}, unix.UnixRights(int(f.Fd())), nil)
	return err
}

// ask sends a record and waits for the client's Done.
func (ch *channel) ask(op uint32, words ...uint64) error {
	payload := make([]byte, 0, 8*len(words))
	for _, w := range words {
		payload = binary.LittleEndian.AppendUint64(payload, w)
	}
	if err := ch.send(op, payload); err != nil {
		ch.failed = err
		return err
	}
	got, _, err := ch.next()
	if err == nil && got != opDone {
		err = fmt.Errorf("%w: record %#x instead of an answer", errProtocol, got)
	}
	ch.failed = err
	return err
}

// read copies from the program's memory by way of the bulk area.
func (ch *channel) read(addr HostAddr, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), bulkSize)
		if err := ch.ask(opFetch, uint64(addr), uint64(n)); err != nil {
			return fmt.Errorf("%w (%w)", ErrGone, err)
		}
		copy(p[:n], ch.mem[bulkStart:])
		p, addr = p[n:], addr+HostAddr(n)
	}
	return nil
}

// write copies into the program's memory by way of the bulk area.
func (ch *channel) write(addr HostAddr, p []byte) error {
	for len(p) > 0 {
		n := copy(ch.mem[bulkStart:bulkStart+bulkSize], p)
		if err := ch.ask(opStore, uint64(addr), uint64(n)); err != nil {
			return fmt.Errorf("%w (%w)", ErrGone, err)
		}
		p, addr = p[n:], addr+HostAddr(n)
	}
	return nil
}

// print makes the program write pieces of text, as many at a time as the bulk area holds.
func (ch *channel) print(pieces []byte) error {
	for len(pieces) > 0 {
		n := 0
		for n < len(pieces) {
			size := 16 + (int(binary.LittleEndian.Uint32(pieces[n+4:]))+7)&^7
			if n+size > bulkSize {
				break
			}
			n += size
		}
		copy(ch.mem[bulkStart:bulkStart+bulkSize], pieces[:n])
		if err := ch.ask(opPrint, uint64(n)); err != nil {
			return fmt.Errorf("%w (%w)", ErrGone, err)
		}
		pieces = pieces[n:]
	}
	return nil
}
