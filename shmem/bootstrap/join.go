package bootstrap

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// Pauses between two attempts to reach a root that is not there yet.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// Join joins the job of id as PE rank of size, and returns when all have joined. A root that is not there yet is waited
// for. The context bounds only the call; if it ends, the others are told that this PE gave up.
func Join(ctx context.Context, id UniqueID, rank, size int, o Options) (Bootstrap, error) {
	var here *Root
	if root, ok := roots.Load(id); ok && root.(*Root).acquire(o.Instance) {
		here = root.(*Root)
	}
	b, err := joinAt(ctx, id, rank, size, o, here, false)
	if err != nil && here != nil {
		here.release(o.Instance, true)
	}
	return b, err
}

// joinAt is Join where the root may be in this process, and acquired. Close releases it. A root that returns is one of
// PE 0's, which makes a new one for an instance if it has left the one before: who meets the old root's end waits for
// the new one.
func joinAt(ctx context.Context, id UniqueID, rank, size int, o Options, here *Root, returns bool) (Bootstrap, error) {
	if err := checkPlace(rank, size); err != nil {
		return nil, err
	}
	addresses, err := id.Addresses()
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	o = o.withDefaults()
	until := time.Now().Add(o.JoinTimeout)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		r := &remote{
			member: newMember(rank, size, o), root: here,
			begun: make(chan struct{}), refused: make(chan error, 1), stopped: make(chan struct{}),
		}
		r.up = r
		err := r.join(ctx, addresses, id.secret(), until)
		if err == nil {
			return r, nil
		}
		if returns && errors.Is(err, errRootLeft) {
			if err = r.pause(ctx, pause, until, err); err == nil {
				continue
			}
		}
		return nil, fmt.Errorf("bootstrap: join as PE %d of %d: %w", rank, size, err)
	}
}

// remote is a PE whose root is reached by TCP.
type remote struct {
	*member
	*link

	root    *Root         // if it is in this process
	beats   time.Duration // how often the root wants to hear from us; 0 is never
	listens time.Duration // how long the root may be silent; 0 is forever
	awake   pulse

	begun   chan struct{}
	refused chan error
	stopped chan struct{} // the beats are to end
	once    sync.Once
	wg      sync.WaitGroup
}

// join reaches the root, joins the job and waits for the others.
func (r *remote) join(ctx context.Context, addresses []netip.AddrPort, secret [secretSize]byte, until time.Time) error {
	reach, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	var last error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := r.connect(reach, addresses, secret, until)
		if err == nil {
			break
		}
		var p *permanent
		if errors.As(err, &p) {
			return err
		}
		if last == nil || reach.Err() == nil { // at the end an attempt only says that there is no more time
			last = err
		}
		if err := r.pause(ctx, pause, until, last); err != nil {
			return err
		}
	}
	late := time.NewTimer(time.Until(until) + grace)
	defer late.Stop()
	var err error
	select {
	case <-r.begun:
		return nil
	case err = <-r.refused:
	case <-r.lost:
		_, err = r.LostPE()
	case <-r.rootLeft:
		select {
		case <-r.begun: // before the root left: that counts
			return nil
		default:
			err = errRootLeft
		}
	case <-late.C:
		err = &joinTimeout{r.options.JoinTimeout, errors.New("its root does not say who is missing")}
	case <-ctx.Done():
		// Best effort: if it does not arrive, the end of the connection does.
		_ = r.send(frame{kind: kindBye}, time.Now().Add(time.Second))
		err = context.Cause(ctx)
	}
	r.stop()
	r.wg.Wait()
	return err
}

// pause waits before another attempt to join. The error says that there is no time for one, and how the last one ended.
func (r *remote) pause(ctx context.Context, pause time.Duration, until time.Time, last error) error {
	timer := time.NewTimer(min(pause, time.Until(until)))
	defer timer.Stop()
	select {
	case <-timer.C:
		if time.Now().Before(until) {
			return nil
		}
		return &joinTimeout{r.options.JoinTimeout, last}
	case <-ctx.Done():
		return fmt.Errorf("%w; %w", context.Cause(ctx), last)
	}
}

// joinTimeout is that of a PE that did not reach the root, or the others, in time.
type joinTimeout struct {
	after time.Duration
	last  error
}

func (e *joinTimeout) Error() string {
	return fmt.Sprintf("the job did not begin within %v: %v", e.after, e.last)
}
func (e *joinTimeout) Is(target error) bool { return target == ErrTimeout }
func (e *joinTimeout) Unwrap() error        { return e.last }

// permanent is an error that another attempt would meet again.
type permanent struct{ error }

func (e *permanent) Unwrap() error        { return e.error }
func (e *permanent) Is(target error) bool { return target == ErrRefused }

// connect connects to the root, up to its answer that it lets the PE in. Then the connection is read and beats.
func (r *remote) connect(ctx context.Context, addresses []netip.AddrPort, secret [secretSize]byte, until time.Time) error {
	l, err := reach(ctx, addresses, secret)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.conn.SetDeadline(time.Unix(1, 0)) })
	beats, err := r.introduce(l, until)
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(err, l.conn.Close())
	}
	if err := l.conn.SetDeadline(time.Time{}); err != nil {
		return errors.Join(err, l.conn.Close())
	}
	r.link, r.beats = l, beats
	r.wg.Add(2)
	go r.read()
	go r.beat()
	return nil
}

// introduce says who this PE is. It returns how often the root wants to hear of it.
func (r *remote) introduce(l *link, until time.Time) (time.Duration, error) {
	r.listens = heartbeat(r.options.Heartbeat, l.conn)
	name, err := os.Hostname()
	if err != nil {
		name = ""
	}
	own, err := identify(os.Getpid())
	if err != nil {
		own = self{pid: uint32(os.Getpid())}
	}
	j := join{
		rank: uint32(r.rank), size: uint32(r.size), instance: r.options.Instance,
		timeout: max(milliseconds(time.Until(until)), 1), silence: milliseconds(r.listens),
		process: own, host: name[:min(len(name), 64)],
	}
	soon := time.Now().Add(handshakeTimeout)
	if err := l.send(frame{kind: kindJoin, payload: j.marshal()}, soon); err != nil {
		return 0, err
	}
	if err := l.conn.SetReadDeadline(until); err != nil {
		return 0, err
	}
	f, err := l.receive(maxText)
	switch {
	case err != nil:
		return 0, fmt.Errorf("the root at %v: %w", l.conn.RemoteAddr(), err)
	case f.kind == kindRefused:
		return 0, &permanent{errors.New(string(f.payload))}
	case f.kind == kindBye:
		return 0, &permanent{errRootLeft}
	case f.kind != kindAccept:
		return 0, &permanent{fmt.Errorf("the root at %v answered with a message of kind %d", l.conn.RemoteAddr(), f.kind)}
	}
	silence, err := parseMilliseconds(f.payload)
	return silence / 4, err
}

// reach connects to the address that first shows that it knows the secret.
func reach(ctx context.Context, addresses []netip.AddrPort, secret [secretSize]byte) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	type result struct {
		link *link
		err  error
	}
	results := make(chan result)
	for _, a := range addresses {
		go func() {
			l, err := greetRoot(ctx, a.String(), secret)
			results <- result{l, err}
		}()
	}
	var found *link
	var errs []error
	stays := 0
	for range addresses {
		r := <-results
		var p *permanent
		switch {
		case r.err != nil:
			errs = append(errs, r.err)
			if errors.As(r.err, &p) {
				stays++
			}
		case found == nil:
			found = r.link
			cancel()
		default:
			r.link.conn.Close()
		}
	}
	if found != nil {
		return found, nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	err := fmt.Errorf("no root of this job answers: %s", strings.Join(texts, "; "))
	if stays == len(addresses) {
		return nil, &permanent{err}
	}
	return nil, err
}

// greetRoot connects to one address and checks that it knows the secret.
func greetRoot(ctx context.Context, address string, secret [secretSize]byte) (*link, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	l, err := greetOn(ctx, c, secret)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return l, nil
}

// greetOn is the greeting on a connection.
func greetOn(ctx context.Context, c net.Conn, secret [secretSize]byte) (*link, error) {
	// The context's end is noticed also between two of the following, since the deadline stays in the past.
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var ours, theirs [nonceSize]byte
	rand.Read(ours[:]) // never fails
	if _, err := c.Write(putGreeting(ours)); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(c, 4096)
	var answer [greetingSize + proofSize]byte
	if _, err := io.ReadFull(in, answer[:8]); err != nil {
		return nil, err
	}
	if err := parseGreeting(answer[:8]); err != nil {
		return nil, &permanent{err}
	}
	if _, err := io.ReadFull(in, answer[8:]); err != nil {
		return nil, err
	}
	copy(theirs[:], answer[8:])
	if !hmac.Equal(answer[greetingSize:], proof(secret[:], ours, theirs)) {
		return nil, &permanent{errors.New("this is the root of another job (it does not know the secret of the unique id, or token)")}
	}
	return &link{
		conn: c, r: in,
		in:  newSealer(secret[:], labelDown, ours, theirs),
		out: newSealer(secret[:], labelUp, ours, theirs),
	}, nil
}

// read reads what the root says until the connection ends.
func (r *remote) read() {
	defer r.wg.Done()
	begun := false
	for {
		f, err := r.next(maxResult, r.listens, &r.awake)
		if err != nil {
			r.rootIsGone(errors.New(describe(err, "its", r.listens)))
			return
		}
		switch f.kind {
		case kindBeat:
		case kindBegin:
			if !begun {
				begun = true
				close(r.begun)
			}
		case kindRefused:
			r.refused <- &permanent{errors.New(string(f.payload))}
			return
		case kindResult:
			parts, err := parseParts(f.payload, f.op.wantResults(r.size))
			if err != nil {
				r.rootIsGone(err)
				return
			}
			r.answered(answer{f.op, f.seq, parts})
		case kindEnd:
			e, err := parseEnding(f.payload)
			if err != nil {
				r.rootIsGone(err)
				return
			}
			r.end(e.pe, e.err())
		case kindBye:
			r.rootLeaves()
			return
		default:
			r.rootIsGone(fmt.Errorf("it sent a message of kind %d, which only PEs send", f.kind))
			return
		}
	}
}

// beat lets the root hear of this PE.
func (r *remote) beat() {
	defer r.wg.Done()
	every := often(r.beats, r.listens/4)
	if every <= 0 {
		return
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for r.awake.beat(every); ; r.awake.beat(every) {
		select {
		case <-t.C:
		case <-r.stopped:
			return
		}
		if r.beats > 0 && r.send(frame{kind: kindBeat}, time.Now().Add(sendTimeout(r.listens))) != nil {
			return // the reader sees why
		}
	}
}

// stop breaks the connection.
func (r *remote) stop() {
	r.once.Do(func() {
		close(r.stopped)
		r.conn.Close()
	})
}

func (r *remote) call(o op, seq uint64, timeout time.Duration, parts [][]byte) error {
	f := frame{kind: kindCall, op: o, seq: seq, payload: putCall(timeout, parts)}
	if err := r.send(f, time.Now().Add(timeout+grace)); err != nil {
		return errors.New(describe(err, "its", timeout+grace))
	}
	return nil
}

// abort waits until the root sends the end back, which it has sent to the others then.
func (r *remote) abort(code int, why string) {
	soon := time.Now().Add(time.Second)
	if r.send(frame{kind: kindAbort, payload: putAbort(code, why)}, soon) != nil {
		return
	}
	timer := time.NewTimer(time.Until(soon))
	defer timer.Stop()
	select {
	case <-r.lost:
	case <-r.rootLeft:
	case <-timer.C:
	}
	if r.root != nil {
		r.root.flush(time.Second)
	}
}

// bye leaves, and waits until the root knows.
func (r *remote) bye() error {
	r.mu.Lock()
	failed := r.cause != nil
	r.mu.Unlock()
	err := r.send(frame{kind: kindBye}, time.Now().Add(time.Second))
	if err == nil {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		left := make(chan struct{})
		go func() { r.wg.Wait(); close(left) }()
		r.once.Do(func() { close(r.stopped) })
		select {
		case <-left:
		case <-timer.C:
		}
	} else {
		r.once.Do(func() { close(r.stopped) })
	}
	r.conn.Close()
	r.wg.Wait()
	if r.root != nil {
		r.root.release(r.options.Instance, failed)
	}
	if failed {
		return nil // it was lost, which is known
	}
	if err != nil {
		return fmt.Errorf("bootstrap: leave: %w", err)
	}
	return nil
}
