package bootstrap

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// ListenOptions are those of a root. The zero value listens on the machine's networks and on loopback.
type ListenOptions struct {
	// Interface chooses networks by a list of interface names or beginnings of them, such as "eth,ib0"; "^docker,lo"
	// is all but those, "=eth0" exactly that one. Empty is LSHMEM_BOOTSTRAP_INTERFACE, or
	// NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME, else all that are up and not of containers.
	Interface string
	// Local listens on loopback only: all PEs are on this machine.
	Local bool
	// Address is a fixed HOST:PORT to listen on instead. Empty is NVSHMEM_BOOTSTRAP_UID_SESSION_ID unless Local is set.
	Address string
	// Token is a secret of at least MinToken bytes that the others have already; empty makes a random one.
	Token string
	// Keep goes on after a job has ended, for the next instance, until Close. Otherwise the root ends with its first
	// job.
	Keep bool
	// JoinTimeout bounds how long PEs wait for each other. 0 is what the most impatient of them asks for.
	JoinTimeout time.Duration
	// Heartbeat is as in Options; 0 is LSHMEM_BOOTSTRAP_HEARTBEAT, if that is set.
	Heartbeat time.Duration
	// Lookup is where variables are found, as in Options.
	Lookup func(name string) (string, bool)
}

// MinToken is the least length of a token, a secret that a person chose. It should be random: an attacker who records a
// handshake can try tokens without limit.
const MinToken = 16

// Bounds of what a root does for those that are not known to belong to it.
const (
	handshakeTimeout = 5 * time.Second
	maxPending       = 1024               // connections that have not shown that they know the secret
	unusedFor        = 10 * time.Minute   // then a root of NewUniqueID ends that nobody has joined
	lateFor          = DefaultJoinTimeout // that long after a job failed, PEs that come late are told so
	closeGrace       = 5 * time.Second    // for others to leave before the process with the root does
	maxOver          = 1024               // jobs whose end is remembered
	writeTimeout     = 30 * time.Second   // a PE that reads nothing for so long is dead
)

// Root accepts the PEs of jobs. It is made by Listen.
type Root struct {
	id        UniqueID
	secret    [secretSize]byte
	options   ListenOptions
	listeners []net.Listener
	closing   chan struct{} // closed when closed is set
	done      chan struct{}
	wg        sync.WaitGroup

	mu          sync.Mutex
	closed      bool
	jobs        map[uint32]*job
	over        map[uint32]string // how jobs ended
	pending     []net.Conn        // by age
	connections map[*connection]struct{}
	unused      *time.Timer
	uses        int             // by PEs of this process
	mine        map[uint32]bool // instances that they are in, or were in while others still are
	blamed      int             // the PE that the first job that failed did so because of, -1 if none
	dead        string          // of the first process that has ended, as Ended was told; empty if none has
	idle        chan struct{}   // closed when no job is left or this process has a PE again; nil: not awaited
}

// Listen starts a root that serves until Close, or without Keep until its first job is over. The context bounds only
// the call.
func Listen(ctx context.Context, o ListenOptions) (*Root, error) {
	if err := fromEnv(o.Lookup, EnvHeartbeat, &o.Heartbeat); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	secret := newSecret()
	if o.Token != "" {
		var err error
		if secret, err = tokenSecret(o.Token); err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
	}
	r := &Root{
		secret: secret, options: o, closing: make(chan struct{}), done: make(chan struct{}),
		blamed: -1, jobs: map[uint32]*job{}, over: map[uint32]string{}, connections: map[*connection]struct{}{}, mine: map[uint32]bool{},
	}
	listeners, at, err := listen(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	r.listeners = listeners
	if r.id, err = newID(secret, at); err != nil {
		for _, l := range r.listeners {
			l.Close()
		}
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	for _, l := range r.listeners {
		r.wg.Add(1)
		go r.accept(l)
	}
	return r, nil
}

// tokenSecret makes a secret of a token.
func tokenSecret(token string) (s [secretSize]byte, err error) {
	if len(token) < MinToken {
		return s, fmt.Errorf("the token has %d characters; at least %d are needed, and they should be random, such as those of: openssl rand -hex 16",
			len(token), MinToken)
	}
	sum := sha256.Sum256([]byte("lshmem bootstrap token\x00" + token))
	copy(s[:], sum[:])
	return s, nil
}

// roots are those of NewUniqueID, so that the PE that shares a process with one can wait for the others.
var roots sync.Map // UniqueID -> *Root

// NewUniqueID starts a root in this process and returns what PEs need to join. The root ends with its first job, or
// when nobody joins for ten minutes; if the process ends before, the job is lost for all PEs. The context bounds only
// the call.
func NewUniqueID(ctx context.Context, o ListenOptions) (UniqueID, error) {
	o.Keep = false
	r, err := Listen(ctx, o)
	if err != nil {
		return UniqueID{}, err
	}
	roots.Store(r.id, r)
	r.mu.Lock()
	r.unused = time.AfterFunc(unusedFor, func() { r.Close() })
	r.mu.Unlock()
	return r.id, nil
}

// ID is what PEs need to join.
func (r *Root) ID() UniqueID { return r.id }

// Done is closed when the root has ended.
func (r *Root) Done() <-chan struct{} { return r.done }

// Abort ends all jobs.
func (r *Root) Abort(code int, why string) {
	r.mu.Lock()
	jobs := make([]*job, 0, len(r.jobs))
	for _, j := range r.jobs {
		jobs = append(jobs, j)
	}
	r.mu.Unlock()
	for _, j := range jobs {
		j.abort(-1, code, why)
	}
	r.flush(time.Second)
}

// Ended tells the root that a PE's process has ended. The process that started it calls this: it knows at once, also of
// a PE that never joined. If the PE has left in order, or there is no job, the only effect is that it cannot join a
// later one.
func (r *Root) Ended(pe int, why string) {
	r.mu.Lock()
	if r.dead == "" { // others may end because of this one
		r.dead = fmt.Sprintf("PE %d died: %s", pe, why)
	}
	jobs := make([]*job, 0, len(r.jobs))
	for _, j := range r.jobs {
		jobs = append(jobs, j)
	}
	r.mu.Unlock()
	for _, j := range jobs {
		j.missing(pe, why)
	}
}

// Blamed is the PE because of which the first job failed, or -1: what others did then was only a consequence.
func (r *Root) Blamed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.jobs {
		if _, e := j.state(); e != nil && r.blamed < 0 {
			r.blamed = e.pe
		}
	}
	return r.blamed
}

// Close ends the root. PEs that are still there notice, but it is no error until they need it.
func (r *Root) Close() error {
	r.close(func() bool { return true })
	return nil
}

// acquire says that a PE of this process uses the root for an instance; false if it is closed.
func (r *Root) acquire(instance uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.uses++
	r.mine[instance] = true
	r.wake()
	return true
}

// release is the end of that use. The last one closes the root; if its job did not fail it first waits for the PEs of
// other processes to leave the jobs that this process was in, if that takes not long, so that one that dies meanwhile
// is noticed. Those that wait for the next job already will see the root's end, and come again.
func (r *Root) release(instance uint32, failed bool) {
	r.mu.Lock()
	r.uses--
	last := r.uses == 0
	if failed {
		delete(r.mine, instance)
	}
	r.mu.Unlock()
	if last && !failed {
		r.wait(closeGrace)
	}
	if last {
		r.close(func() bool { return r.uses == 0 })
	}
}

// close ends the root if that is still right, which is asked under mu.
func (r *Root) close(right func() bool) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		<-r.done
		return
	}
	if !right() {
		r.mu.Unlock()
		return
	}
	r.closed = true
	close(r.closing)
	if r.unused != nil {
		r.unused.Stop()
	}
	roots.Delete(r.id)
	for _, l := range r.listeners {
		l.Close()
	}
	for _, c := range r.pending {
		c.Close()
	}
	for _, j := range r.jobs {
		j.stop()
	}
	for s := range r.connections {
		s.post(frame{kind: kindBye})
	}
	r.mu.Unlock()
	r.flush(time.Second)
	r.mu.Lock()
	for s := range r.connections {
		s.stop()
	}
	r.mu.Unlock()
	r.wg.Wait()
	close(r.done)
}

// busy says whether there is a job that a PE of this process is or was in. mu is held.
func (r *Root) busy() bool {
	for instance := range r.jobs {
		if r.mine[instance] {
			return true
		}
	}
	return false
}

// wake ends wait. mu is held.
func (r *Root) wake() {
	if r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// wait waits until all have left the jobs that this process was in, or it is in one again, or for most.
func (r *Root) wait(most time.Duration) {
	r.mu.Lock()
	if r.uses > 0 || !r.busy() || r.closed {
		r.mu.Unlock()
		return
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	idle := r.idle
	r.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
	case <-r.done:
	case <-timer.C:
	}
}

// flush waits until everything posted so far is with the kernel.
func (r *Root) flush(most time.Duration) {
	r.mu.Lock()
	marks := map[*connection]chan struct{}{}
	for s := range r.connections {
		marks[s] = s.mark()
	}
	r.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	for s, m := range marks {
		select {
		case <-m:
		case <-s.ended:
		case <-timer.C:
			return
		}
	}
}

// accept serves one listener.
func (r *Root) accept(l net.Listener) {
	defer r.wg.Done()
	for pause := time.Millisecond; ; {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or the caller is gone already
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			c.Close()
			return
		}
		if len(r.pending) >= maxPending { // the oldest is dropped
			r.pending[0].Close()
			r.pending = slices.Delete(r.pending, 0, 1)
		}
		r.pending = append(r.pending, c)
		r.wg.Add(1)
		r.mu.Unlock()
		go r.serve(c)
	}
}

// known takes a connection out of those that are not known.
func (r *Root) known(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.pending, c); i >= 0 {
		r.pending = slices.Delete(r.pending, i, i+1)
	}
}

// serve serves one connection.
func (r *Root) serve(c net.Conn) {
	defer r.wg.Done()
	defer c.Close()
	l, j, err := r.greet(c)
	r.known(c)
	if err != nil {
		return // a stranger gets no answer
	}
	s := newConnection(l, int(j.rank), time.Duration(j.silence)*time.Millisecond)
	s.listens = heartbeat(r.options.Heartbeat, c)
	job, err := r.admit(s, j, c)
	if errors.Is(err, errRootLeft) {
		// The PE waits for an answer; an error means that it is gone.
		_ = l.send(frame{kind: kindBye}, time.Now().Add(handshakeTimeout))
		return
	}
	if err != nil {
		_ = l.refuse(err)
		return
	}
	if f := watch(c, j.process); f != nil {
		defer f.Close()
	}
	s.serve(job)
	r.mu.Lock()
	delete(r.connections, s)
	r.mu.Unlock()
}

// greet lets a connection show that it knows the secret, and returns what it wants.
func (r *Root) greet(c net.Conn) (*link, join, error) {
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, join{}, err
	}
	in := bufio.NewReaderSize(c, 4096)
	var hello [greetingSize]byte
	if _, err := io.ReadFull(in, hello[:8]); err != nil {
		return nil, join{}, err
	}
	var ours, theirs [nonceSize]byte
	rand.Read(ours[:]) // never fails
	if err := parseGreeting(hello[:8]); err != nil {
		var v *versionError
		if errors.As(err, &v) { // it will see ours, and say so
			_, werr := c.Write(append(putGreeting(ours), make([]byte, proofSize)...))
			return nil, join{}, errors.Join(err, werr)
		}
		return nil, join{}, err
	}
	if _, err := io.ReadFull(in, hello[8:]); err != nil {
		return nil, join{}, err
	}
	copy(theirs[:], hello[8:])
	if _, err := c.Write(append(putGreeting(ours), proof(r.secret[:], theirs, ours)...)); err != nil {
		return nil, join{}, err
	}
	l := &link{
		conn: c, r: in,
		in:  newSealer(r.secret[:], labelUp, theirs, ours),
		out: newSealer(r.secret[:], labelDown, theirs, ours),
	}
	f, err := l.receive(maxJoin)
	if err != nil {
		return nil, join{}, err
	}
	if f.kind != kindJoin {
		return nil, join{}, l.refuse(errors.New("the first message is not a join"))
	}
	j, err := parseJoin(f.payload)
	if err != nil {
		return nil, join{}, l.refuse(err)
	}
	return l, j, c.SetDeadline(time.Time{})
}

// refuse tells one that knows the secret why it is not admitted. It returns why.
func (l *link) refuse(why error) error {
	// The PE waits for an answer; an error means that it is gone.
	_ = l.send(frame{kind: kindRefused, payload: []byte(short(why.Error()))}, time.Now().Add(handshakeTimeout))
	return why
}

// Labels of the keys of the two directions.
const (
	labelUp   = "lshmem PE to root"
	labelDown = "lshmem root to PE"
)

// admit makes a PE a member of the job that it names. The error is errRootLeft if the root is about to end.
func (r *Root) admit(s *connection, w join, c net.Conn) (*job, error) {
	timeout := time.Duration(w.timeout) * time.Millisecond
	if most := r.options.JoinTimeout; most > 0 {
		timeout = min(timeout, most)
	}
	until := time.Now().Add(timeout)
	if err := r.empty(w, timeout); err != nil {
		return nil, err
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, errRootLeft
	}
	if how, ended := r.over[w.instance]; ended {
		r.mu.Unlock()
		return nil, fmt.Errorf("the job is over: %s", how)
	}
	j := r.jobs[w.instance]
	if j == nil && r.dead != "" {
		dead := r.dead
		r.mu.Unlock()
		return nil, errors.New(dead)
	}
	if j == nil {
		j = newJob(int(w.size), func(j *job) { r.ended(w.instance, j) })
		r.jobs[w.instance] = j
	}
	if r.unused != nil {
		r.unused.Stop()
	}
	r.connections[s] = struct{}{}
	r.wg.Add(1)
	r.mu.Unlock()
	go func() {
		defer r.wg.Done()
		s.write()
	}()
	s.post(frame{kind: kindAccept, payload: putMilliseconds(s.listens)})
	who := fmt.Sprintf("process %d on %s", w.process.pid, host(w.host, c))
	if err := j.admit(int(w.rank), int(w.size), who, time.Until(until), s); err != nil {
		r.mu.Lock()
		delete(r.connections, s)
		if r.closed { // meanwhile; that is also why the job is over
			err = errRootLeft
		}
		r.mu.Unlock()
		s.drain()
		return nil, err
	}
	return j, nil
}

// empty waits until the last PEs have left a job that this PE has left, which now runs another program: instances are
// counted by process.
func (r *Root) empty(w join, timeout time.Duration) error {
	r.mu.Lock()
	j := r.jobs[w.instance]
	r.mu.Unlock()
	if j == nil || !r.options.Keep || !j.without(int(w.rank)) {
		return nil
	}
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case <-j.done:
	case <-r.closing:
	case <-late.C:
		return fmt.Errorf("after %v other PEs have not left the program that PE %d has left", rounded(timeout), w.rank)
	}
	return nil
}

// host is a name for messages: only printable characters of what was said, and where it comes from.
func host(said string, c net.Conn) string {
	b := []byte(said)[:min(len(said), 64)]
	for i, ch := range b {
		if ch <= ' ' || ch > '~' {
			b[i] = '?'
		}
	}
	if len(b) == 0 {
		return c.RemoteAddr().String()
	}
	return string(b)
}

// ended forgets a job. Its last PE's connection is what calls.
func (r *Root) ended(instance uint32, j *job) {
	_, e := j.state()
	how := "all PEs have left"
	if e != nil {
		how = e.err().Error()
	}
	r.mu.Lock()
	if e != nil && r.blamed < 0 {
		r.blamed = e.pe
	}
	delete(r.jobs, instance)
	delete(r.mine, instance)
	if !r.busy() {
		r.wake()
	}
	if e != nil || !r.options.Keep { // else the PEs' next programs may meet
		if len(r.over) >= maxOver {
			clear(r.over)
		}
		r.over[instance] = how
	}
	close := !r.options.Keep && !r.closed && len(r.jobs) == 0 && e == nil
	if !r.options.Keep && !r.closed && e != nil {
		// A PE that comes late learns why there is no job.
		if r.unused != nil {
			r.unused.Stop()
		}
		r.unused = time.AfterFunc(lateFor, func() { r.Close() })
	}
	r.mu.Unlock()
	if close {
		go r.Close()
	}
}
