// Package claim keeps two users' daemons from managing the same device. Where no system daemon runs, each user has a
// daemon of her own, and each would think that the whole device is its to give: so a daemon claims a device while its
// lgpus use it, and the kernel ends the claim with the daemon.
//
//	release, err := claims.Take("GPU-…") // *Held: another daemon has it
//	defer release()
//
// A claim is an abstract unix socket named for the device, which only one process of the machine (of its network
// namespace) can have. Who asks in vain learns from the kernel whose it is.
//
// The system's daemon claims nothing. Claims give way to it: once it is there nobody takes a device, nor once more one
// that she has, until it lets users have daemons of their own again (rundir.Reserve). What runs goes on.
package claim

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/rundir"
	"github.com/lgpu/lgpu/internal/users"
)

// prefix begins the names of the sockets; the @ stands for the byte that makes them abstract.
const prefix = "@lgpu-device-"

// patience is how long a holder may take to be asked for its name.
const patience = time.Second

// Held is the error of a device that another daemon has.
type Held struct {
	Device string
	UID    uint32 // of the holder
	PID    int    // of the holder, 0 where it cannot be seen
	// System says that it is the system's daemon that has all devices; Away that it does not run now.
	System, Away bool
}

func (e *Held) Error() string {
	if e.Away {
		return "the system's daemon manages this machine's devices, and is away"
	}
	if e.System {
		return "the system's daemon manages this machine's devices"
	}
	return fmt.Sprintf("device %s is managed by the daemon of user %s (process %d)", e.Device, users.Name(e.UID), e.PID)
}

// Hint says what to do.
func (e *Held) Hint() string {
	if e.Away {
		return "wait until it is back, or ask the administrator, who lets users have daemons of their own by: lgpu daemon stop"
	}
	if e.System {
		return "leave out LGPU_RUNTIME_DIR, LGPU_SOCKET_API and --socket to use it"
	}
	return "choose another device, wait until its programs end, or ask the administrator for a system daemon, which shares " +
		"devices between users"
}

// Claims are those of one daemon. Methods may be called by several goroutines.
type Claims struct {
	system string // the socket of the system's daemon

	mu   sync.Mutex
	held map[string]*hold // guarded by mu; by device
}

// hold is the claim on one device.
type hold struct {
	socket net.Listener
	users  int // guarded by Claims.mu
}

// New is a daemon without claims, beside a system daemon whose socket would be at system.
func New(system string) *Claims { return &Claims{system: system, held: map[string]*hold{}} }

// Take claims a device until release, or returns a *Held if somebody else has it. A device may be taken several times: it
// is given back with the last release. A release after the first does nothing. Where the system's daemon has come
// meanwhile, a device that is held is refused too.
func (c *Claims) Take(device string) (release func(), err error) {
	if err := c.yield(device); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[device]
	if h == nil {
		if h, err = c.listen(device); err != nil {
			return nil, err
		}
		c.held[device] = h
	}
	h.users++
	return sync.OnceFunc(func() { c.leave(device, h) }), nil
}

// yield returns a *Held if the device is the system daemon's, which has all.
func (c *Claims) yield(device string) error {
	holder, err := ask(c.system)
	switch {
	case err == nil:
		return &Held{Device: device, UID: holder.Uid, PID: int(holder.Pid), System: true}
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED):
		return &Held{Device: device, System: true} // it may not be asked, or has no time to answer
	case rundir.Reserved(filepath.Dir(c.system)):
		return &Held{Device: device, System: true, Away: true}
	}
	return nil
}

// listen makes the socket of a device.
func (c *Claims) listen(device string) (*hold, error) {
	l, err := net.Listen("unix", prefix+device)
	if errors.Is(err, unix.EADDRINUSE) {
		held := &Held{Device: device}
		if holder, err := ask(prefix + device); err == nil {
			held.UID, held.PID = holder.Uid, int(holder.Pid)
		}
		return nil, held
	}
	if err != nil {
		return nil, fmt.Errorf("claim device %s: %w", device, err)
	}
	go answer(l)
	return &hold{socket: l}, nil
}

// answer lets those go who have asked the kernel whose the socket is: a queue of them that is full would keep others from
// asking. It ends with the socket.
func answer(l net.Listener) {
	for {
		asker, err := l.Accept()
		if err != nil {
			return
		}
		asker.Close()
	}
}

// leave ends one use of a claim.
func (c *Claims) leave(device string, h *hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.users--; h.users == 0 && c.held[device] == h {
		delete(c.held, device)
		h.socket.Close()
	}
}

// Has reports whether this daemon has claimed a device, and nothing has been reserved for the system's since.
func (c *Claims) Has(device string) bool {
	if rundir.Reserved(filepath.Dir(c.system)) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[device] != nil
}

// Close gives everything back, whoever uses it.
func (c *Claims) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for device, h := range c.held {
		errs = append(errs, h.socket.Close())
		delete(c.held, device)
	}
	return errors.Join(errs...)
}

// ask returns who listens at a socket.
func ask(socket string) (*unix.Ucred, error) {
	c, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var holder *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { holder, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return holder, errors.Join(err, failed)
}
