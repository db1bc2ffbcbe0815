package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Client is a management channel to a hardware process, for Go. As long as one is open the process does not end by
// itself. Its methods may be called concurrently.
type Client struct {
	timeout time.Duration

	mu   sync.Mutex
	conn *clientConn // nil after Close, and after a call that failed
}

// Dial opens a management channel to the hardware process that listens on the socket at path. It returns when the
// process has answered, or with an error after timeout; so does every call, and all later ones fail then.
func Dial(path string, timeout time.Duration) (*Client, error) {
	conn, _, err := dial(path, kindManagement, [16]byte{}, 0, timeout)
	if err != nil {
		return nil, err
	}
	return &Client{timeout: timeout, conn: conn}, nil
}

// Close ends the channel.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil
	}
	err := c.conn.close()
	c.conn = nil
	return err
}

// Devices returns the devices in the order of their ordinals.
func (c *Client) Devices() ([]Device, error) {
	count, err := manage(c, "DeviceCount", func(d *decoder) uint32 { return uint32(d.u64()) })
	if err != nil {
		return nil, err
	}
	devices := make([]Device, 0, min(count, 64))
	for i := range count {
		d, err := manage(c, "DeviceInfo", getStruct[Device], uint64(i))
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// Processes returns the processes that hold memory of device i or use it.
func (c *Client) Processes(i int) ([]Process, error) {
	const room = 1024
	return manage(c, "DeviceProcesses", getArray[Process], uint64(i), 1, room)
}

// MaxTurns is how many turns Client.Turns returns at most.
const MaxTurns = 1024

// Turns returns turns of device i: those with numbers from since on, in order, and the number to ask from next. A turn
// that is Unfinished is the last one, and is there again the next time. The hardware remembers some thousand turns, and
// leaves out those that it has forgotten. With the largest since there is none, and next is the number of the first
// turn that has not begun. Where processes are confined to parts of the device there are no turns: the error wraps
// errors.ErrUnsupported then.
func (c *Client) Turns(i int, since uint64) (turns []Turn, next uint64, err error) {
	const name = "DeviceTurns"
	a, err := manage(c, name, getTurns, uint64(i), since, 1, MaxTurns)
	if err != nil {
		return nil, 0, err
	}
	if err := a.check(since); err != nil {
		return nil, 0, fmt.Errorf("%s: %w: %w", name, errProtocol, err)
	}
	return a.turns, a.next, nil
}

// turnsAnswer is what DeviceTurns answers.
type turnsAnswer struct {
	turns       []Turn
	count, next uint64
}

func getTurns(d *decoder) turnsAnswer {
	return turnsAnswer{turns: getArray[Turn](d), count: d.u64(), next: d.u64()}
}

// check says what is wrong with an answer, if something is: that turns are in order, do not overlap and have been asked
// for is relied on.
func (a *turnsAnswer) check(since uint64) error {
	n := len(a.turns)
	if a.count != uint64(n) || n > MaxTurns {
		return fmt.Errorf("%d turns came as %d", a.count, n)
	}
	finished, end := uint64(n), uint64(0)
	for k, t := range a.turns {
		if t.PID == 0 || t.PID > math.MaxInt32 || t.Start < end || t.End < t.Start || t.End > math.MaxInt64 {
			return fmt.Errorf("turn %d of %d, after %d ns: %+v", k, n, end, t)
		}
		if t.Unfinished != 0 {
			if finished--; k != n-1 {
				return fmt.Errorf("turn %d of %d is not finished", k, n)
			}
		}
		end = t.End
	}
	// Without any, since may have been beyond all.
	if a.next < finished || n > 0 && a.next-finished < since {
		return fmt.Errorf("of the turns from %d on there came %d before %d", since, finished, a.next)
	}
	return nil
}

// manage makes one call. The last argument of a call with an array result is its address in C; any but 0 will do.
func manage[T any](c *Client, name string, read func(*decoder) T, args ...uint64) (result T, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return result, fmt.Errorf("%s: %w", name, net.ErrClosed)
	}
	payload := make([]byte, 16, 64)
	for _, a := range args {
		payload = binary.LittleEndian.AppendUint64(payload, a)
	}
	if err := c.conn.conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return result, fmt.Errorf("%s: %w", name, err)
	}
	r, d, err := c.conn.call(opOf(name), payload)
	if err != nil {
		// An answer that comes yet would be taken for the next call's.
		c.conn.close()
		c.conn = nil
		return result, fmt.Errorf("%s: %w", name, err)
	}
	if r == CUDA_ERROR_NOT_SUPPORTED {
		return result, fmt.Errorf("%s: the hardware answered %d: %w", name, r, errors.ErrUnsupported)
	}
	if r != CUDA_SUCCESS {
		return result, fmt.Errorf("%s: the hardware answered %d", name, r)
	}
	result = read(d)
	if d.bad {
		return result, fmt.Errorf("%s: %w: short answer", name, errProtocol)
	}
	return result, nil
}

// opOf finds a call's number.
func opOf(name string) uint32 {
	for i := range calls {
		if calls[i].name == name {
			return uint32(i)
		}
	}
	return opReply // no call
}

// clientConn is a client's end of a channel.
type clientConn struct {
	conn *net.UnixConn
	mem  []byte
	tail uint64 // of the request ring
	head uint64 // of the reply ring
	// memory serves Fetch and Store; nil where no call may cause them.
	memory memory
}

// dial opens a channel and returns it with the token of its process.
func dial(path string, kind uint32, token [16]byte, thread uint64, timeout time.Duration) (*clientConn, [16]byte, error) {
	fail := func(err error) (*clientConn, [16]byte, error) {
		return nil, token, fmt.Errorf("connect to the software GPU at %s: %w", path, err)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fail(err)
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		conn.Close()
		return fail(err)
	}
	var hi [helloSize]byte
	binary.LittleEndian.PutUint32(hi[:], magic)
	binary.LittleEndian.PutUint32(hi[4:], kind)
	binary.LittleEndian.PutUint64(hi[8:], protocol)
	copy(hi[16:], token[:])
	binary.LittleEndian.PutUint64(hi[32:], thread)
	if _, err := conn.Write(hi[:]); err != nil {
		conn.Close()
		return fail(err)
	}
	mem, session, err := readWelcome(conn)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
		return fail(err)
	}
	return &clientConn{conn: conn, mem: mem}, session, nil
}

// readWelcome reads the server's welcome, which comes in one piece with the descriptor of the channel's memory, and
// maps the memory.
func readWelcome(conn *net.UnixConn) (mem []byte, token [16]byte, err error) {
	var b [welcomeSize]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(b[:], oob)
	fd := -1
	if oobn > 0 {
		if messages, perr := unix.ParseSocketControlMessage(oob[:oobn]); perr == nil && len(messages) == 1 {
			if fds, perr := unix.ParseUnixRights(&messages[0]); perr == nil && len(fds) == 1 {
				fd = fds[0]
			}
		}
	}
	if fd >= 0 {
		defer unix.Close(fd)
	}
	status := CUresult(int32(binary.LittleEndian.Uint32(b[4:])))
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case n != welcomeSize || binary.LittleEndian.Uint32(b[:]) != magic:
		err = fmt.Errorf("%w: not a welcome", errProtocol)
	case binary.LittleEndian.Uint64(b[8:]) != protocol:
		err = fmt.Errorf("%w: a hardware process of another build", errProtocol)
	case status != CUDA_SUCCESS:
		err = fmt.Errorf("refused with %d", status)
	case fd < 0:
		err = fmt.Errorf("%w: no memory came with the welcome", errProtocol)
	}
	if err != nil {
		return nil, token, err
	}
	mem, err = unix.Mmap(fd, 0, channelSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	copy(token[:], b[16:])
	return mem, token, err
}

func (c *clientConn) close() error {
	err := c.conn.Close()
	unix.Munmap(c.mem)
	return err
}

func (c *clientConn) word64(off int) *uint64 { return (*uint64)(unsafe.Pointer(&c.mem[off])) }
func (c *clientConn) word32(off int) *uint32 { return (*uint32)(unsafe.Pointer(&c.mem[off])) }

// publish sends a record.
func (c *clientConn) publish(op uint32, payload []byte) error {
	size := uint64(8 + len(payload))
	if size > maxRecord || size%8 != 0 {
		return fmt.Errorf("%w: request of %d bytes", errProtocol, size)
	}
	at := c.tail % ringSize
	if ringSize-at < maxRecord {
		binary.LittleEndian.PutUint32(c.mem[requestStart+at:], uint32(ringSize-at))
		binary.LittleEndian.PutUint32(c.mem[requestStart+at+4:], opPad)
		c.tail += ringSize - at
		at = 0
	}
	copy(c.mem[requestStart+at+8:], payload)
	binary.LittleEndian.PutUint32(c.mem[requestStart+at:], uint32(size))
	binary.LittleEndian.PutUint32(c.mem[requestStart+at+4:], op)
	c.tail += size
	atomic.SwapUint64(c.word64(requestCtl), c.tail) // a full barrier: see channel.send
	if atomic.LoadUint32(c.word32(requestCtl+128)) != 0 {
		if _, err := c.conn.Write([]byte{1}); err != nil {
			return err
		}
	}
	return nil
}

// next returns the server's next record.
func (c *clientConn) next() (op uint32, payload []byte, err error) {
	for {
		sleeping, tail := c.word32(replyCtl+128), c.word64(replyCtl)
		for atomic.LoadUint64(tail) == c.head {
			atomic.SwapUint32(sleeping, 1)
			if atomic.LoadUint64(tail) == c.head {
				var bells [64]byte
				if _, err := c.conn.Read(bells[:]); err != nil {
					return 0, nil, err
				}
			}
			atomic.StoreUint32(sleeping, 0)
		}
		at := replyStart + c.head%ringSize
		size := binary.LittleEndian.Uint32(c.mem[at:])
		op = binary.LittleEndian.Uint32(c.mem[at+4:])
		if size < 8 || uint64(size) > replyStart+ringSize-at {
			return 0, nil, fmt.Errorf("%w: reply of %d bytes", errProtocol, size)
		}
		payload = append([]byte(nil), c.mem[at+8:at+uint64(size)]...)
		c.head += uint64(size)
		atomic.StoreUint64(c.word64(replyCtl+64), c.head)
		if op != opPad {
			return op, payload, nil
		}
	}
}

// call makes one call, whose payload begins with context and flags, and serves what the server asks meanwhile.
func (c *clientConn) call(op uint32, payload []byte) (CUresult, *decoder, error) {
	if err := c.publish(op, payload); err != nil {
		return 0, nil, err
	}
	for {
		op, payload, err := c.next()
		if err != nil {
			return 0, nil, err
		}
		d := &decoder{b: payload}
		switch {
		case op == opReply:
			r := CUresult(int64(d.u64()))
			d.u64()
			return r, d, nil
		case op == opPrint && c.memory != nil:
			n := d.u64()
			if n > bulkSize {
				return 0, nil, fmt.Errorf("%w: %d bytes of bulk data", errProtocol, n)
			}
			if err := c.memory.print(c.mem[bulkStart : bulkStart+n]); err != nil {
				return 0, nil, err
			}
			if err := c.publish(opDone, nil); err != nil {
				return 0, nil, err
			}
		case (op == opFetch || op == opStore) && c.memory != nil:
			addr, n := HostAddr(d.u64()), d.u64()
			if n > bulkSize {
				return 0, nil, fmt.Errorf("%w: %d bytes of bulk data", errProtocol, n)
			}
			if op == opFetch {
				err = c.memory.read(addr, c.mem[bulkStart:bulkStart+n])
			} else {
				err = c.memory.write(addr, c.mem[bulkStart:bulkStart+n])
			}
			if err != nil {
				return 0, nil, err
			}
			if err := c.publish(opDone, nil); err != nil {
				return 0, nil, err
			}
		default:
			return 0, nil, fmt.Errorf("%w: record %#x", errProtocol, op)
		}
	}
}
