package hca

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// accept serves connections until the listener is closed.
func (t *TCP) accept() {
	defer t.wait.Done()
	for {
		conn, err := t.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			time.Sleep(10 * time.Millisecond)
			continue
		}
		t.mu.Lock()
		if t.closed {
			t.mu.Unlock()
			_ = conn.Close()
			continue
		}
		if len(t.strangers) >= maxStrangers { // the oldest is dropped
			_ = t.strangers[0].Close()
			t.strangers = slices.Delete(t.strangers, 0, 1)
		}
		t.strangers = append(t.strangers, conn)
		t.wait.Add(1)
		t.mu.Unlock()
		go func() {
			defer t.wait.Done()
			t.serve(conn)
			_ = conn.Close()
			t.mu.Lock()
			t.known(conn)
			delete(t.servers, conn)
			t.mu.Unlock()
		}()
	}
}

// known takes a connection out of those that have not shown that they know a token. mu is held.
func (t *TCP) known(conn net.Conn) {
	if i := slices.Index(t.strangers, conn); i >= 0 {
		t.strangers = slices.Delete(t.strangers, i, i+1)
	}
}

// admit makes a connection that was welcomed one of a device's.
func (t *TCP) admit(conn net.Conn, d *Device, number uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known(conn)
	if t.closed || t.devices[number] != d { // meanwhile
		return ErrClosed
	}
	if len(t.servers) >= maxConns {
		return fmt.Errorf("there are %d connections already", maxConns)
	}
	t.servers[conn] = number
	return nil
}

// serve answers one connection.
func (t *TCP) serve(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(handshakeFor))
	d, number, err := t.welcome(conn)
	if err != nil {
		return // strangers get no answer and no line in a log
	}
	if err := t.admit(conn, d, number); err != nil {
		d.config.Logf("hca: connection of %v: %v", conn.RemoteAddr(), err)
		return
	}
	_ = conn.SetDeadline(time.Time{})
	s := server{device: d, streams: map[uint32]*stream{}, in: bufio.NewReaderSize(conn, 128<<10), out: bufio.NewWriterSize(conn, 128<<10),
		buffer: make([]byte, partBytes)}
	for err == nil {
		err = s.request()
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		d.config.Logf("hca: requests of %v: %v", conn.RemoteAddr(), err)
	}
}

// welcome is the server's side of the handshake.
func (t *TCP) welcome(conn net.Conn) (d *Device, number uint64, err error) {
	var hello [len(tcpMagic) + 8 + nonceBytes]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return nil, 0, err
	}
	if string(hello[:len(tcpMagic)]) != tcpMagic {
		return nil, 0, errors.New("not the protocol")
	}
	number = binary.BigEndian.Uint64(hello[len(tcpMagic):])
	t.mu.Lock()
	d = t.devices[number]
	t.mu.Unlock()
	if d == nil {
		return nil, 0, ErrQueue
	}
	var nonces [2 * nonceBytes]byte
	copy(nonces[:], hello[len(tcpMagic)+8:])
	if _, err := rand.Read(nonces[nonceBytes:]); err != nil {
		return nil, 0, err
	}
	if _, err := conn.Write(append(nonces[nonceBytes:], proof(d.token, "server", nonces[:], number)...)); err != nil {
		return nil, 0, err
	}
	var theirs [sha256.Size]byte
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return nil, 0, err
	}
	if !hmac.Equal(theirs[:], proof(d.token, "client", nonces[:], number)) {
		return nil, 0, ErrToken
	}
	return d, number, nil
}

// server is the responder's end of a connection.
type server struct {
	device  *Device
	streams map[uint32]*stream
	in      *bufio.Reader
	out     *bufio.Writer
	buffer  []byte
	unsaid  bool // the last request is done and not answered
	last    uint32
	count   int // of those not answered
}

// stream is one queue of the other side.
type stream struct {
	responder
	failed bool
}

// request carries out the next request. Errors are of the connection; those of a request are its answer.
func (s *server) request() error {
	if s.in.Buffered() < requestBytes || s.count >= maxInFlight/4 {
		if err := s.say(); err != nil {
			return err
		}
	}
	b, err := s.in.Peek(requestBytes)
	if err != nil {
		return err
	}
	op, flags, number, key := b[0], b[1], binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	q := request{address: binary.BigEndian.Uint64(b[16:]), total: uint64(binary.BigEndian.Uint32(b[24:])), key: key,
		piece: piece{offset: uint64(binary.BigEndian.Uint32(b[28:])), n: uint64(binary.BigEndian.Uint32(b[12:]))}}
	sequence := binary.BigEndian.Uint32(b[32:])
	_, _ = s.in.Discard(requestBytes)
	if q.n > partBytes {
		return fmt.Errorf("a request for %d bytes, more than %d", q.n, partBytes)
	}
	payload := s.buffer[:0]
	switch op {
	case opWrite:
		payload = s.buffer[:q.n]
	case opAtomic:
		payload = s.buffer[:atomicBytes]
	}
	if _, err := io.ReadFull(s.in, payload); err != nil {
		return err
	}
	switch op {
	case opOpen:
		return s.open(number, key, sequence)
	case opClose:
		delete(s.streams, number)
		return s.done(sequence)
	case opWrite, opRead, opAtomic:
	default:
		return fmt.Errorf("a request of kind %d", op)
	}
	st := s.streams[number]
	if st == nil {
		return fmt.Errorf("a request of stream %d, which is not open", number)
	}
	if st.failed {
		return s.answer(sequence, mlx5.SyndromeFlushed, nil)
	}
	return s.carryOut(st, op, flags, &q, payload, sequence)
}

// open opens a stream to the queue with a key.
func (s *server) open(number, key, sequence uint32) error {
	if s.streams[number] != nil || len(s.streams) >= maxStreams {
		return fmt.Errorf("stream %d is open already, or one of too many", number)
	}
	r, err := s.device.responder(Endpoint{Token: s.device.token, Queue: key})
	if err != nil {
		return s.answer(sequence, mlx5.SyndromeRemoteRequest, nil)
	}
	s.streams[number] = &stream{responder: r}
	return s.answer(sequence, 0, nil)
}

// carryOut does what a request on an open stream wants, and answers it.
func (s *server) carryOut(st *stream, op, flags byte, q *request, payload []byte, sequence uint32) error {
	var syndrome uint8
	result := s.buffer[:0]
	switch op {
	case opWrite:
		syndrome = st.write(q, payload)
	case opRead:
		result = s.buffer[:q.n]
		syndrome = st.read(q, result)
	case opAtomic:
		var old uint64
		old, syndrome = st.atomicBytes(q, flags, payload)
		result = binary.BigEndian.AppendUint64(s.buffer[:0], old)
	}
	switch {
	case syndrome != 0:
		st.failed = true
		return s.answer(sequence, syndrome, nil)
	case op == opWrite:
		return s.done(sequence)
	}
	return s.answer(sequence, 0, result)
}

// atomicBytes carries out an atomic operation that was sent.
func (s *stream) atomicBytes(q *request, flags byte, b []byte) (uint64, uint8) {
	if q.n != 4 && q.n != 8 || q.total != q.n || flags > 1 {
		return 0, mlx5.SyndromeRemoteRequest
	}
	op := mlx5.Atomic{Bytes: int(q.n), Swap: flags == 1}
	v := func(i int) uint64 { return binary.BigEndian.Uint64(b[8*i:]) }
	if op.Swap {
		op.Operand, op.Compare, op.SwapMask, op.CompareMask = v(0), v(1), v(2), v(3)
	} else {
		op.Add, op.Boundary = v(0), v(1)
	}
	return s.atomic(q, &op)
}

// done remembers that a write is done: its answer may be that of a later request.
func (s *server) done(sequence uint32) error {
	s.unsaid, s.last = true, sequence
	s.count++
	return nil
}

// answer answers a request, and all before it.
func (s *server) answer(sequence uint32, syndrome uint8, result []byte) error {
	s.unsaid, s.count = false, 0
	var head [answerBytes]byte
	binary.BigEndian.PutUint32(head[:], sequence)
	head[4] = syndrome
	binary.BigEndian.PutUint32(head[8:], uint32(len(result)))
	if _, err := s.out.Write(head[:]); err != nil {
		return err
	}
	_, err := s.out.Write(result)
	return err
}

// say sends all answers.
func (s *server) say() error {
	if s.unsaid {
		if err := s.answer(s.last, 0, nil); err != nil {
			return err
		}
	}
	return s.out.Flush()
}
