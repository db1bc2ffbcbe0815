package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// launchers are the pairs of variables that launchers set: this PE's number, and how many there are. A pair without
// lgpu's own names counts only where LSHMEM_BOOTSTRAP is set.
var launchers = [][2]string{
	{EnvPE, EnvPEs},
	{"PMI_RANK", "PMI_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"SLURM_PROCID", "SLURM_NTASKS"},
}

// FromEnv joins the job that the environment names, as lgpu run --pes sets it:
//
//	LSHMEM_PE, LSHMEM_PES   this PE's number and how many there are; else those of PMI, Open MPI or Slurm
//	LSHMEM_BOOTSTRAP        uid:HEX, or tcp://HOST:PORT?TOKEN where PE 0 listens and TOKEN is a secret of MinToken
//	                        characters or more
//	LSHMEM_BOOTSTRAP_TIMEOUT, _JOIN_TIMEOUT, _HEARTBEAT   seconds, or such as 90s or 5m; for what o leaves out
//
// ErrNotSet says that there is no such job. Each call in a process joins one more instance, so that all PEs must call
// it equally often.
func FromEnv(ctx context.Context, o Options) (Bootstrap, error) {
	e, err := readEnv(o)
	if err != nil {
		if errors.Is(err, ErrNotSet) {
			return nil, err
		}
		return nil, fmt.Errorf("bootstrap: %w", setting{err})
	}
	instances.Lock()
	e.options.Instance = instances.next[e.bootstrap]
	instances.next[e.bootstrap]++
	instances.Unlock()
	if uid, ok := strings.CutPrefix(e.bootstrap, "uid:"); ok {
		id, err := ParseUniqueID(uid)
		if err != nil {
			return nil, fmt.Errorf("bootstrap: %s: %w", EnvBootstrap, setting{err})
		}
		return Join(ctx, id, e.rank, e.size, e.options)
	}
	a, err := parseTCP(e.bootstrap)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %s: %w", EnvBootstrap, setting{err})
	}
	if e.rank == 0 {
		root, err := holdRoot(ctx, e.bootstrap, a, e.options)
		if err != nil {
			return nil, err
		}
		b, err := joinAt(ctx, root.ID(), e.rank, e.size, e.options, root, false)
		if err != nil {
			root.release(e.options.Instance, true)
		}
		return b, err
	}
	wait, cancel := context.WithTimeout(ctx, e.options.withDefaults().JoinTimeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		id, err := a.id(wait)
		if err == nil {
			return joinAt(ctx, id, e.rank, e.size, e.options, nil, true)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C: // the name of a machine that starts with the job may not be known yet
		case <-wait.Done():
			timer.Stop()
			return nil, fmt.Errorf("bootstrap: %s: %w", EnvBootstrap, err)
		}
	}
}

// setting is an error in what the environment says: ErrSetting.
type setting struct{ error }

func (s setting) Unwrap() error   { return s.error }
func (setting) Is(err error) bool { return err == ErrSetting }

// environment is what the variables say.
type environment struct {
	rank, size int
	bootstrap  string
	options    Options
}

// instances counts the jobs that this process has had, by bootstrap.
var instances = struct {
	sync.Mutex
	next map[string]uint32
}{next: map[string]uint32{}}

func readEnv(o Options) (environment, error) {
	env := lookup(o.Lookup)
	e := environment{bootstrap: env.get(EnvBootstrap), options: o}
	var from [2]string
	for _, p := range launchers {
		if env.get(p[0]) != "" && env.get(p[1]) != "" {
			from = p
			break
		}
	}
	switch {
	case e.bootstrap == "" && (env.first(EnvPE, EnvPEs) != ""):
		return e, fmt.Errorf("%s is set but not %s; set uid:HEX or tcp://HOST:PORT?TOKEN, or start the program by lgpu run --pes N", EnvPE, EnvBootstrap)
	case e.bootstrap == "":
		return e, ErrNotSet
	case from[0] == "":
		return e, fmt.Errorf("%s is set but not %s and %s", EnvBootstrap, EnvPE, EnvPEs)
	}
	var err error
	if e.size, err = number(env, from[1], 1, MaxPEs); err != nil {
		return e, err
	}
	if e.rank, err = number(env, from[0], 0, e.size-1); err != nil {
		return e, err
	}
	e.options, err = TimesFromEnv(o)
	return e, err
}

// TimesFromEnv returns o with the times that it leaves out as the environment has them, in LSHMEM_BOOTSTRAP_TIMEOUT,
// LSHMEM_BOOTSTRAP_JOIN_TIMEOUT and LSHMEM_BOOTSTRAP_HEARTBEAT. FromEnv does that itself, Join and FromCallbacks do
// not.
func TimesFromEnv(o Options) (Options, error) {
	err := errors.Join(
		fromEnv(o.Lookup, EnvTimeout, &o.Timeout),
		fromEnv(o.Lookup, EnvJoinTimeout, &o.JoinTimeout),
		fromEnv(o.Lookup, EnvHeartbeat, &o.Heartbeat))
	return o, err
}

// fromEnv reads a time from a variable if d has none.
func fromEnv(env lookup, name string, d *time.Duration) error {
	text := env.get(name)
	if text == "" || *d != 0 {
		return nil
	}
	var err error
	if *d, err = seconds(text); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// number is a variable's value from least to most.
func number(env lookup, name string, least, most int) (int, error) {
	text := env.get(name)
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s=%q: a number from %d to %d is needed", name, text, least, most)
	}
	return n, nil
}

// seconds reads a time.
func seconds(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if n, nerr := strconv.ParseFloat(text, 64); nerr == nil && n > -1e9 && n < 1e9 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d == 0 {
		return 0, fmt.Errorf("%q is not a duration; write seconds, or such as 90s or 5m", text)
	}
	return d, nil
}

// address is a tcp:// bootstrap.
type address struct {
	host   string
	port   int
	token  string
	secret [secretSize]byte
}

// parseTCP reads tcp://HOST:PORT?TOKEN.
func parseTCP(text string) (address, error) {
	rest, ok := strings.CutPrefix(text, "tcp://")
	if !ok {
		return address{}, errors.New("it is neither uid:HEX nor tcp://HOST:PORT?TOKEN")
	}
	at, token, _ := strings.Cut(rest, "?")
	return newAddress(at, token)
}

// newAddress checks HOST:PORT and a token.
func newAddress(at, token string) (address, error) {
	host, port, err := splitAddress(at)
	if err != nil {
		return address{}, err
	}
	if host == "" {
		return address{}, fmt.Errorf("address %q: which host? PE 0's, as all can reach it", at)
	}
	secret, err := tokenSecret(token)
	if err != nil {
		return address{}, err
	}
	return address{host, port, token, secret}, nil
}

// id is that of the root at an address, as seen from here.
func (a *address) id(ctx context.Context) (UniqueID, error) {
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", a.host)
	if err != nil {
		return UniqueID{}, err
	}
	var at []netip.AddrPort
	for _, ip := range ips[:min(len(ips), maxAddresses)] {
		at = append(at, netip.AddrPortFrom(ip.Unmap(), uint16(a.port)))
	}
	return newID(a.secret, at)
}

// TokenID is the id of a root at HOST:PORT that was made with a token: what Listen with that Address and Token has, as
// seen from another machine.
func TokenID(ctx context.Context, at, token string) (UniqueID, error) {
	a, err := newAddress(at, token)
	if err != nil {
		return UniqueID{}, err
	}
	return a.id(ctx)
}

// ListenAt starts a root at HOST:PORT with a token, so that those who know both can join without being told an id. HOST
// is what others call this machine; it need not mean one of its addresses here.
func ListenAt(ctx context.Context, at, token string, o ListenOptions) (*Root, error) {
	a, err := newAddress(at, token)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return listenAt(ctx, a, o)
}

func listenAt(ctx context.Context, a address, o ListenOptions) (*Root, error) {
	everywhere := net.JoinHostPort("", strconv.Itoa(a.port))
	o.Token, o.Address, o.Local = a.token, everywhere, false
	// A name may mean another address here than elsewhere, often a loopback one.
	if ip, err := netip.ParseAddr(a.host); err == nil && !ip.IsUnspecified() || a.host == "localhost" {
		o.Address = net.JoinHostPort(a.host, strconv.Itoa(a.port))
	}
	r, err := Listen(ctx, o)
	if errors.Is(err, syscall.EADDRNOTAVAIL) { // others reach this machine by an address that it does not have itself
		o.Address = everywhere
		r, err = Listen(ctx, o)
	}
	return r, err
}

// heldRoots are those of PE 0, by bootstrap. The instances of a process share one.
var heldRoots = struct {
	sync.Mutex
	by map[string]*Root
}{by: map[string]*Root{}}

// holdRoot returns the root that PE 0 has at a, and makes it if this is the first instance. It is to be released.
func holdRoot(ctx context.Context, key string, a address, o Options) (*Root, error) {
	heldRoots.Lock()
	defer heldRoots.Unlock()
	if r := heldRoots.by[key]; r != nil {
		if r.acquire(o.Instance) {
			return r, nil
		}
		<-r.Done() // it is closing: its port will be free
	}
	r, err := listenAt(ctx, a, ListenOptions{Keep: true, JoinTimeout: o.JoinTimeout, Heartbeat: o.Heartbeat, Lookup: o.Lookup})
	if err != nil {
		return nil, err
	}
	r.acquire(o.Instance)
	heldRoots.by[key] = r
	return r, nil
}
