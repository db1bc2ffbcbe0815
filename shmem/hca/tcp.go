package hca

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// The protocol. A device has one connection to each device that its queues are connected to, and the answers come back
// on it. Numbers are big-endian.
//
//	client   "lshmemH1" | device number (8) | nonce (32)
//	server   nonce (32) | HMAC-SHA256(token, "server" | client's nonce | server's nonce | device number)
//	client   HMAC-SHA256(token, "client" | …the same)
//	client   requests: requestBytes of head; write: its bytes; atomic: atomicBytes
//	server   answers: answerBytes of head; a read's or an atomic's result
//
// Both sides know the token, which never travels; what travels after is neither encrypted nor signed. The server
// carries requests out in their order. An answer names a request and says that all before it are done, of which only
// writes may have no answer of their own. A stream is a queue's: after a failed request its later ones fail too.
const (
	tcpMagic     = "lshmemH1"
	tcpScheme    = "tcp://"
	requestBytes = 40
	answerBytes  = 12
	atomicBytes  = 32
	nonceBytes   = 32

	outBytes     = 1 << 20 // sent at once
	maxInFlight  = 4096    // requests of a connection
	maxStreams   = 1 << 16 // of a connection
	maxConns     = 4096    // of a fabric, as server
	maxStrangers = 1024    // connections to it that have not shown that they know a token
	handshakeFor = 5 * time.Second
)

// Operations of requests.
const (
	opOpen = 1 + iota
	opClose
	opWrite
	opRead
	opAtomic
)

// TCPConfig is where a TCP fabric is reached.
type TCPConfig struct {
	Listen    string // host:port to listen at; "": any port of every address
	Advertise string // host that others use; "": the one that is listened at, or the host's first address
}

// TCP is a fabric of devices of several processes and hosts. Devices that use the same TCP reach each other without it.
type TCP struct {
	listener net.Listener
	host     string // host:port that others use
	wait     sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	next    uint64
	devices map[uint64]*Device
	clients map[clientKey]*client
	servers map[net.Conn]uint64 // the numbers of the devices whose token they know
	// Connections whose device is not known yet, oldest first.
	strangers []net.Conn
}

type clientKey struct {
	device  *Device
	address string
}

// NewTCP listens. Close ends that.
func NewTCP(config TCPConfig) (*TCP, error) {
	listen := config.Listen
	if listen == "" {
		listen = ":0"
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("hca: listen at %s: %w", listen, err)
	}
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("hca: listen at %s: %w", listen, err)
	}
	host := config.Advertise
	if host == "" {
		host = at.Addr().Unmap().String()
		if at.Addr().IsUnspecified() {
			host = firstAddress()
		}
	}
	t := &TCP{listener: l, host: net.JoinHostPort(host, strconv.Itoa(int(at.Port()))), devices: map[uint64]*Device{},
		clients: map[clientKey]*client{}, servers: map[net.Conn]uint64{}}
	t.wait.Add(1)
	go t.accept()
	return t, nil
}

// firstAddress is the first address of the host that others might reach, or the loopback's.
func firstAddress() string {
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

// Close ends the fabric: connections of all its devices end, and their requests fail.
func (t *TCP) Close() error {
	t.mu.Lock()
	t.closed = true
	conns := slices.Clone(t.strangers)
	for c := range t.servers {
		conns = append(conns, c)
	}
	for _, c := range t.clients {
		conns = append(conns, c.conn)
	}
	t.mu.Unlock()
	err := t.listener.Close()
	for _, c := range conns {
		_ = c.Close()
	}
	t.wait.Wait()
	return err
}

func (t *TCP) attach(d *Device, address string) (string, error) {
	if address != "" {
		return "", fmt.Errorf("hca: a device with address %s: a TCP fabric chooses addresses", address)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return "", fmt.Errorf("hca: TCP fabric: %w", ErrClosed)
	}
	t.next++
	t.devices[t.next] = d
	return fmt.Sprintf("%s%s/%d", tcpScheme, t.host, t.next), nil
}

func (t *TCP) detach(d *Device) {
	t.mu.Lock()
	var number uint64
	for n, o := range t.devices {
		if o == d {
			number = n
			delete(t.devices, n)
		}
	}
	for conn, n := range t.servers {
		if number != 0 && n == number {
			_ = conn.Close()
		}
	}
	var clients []*client
	for key, c := range t.clients {
		if key.device == d {
			delete(t.clients, key)
			clients = append(clients, c)
		}
	}
	t.mu.Unlock()
	for _, c := range clients {
		_ = c.conn.Close()
		<-c.done
	}
}

// parseAddress takes an address of a device apart.
func parseAddress(address string) (host string, number uint64, err error) {
	rest, ok := strings.CutPrefix(address, tcpScheme)
	if !ok {
		return "", 0, errNotHere
	}
	host, id, ok := strings.Cut(rest, "/")
	if !ok {
		return "", 0, fmt.Errorf("%w: no device in %q", ErrEndpoint, address)
	}
	if number, err = strconv.ParseUint(id, 10, 64); err != nil {
		return "", 0, fmt.Errorf("%w: device in %q: %w", ErrEndpoint, address, err)
	}
	return host, number, nil
}

func (t *TCP) dial(ctx context.Context, q *Queue, remote Endpoint) (link, error) {
	host, number, err := parseAddress(remote.Address)
	if err != nil {
		return nil, err
	}
	if host == t.host {
		t.mu.Lock()
		d := t.devices[number]
		t.mu.Unlock()
		if d == nil {
			return nil, ErrQueue
		}
		r, err := d.responder(remote)
		if err != nil {
			return nil, err
		}
		return &localLink{queue: q, responder: r}, nil
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		c, err := t.client(ctx, q.device, host, number, remote)
		if err != nil {
			return nil, err
		}
		l, err := c.open(ctx, q, remote.Queue)
		if !errors.Is(err, errEnded) {
			return l, err
		}
		select { // the other side may have given it up for a newer one before it knew whose it is
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// Pauses between two attempts to reach a device.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// errEnded is that of a stream whose connection ended while it was opened.
var errEnded = errors.New("the connection has ended")

// client is the connection of a device to the one at the remote address, made if there is none.
func (t *TCP) client(ctx context.Context, d *Device, host string, number uint64, remote Endpoint) (*client, error) {
	key := clientKey{d, remote.Address}
	t.mu.Lock()
	c := t.clients[key]
	t.mu.Unlock()
	if c != nil && !c.dead() {
		return c, nil
	}
	conn, err := reach(ctx, host, number, remote.Token)
	if err != nil {
		return nil, err
	}
	c = newClient(d, conn)
	t.mu.Lock()
	defer t.mu.Unlock()
	if other := t.clients[key]; t.closed || other != nil && !other.dead() {
		_ = conn.Close()
		if t.closed {
			return nil, ErrClosed
		}
		return other, nil
	}
	t.clients[key] = c
	c.start()
	return c, nil
}

// reach connects to a device and greets it, again and again until ctx ends: the other side may be about to listen, or
// strangers so many that it gave this connection up for a newer one. A wrong token is final.
func reach(ctx context.Context, host string, number uint64, token Token) (net.Conn, error) {
	var last error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
		if err == nil {
			if err = greetUntil(ctx, conn, number, token); err == nil {
				return conn, nil
			}
			_ = conn.Close()
		}
		if errors.Is(err, ErrToken) {
			return nil, err
		}
		if last == nil || ctx.Err() == nil { // at the end an attempt only says that there is no more time
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-time.After(pause):
		}
	}
}

// greetUntil is greet that ends with ctx.
func greetUntil(ctx context.Context, conn net.Conn, number uint64, token Token) error {
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := greet(conn, number, token)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		_ = conn.SetDeadline(time.Time{})
	}
	return err
}

// proof shows that its maker knows the token.
func proof(token Token, who string, nonces []byte, number uint64) []byte {
	m := hmac.New(sha256.New, token[:])
	_, _ = m.Write([]byte(who))
	_, _ = m.Write(nonces)
	_, _ = m.Write(binary.BigEndian.AppendUint64(nil, number))
	return m.Sum(nil)
}

// greet is the client's side of the handshake.
func greet(conn net.Conn, number uint64, token Token) error {
	var nonces [2 * nonceBytes]byte
	if _, err := rand.Read(nonces[:nonceBytes]); err != nil {
		return err
	}
	b := append([]byte(tcpMagic), binary.BigEndian.AppendUint64(nil, number)...)
	if _, err := conn.Write(append(b, nonces[:nonceBytes]...)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, nonces[nonceBytes:]); err != nil {
		return fmt.Errorf("handshake with %v, for its device %d: %w", conn.RemoteAddr(), number, err)
	}
	var theirs [sha256.Size]byte
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return fmt.Errorf("handshake with %v, for its device %d: %w", conn.RemoteAddr(), number, err)
	}
	if !hmac.Equal(theirs[:], proof(token, "server", nonces[:], number)) {
		return ErrToken
	}
	_, err := conn.Write(proof(token, "client", nonces[:], number))
	return err
}

// client is the requester's end of a connection.
type client struct {
	device *Device
	conn   net.Conn
	done   chan struct{} // closed when both goroutines have ended
	kick   chan struct{}
	over   atomic.Bool
	spare  []byte // the writer's

	mu       sync.Mutex
	out      []byte
	inFlight []inFlight // a ring of maxInFlight
	first    uint32     // sequence numbers: the oldest in flight, and the next
	next     uint32
	streams  uint32
	progress time.Time // when the oldest in flight became that
}

// inFlight is a request that has no answer yet.
type inFlight struct {
	part
	op     uint8
	opened chan uint8 // for opOpen: the answer
}

func newClient(d *Device, conn net.Conn) *client {
	return &client{device: d, conn: conn, done: make(chan struct{}), kick: make(chan struct{}, 1), inFlight: make([]inFlight, maxInFlight)}
}

func (c *client) start() {
	var both sync.WaitGroup
	both.Add(2)
	go func() { defer both.Done(); c.write() }()
	go func() { defer both.Done(); c.read() }()
	go func() { both.Wait(); close(c.done) }()
}

func (c *client) dead() bool { return c.over.Load() }

// submit queues a request; false: there is no room. A dead connection ends it at once.
func (c *client) submit(stream uint32, key uint32, f inFlight) bool {
	w := f.work
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead() {
		f.end(mlx5.SyndromeRetry)
		return true
	}
	if c.next-c.first == maxInFlight || len(c.out) >= outBytes {
		return false
	}
	start := len(c.out)
	b := append(c.out, f.op, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, stream)
	b = binary.BigEndian.AppendUint32(b, key)
	b = binary.BigEndian.AppendUint32(b, uint32(f.n))
	if w != nil {
		b = binary.BigEndian.AppendUint64(b, w.remoteAt)
		b = binary.BigEndian.AppendUint32(b, uint32(w.length))
	} else {
		b = append(b, make([]byte, 12)...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(f.offset))
	b = binary.BigEndian.AppendUint32(b, c.next)
	b = append(b, 0, 0, 0, 0)
	switch f.op {
	case opWrite:
		at := len(b)
		b = slices.Grow(b, int(f.n))[:at+int(f.n)]
		if syndrome := c.device.gather(w, f.offset, b[at:]); syndrome != 0 {
			c.out = b[:start]
			f.end(syndrome)
			return true
		}
	case opAtomic:
		a := &w.atomic
		values := [4]uint64{a.Add, a.Boundary}
		if a.Swap {
			values = [4]uint64{a.Operand, a.Compare, a.SwapMask, a.CompareMask}
			b[start+1] = 1
		}
		for _, v := range values {
			b = binary.BigEndian.AppendUint64(b, v)
		}
	}
	c.out = b
	if c.next == c.first {
		c.progress = time.Now()
	}
	c.inFlight[c.next%maxInFlight] = f
	c.next++
	return true
}

// end ends a request.
func (f *inFlight) end(syndrome uint8) {
	switch {
	case f.opened != nil:
		f.opened <- syndrome
	case f.work != nil:
		f.work.partDone(syndrome)
	}
}

func (c *client) flush() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// write sends what is queued, and notices when nothing is answered.
func (c *client) write() {
	retry := c.device.config.Retry
	tick := time.NewTicker(max(retry/8, time.Millisecond))
	defer tick.Stop()
	defer c.end()
	for {
		select {
		case <-c.kick:
		case <-tick.C:
		}
		if c.dead() {
			return
		}
		c.mu.Lock()
		b := c.out
		c.out = c.spare[:0]
		late := c.next != c.first && time.Since(c.progress) > retry
		c.mu.Unlock()
		c.spare = b
		if late {
			c.device.config.Logf("hca: %v does not answer within %v", c.conn.RemoteAddr(), retry)
			return
		}
		if len(b) == 0 {
			continue
		}
		_ = c.conn.SetWriteDeadline(time.Now().Add(retry))
		if _, err := c.conn.Write(b); err != nil {
			if !errors.Is(err, net.ErrClosed) {
				c.device.config.Logf("hca: send to %v: %v", c.conn.RemoteAddr(), err)
			}
			return
		}
		c.device.Kick() // there is room again
	}
}

// end ends the connection and all requests that have no answer.
func (c *client) end() {
	_ = c.conn.Close()
	c.mu.Lock()
	c.over.Store(true)
	for ; c.first != c.next; c.first++ {
		f := &c.inFlight[c.first%maxInFlight]
		f.end(mlx5.SyndromeRetry)
		*f = inFlight{}
	}
	c.mu.Unlock()
	c.flush()
	c.device.Kick()
}

// take takes the request off that an answer names, after ending the writes before it.
func (c *client) take(sequence uint32) (f inFlight, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sequence-c.first >= c.next-c.first {
		return f, fmt.Errorf("an answer to request %d, of %d..%d", sequence, c.first, c.next)
	}
	c.progress = time.Now()
	for {
		p := &c.inFlight[c.first%maxInFlight]
		f, *p = *p, inFlight{}
		c.first++
		if c.first-1 == sequence {
			return f, nil
		}
		if f.op != opWrite && f.op != opClose {
			f.end(mlx5.SyndromeBadResponse)
			return inFlight{}, fmt.Errorf("no answer to request %d, which is not a write", c.first-1)
		}
		f.end(0)
	}
}

// read carries out answers.
func (c *client) read() {
	defer c.end()
	r := bufio.NewReaderSize(c.conn, 128<<10)
	buffer := make([]byte, partBytes)
	for {
		if err := c.answer(r, buffer); err != nil {
			if !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
				c.device.config.Logf("hca: answer of %v: %v", c.conn.RemoteAddr(), err)
			}
			return
		}
		if r.Buffered() < answerBytes {
			c.device.Kick()
		}
	}
}

// answer reads one answer.
func (c *client) answer(r *bufio.Reader, buffer []byte) error {
	head, err := r.Peek(answerBytes)
	if err != nil {
		return err
	}
	sequence, syndrome, n := binary.BigEndian.Uint32(head), head[4], binary.BigEndian.Uint32(head[8:])
	_, _ = r.Discard(answerBytes)
	f, err := c.take(sequence)
	if err != nil {
		return err
	}
	want := uint64(0)
	switch {
	case syndrome != 0:
	case f.op == opRead:
		want = f.n
	case f.op == opAtomic:
		want = 8
	}
	if uint64(n) != want {
		f.end(mlx5.SyndromeBadResponse)
		return fmt.Errorf("%d bytes for request %d, not %d", n, sequence, want)
	}
	if _, err := io.ReadFull(r, buffer[:n]); err != nil {
		f.end(mlx5.SyndromeRetry)
		return err
	}
	if n > 0 && f.op == opAtomic {
		f.work.old = binary.BigEndian.Uint64(buffer)
	} else if n > 0 {
		syndrome = c.device.scatter(f.work, f.offset, buffer[:n])
	}
	f.end(syndrome)
	return nil
}

// tcpLink is a queue's stream of a connection.
type tcpLink struct {
	*client
	stream uint32
	queued bool // something that flush must send
}

// open makes a stream for a queue.
func (c *client) open(ctx context.Context, q *Queue, number uint32) (link, error) {
	c.mu.Lock()
	c.streams++
	l := &tcpLink{client: c, stream: c.streams}
	c.mu.Unlock()
	opened := make(chan uint8, 1)
	if !c.submit(l.stream, number, inFlight{op: opOpen, opened: opened}) {
		return nil, errors.New("the connection is busy")
	}
	c.flush()
	select {
	case syndrome := <-opened:
		if syndrome == mlx5.SyndromeRetry {
			return nil, fmt.Errorf("%v: %w", c.conn.RemoteAddr(), errEnded)
		} else if syndrome != 0 {
			return nil, ErrQueue
		}
		return l, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *tcpLink) submit(p part) bool {
	op := uint8(opWrite)
	switch w := p.work; {
	case w.atomic.Bytes != 0:
		op = opAtomic
	case w.returns:
		op = opRead
	}
	begun := l.client.submit(l.stream, p.work.key, inFlight{part: p, op: op})
	l.queued = l.queued || begun
	return begun
}

func (l *tcpLink) flush() {
	if l.queued {
		l.queued = false
		l.client.flush()
	}
}

func (l *tcpLink) close() {
	l.client.submit(l.stream, 0, inFlight{op: opClose})
	l.client.flush()
}
