package bootstrap

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// What PE and root say to each other. Numbers are little-endian.
//
// First, both ways, the greeting: magic u32, version u32, nonce of 16 bytes; the root, which answers, adds a proof of
// 32 bytes that it knows the secret. From then on frames, each with a tag:
//
//	length u32 (of payload)  kind u8  op u8  0 u16  sequence u64  payload  tag 16
//
// The tag is HMAC-SHA256, cut to 16 bytes, over a count of the frames before and the frame, under a key for this
// connection and direction. So the PE's first frame proves that it knows the secret too.
const (
	magic        = 0x4d48534c // "LSHM"
	nonceSize    = 16
	greetingSize = 8 + nonceSize
	proofSize    = sha256.Size
	headerSize   = 16
	tagSize      = 16
)

// maxRound is the most bytes that all PEs together may bring to one collective: the root holds them.
const maxRound = 1 << 30

// Bounds of payloads: of a frame before the sender is known to be one of us, of one from the root, of one to it.
const (
	maxJoin   = 512
	maxText   = 4096
	maxResult = maxRound + 4*(MaxPEs+1)
	maxCall   = MaxPayload + 4*(MaxPEs+2)
)

// kind is what a frame says.
type kind uint8

const (
	kindJoin    kind = iota + 1 // up: join
	kindAccept                  // down: u32, the silence that the root endures, in milliseconds; 0 is any
	kindBegin                   // down: all have joined
	kindCall                    // up: u32 timeout in milliseconds, parts
	kindResult                  // down: parts
	kindAbort                   // up: i32 code, text
	kindEnd                     // down: ending
	kindBye                     // up: this PE leaves. Down: the root does
	kindBeat                    // both: nothing, but somebody is there
	kindRefused                 // down: text
)

// op is a collective.
type op uint8

const (
	opAllGather op = iota + 1
	opAllToAll
	opBarrier
)

func (o op) String() string {
	switch o {
	case opAllGather:
		return "allgather"
	case opAllToAll:
		return "alltoall"
	case opBarrier:
		return "barrier"
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// frame is one message.
type frame struct {
	kind    kind
	op      op
	seq     uint64
	payload []byte
}

var errTag = errors.New("a message is not from where it claims to be (its tag is wrong)")

// sealer tags the frames of one direction.
type sealer struct {
	mac   hash.Hash
	count uint64
	sum   [sha256.Size]byte
}

func newSealer(secret []byte, label string, pe, root [nonceSize]byte) *sealer {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(label))
	m.Write(pe[:])
	m.Write(root[:])
	return &sealer{mac: hmac.New(sha256.New, m.Sum(nil))}
}

// tag is that of the next frame.
func (s *sealer) tag(header, payload []byte) []byte {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], s.count)
	s.count++
	s.mac.Reset()
	s.mac.Write(n[:])
	s.mac.Write(header)
	s.mac.Write(payload)
	return s.mac.Sum(s.sum[:0])[:tagSize]
}

// proof is what shows a PE that the root knows the secret.
func proof(secret []byte, pe, root [nonceSize]byte) []byte {
	m := hmac.New(sha256.New, secret)
	fmt.Fprintf(m, "lshmem root %d", idVersion)
	m.Write(pe[:])
	m.Write(root[:])
	return m.Sum(nil)
}

// link is an authenticated connection. One goroutine may receive; any may send.
type link struct {
	conn net.Conn
	r    *bufio.Reader
	in   *sealer

	sendMu sync.Mutex
	out    *sealer // sendMu
	buffer []byte  // sendMu
}

// small is up to what size a frame is copied together so that it is one write and, mostly, one packet.
const small = 64 << 10

// send sends one frame before the deadline. After an error the connection is of no use.
func (l *link) send(f frame, deadline time.Time) error {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	var header [headerSize]byte
	putHeader(header[:], f)
	tag := l.out.tag(header[:], f.payload)
	if err := l.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	if len(f.payload) > small {
		buffers := net.Buffers{header[:], f.payload, tag}
		_, err := buffers.WriteTo(l.conn)
		return err
	}
	b := append(l.buffer[:0], header[:]...)
	b = append(b, f.payload...)
	b = append(b, tag...)
	l.buffer = b
	_, err := l.conn.Write(b)
	return err
}

// receive returns the next frame, whose payload is at most limit bytes.
func (l *link) receive(limit int) (frame, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(l.r, header[:]); err != nil {
		return frame{}, err
	}
	f, size, err := parseHeader(header[:], limit)
	if err != nil {
		return frame{}, err
	}
	if f.payload, err = readPayload(l.r, size); err != nil {
		return frame{}, unexpected(err)
	}
	var tag [tagSize]byte
	if _, err := io.ReadFull(l.r, tag[:]); err != nil {
		return frame{}, unexpected(err)
	}
	if !hmac.Equal(tag[:], l.in.tag(header[:], f.payload)) {
		return frame{}, errTag
	}
	return f, nil
}

// unexpected is err inside a message, where an end is too early.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readPayload reads size bytes. Memory grows with what has come, not with what was announced.
func readPayload(r io.Reader, size int) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	payload := make([]byte, 0, min(size, small))
	for len(payload) < size {
		payload = slices.Grow(payload, min(size-len(payload), max(len(payload), small)))
		part := payload[len(payload):min(cap(payload), size)]
		n, err := io.ReadFull(r, part)
		payload = payload[:len(payload)+n]
		if err != nil {
			return nil, err
		}
	}
	return payload, nil
}

func putHeader(b []byte, f frame) {
	binary.LittleEndian.PutUint32(b, uint32(len(f.payload)))
	b[4], b[5], b[6], b[7] = byte(f.kind), byte(f.op), 0, 0
	binary.LittleEndian.PutUint64(b[8:], f.seq)
}

// parseHeader returns a frame without its payload, and that's size.
func parseHeader(b []byte, limit int) (frame, int, error) {
	f := frame{kind: kind(b[4]), op: op(b[5]), seq: binary.LittleEndian.Uint64(b[8:])}
	if f.kind < kindJoin || f.kind > kindRefused || b[6] != 0 || b[7] != 0 {
		return frame{}, 0, fmt.Errorf("a message of unknown kind %d", f.kind)
	}
	if f.kind == kindCall || f.kind == kindResult {
		if f.op < opAllGather || f.op > opBarrier {
			return frame{}, 0, fmt.Errorf("a message about unknown collective %d", f.op)
		}
	} else {
		limit = min(limit, maxText)
	}
	size := binary.LittleEndian.Uint32(b)
	if uint64(size) > uint64(limit) {
		return frame{}, 0, fmt.Errorf("a message of %d bytes; at most %d are allowed", size, limit)
	}
	return f, int(size), nil
}

// putGreeting returns a greeting.
func putGreeting(nonce [nonceSize]byte) []byte {
	b := make([]byte, 8, greetingSize+proofSize)
	binary.LittleEndian.PutUint32(b, magic)
	binary.LittleEndian.PutUint32(b[4:], idVersion)
	return append(b, nonce[:]...)
}

// versionError says that the other side is of another lshmem.
type versionError struct{ theirs uint32 }

func (e *versionError) Error() string {
	return fmt.Sprintf("the other side speaks version %d of lshmem's bootstrap, this one %d; use the same lshmem on all machines",
		e.theirs, idVersion)
}

func (e *versionError) Is(target error) bool { return target == ErrRefused }

// parseGreeting checks the first eight bytes, which are the same in all versions.
func parseGreeting(b []byte) error {
	if len(b) < 8 || binary.LittleEndian.Uint32(b) != magic {
		return errors.New("what answers is not lshmem's bootstrap")
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != idVersion {
		return &versionError{v}
	}
	return nil
}

// join is what a PE says of itself.
type join struct {
	rank, size uint32
	instance   uint32
	timeout    uint32 // milliseconds that it waits for all others
	silence    uint32 // milliseconds of silence of the root that it endures; 0 is any
	process    self
	host       string
}

// joinSize is that of a join without the host.
const joinSize = 40

func (j *join) marshal() []byte {
	b := make([]byte, 0, 64)
	for _, v := range []uint32{j.rank, j.size, j.instance, j.timeout, j.silence, j.process.pid} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = binary.LittleEndian.AppendUint64(b, j.process.start)
	b = binary.LittleEndian.AppendUint64(b, j.process.namespace)
	return append(b, j.host...)
}

func parseJoin(b []byte) (join, error) {
	if len(b) < joinSize || len(b) > maxJoin {
		return join{}, fmt.Errorf("a join of %d bytes", len(b))
	}
	u := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	j := join{u(0), u(1), u(2), u(3), u(4), self{u(5), binary.LittleEndian.Uint64(b[24:]), binary.LittleEndian.Uint64(b[32:])}, string(b[joinSize:])}
	if j.size == 0 || j.size > MaxPEs || j.rank >= j.size {
		return join{}, fmt.Errorf("PE %d of %d; a job has 1 to %d PEs, numbered from 0", j.rank, j.size, MaxPEs)
	}
	return j, nil
}

// putParts appends parts: count u32, and of each length u32 and bytes.
func putParts(b []byte, parts [][]byte) []byte {
	n := 4
	for _, p := range parts {
		n += 4 + len(p)
	}
	b = slices.Grow(b, n)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(parts)))
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

// parseParts reads what putParts wrote, of which b must have want and nothing else. The parts are within b.
func parseParts(b []byte, want int) ([][]byte, error) {
	if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) != uint64(want) {
		return nil, fmt.Errorf("a collective's message does not have %d parts", want)
	}
	b = b[4:]
	if len(b) < 4*want {
		return nil, fmt.Errorf("a collective's message of %d bytes for %d parts", len(b), want)
	}
	parts := make([][]byte, want)
	for i := range parts {
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return nil, fmt.Errorf("part %d of a collective's message goes beyond its end", i)
		}
		n := int(binary.LittleEndian.Uint32(b))
		parts[i] = b[4 : 4+n : 4+n]
		b = b[4+n:]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("%d bytes after a collective's parts", len(b))
	}
	return parts, nil
}

// wantParts is how many parts a PE brings.
func (o op) wantParts(size int) int {
	switch o {
	case opAllGather:
		return 1
	case opAllToAll:
		return size
	}
	return 0
}

// wantResults is how many parts a PE gets.
func (o op) wantResults(size int) int {
	if o == opBarrier {
		return 0
	}
	return size
}

func putCall(timeout time.Duration, parts [][]byte) []byte {
	return putParts(putMilliseconds(timeout), parts)
}

// parseCall reads a call of o in a job of size PEs.
func parseCall(b []byte, o op, size int) (time.Duration, [][]byte, error) {
	if len(b) < 4 {
		return 0, nil, fmt.Errorf("a call of %d bytes", len(b))
	}
	parts, err := parseParts(b[4:], o.wantParts(size))
	return time.Duration(binary.LittleEndian.Uint32(b)) * time.Millisecond, parts, err
}

// milliseconds is d rounded up, so that something is not nothing.
func milliseconds(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min((d+time.Millisecond-1)/time.Millisecond, 1<<32-1))
}

func putMilliseconds(d time.Duration) []byte {
	return binary.LittleEndian.AppendUint32(nil, milliseconds(d))
}

func parseMilliseconds(b []byte) (time.Duration, error) {
	if len(b) != 4 {
		return 0, fmt.Errorf("a time of %d bytes", len(b))
	}
	return time.Duration(binary.LittleEndian.Uint32(b)) * time.Millisecond, nil
}

func putAbort(code int, why string) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(int32(code))), short(why)...)
}

func parseAbort(b []byte) (int, string, error) {
	if len(b) < 4 {
		return 0, "", fmt.Errorf("an abort of %d bytes", len(b))
	}
	return int(int32(binary.LittleEndian.Uint32(b))), string(b[4:]), nil
}

// short is text cut to what fits into a frame.
func short(text string) string {
	return text[:min(len(text), maxText-64)]
}

// endKind is why a job ended.
type endKind uint8

const (
	endLost     endKind = iota + 1 // pe died
	endAbort                       // pe aborted
	endMismatch                    // pe did not call what other did
	endTimeout                     // pe, or several, did not come
	endBad                         // pe said what cannot be
)

// ending is the end of a job that did not end in order.
type ending struct {
	kind      endKind
	pe, other int
	code      int
	text      string
}

func (e *ending) marshal() []byte {
	b := []byte{byte(e.kind)}
	for _, v := range []int{e.pe, e.other, e.code} {
		b = binary.LittleEndian.AppendUint32(b, uint32(int32(v)))
	}
	return append(b, short(e.text)...)
}

func parseEnding(b []byte) (*ending, error) {
	if len(b) < 13 || b[0] < byte(endLost) || b[0] > byte(endBad) {
		return nil, errors.New("an end without a known reason")
	}
	i := func(at int) int { return int(int32(binary.LittleEndian.Uint32(b[at:]))) }
	return &ending{endKind(b[0]), i(1), i(5), i(9), string(b[13:])}, nil
}

// err is the ending as callers see it.
func (e *ending) err() error {
	switch e.kind {
	case endLost:
		return &LostError{e.pe, errors.New(e.text)}
	case endAbort:
		return &AbortError{e.pe, e.code, e.text}
	case endMismatch:
		return &MismatchError{e.pe, e.other, e.text}
	case endTimeout:
		return &timeoutError{e.text}
	}
	return errors.New(e.text)
}

// timeoutError says who is missing.
type timeoutError struct{ text string }

func (e *timeoutError) Error() string        { return e.text }
func (e *timeoutError) Is(target error) bool { return target == ErrTimeout }
func (e *timeoutError) Timeout() bool        { return true }
