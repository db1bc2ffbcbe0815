// Package claim keeps two users' daemons from managing the same device. Where no system daemon runs, each user has a
// daemon of her own, and each would think that the whole device is its to give: so a daemon claims the devices that it
// manages, and the kernel ends the claim with the daemon.
//
// A claim is an abstract unix socket named for the device, which only one process of the machine (of its network
// namespace) can have. Who asks in vain learns from the kernel whose it is.
package claim

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	// System says that it is the system's daemon that has all devices.
	System bool
}

func (e *Held) Error() string {
	if e.System {
		return "the system's daemon manages this machine's devices"
	}
	return fmt.Sprintf("device %s is managed by the daemon of user %s (process %d)", e.Device, users.Name(e.UID), e.PID)
}

// Hint says what to do.
func (e *Held) Hint() string {
	if e.System {
		return "leave out LGPU_RUNTIME_DIR, LGPU_SOCKET_API and --socket to use it"
	}
	return "wait until that ends, or ask the administrator for a system daemon, which shares devices between users"
}

// Claims are those of one daemon. Methods may be called by several goroutines.
type Claims struct {
	system string // the socket of the system's daemon

	mu   sync.Mutex
	held map[string]net.Listener // guarded by mu; by device
}

// New is a daemon without claims, beside a system daemon whose socket would be at system.
func New(system string) *Claims { return &Claims{system: system, held: map[string]net.Listener{}} }

// Take claims a device, or returns a *Held if somebody else has it. What is claimed already is so still.
func (c *Claims) Take(device string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[device] != nil {
		return nil
	}
	if holder, err := ask(c.system); err == nil {
		return &Held{Device: device, UID: holder.Uid, PID: int(holder.Pid), System: true}
	}
	l, err := net.Listen("unix", prefix+device)
	if errors.Is(err, unix.EADDRINUSE) {
		held := &Held{Device: device}
		if holder, err := ask(prefix + device); err == nil {
			held.UID, held.PID = holder.Uid, int(holder.Pid)
		}
		return held
	}
	if err != nil {
		return fmt.Errorf("claim device %s: %w", device, err)
	}
	c.held[device] = l // nobody accepts: who connects only asks the kernel whose it is
	return nil
}

// Close gives everything back.
func (c *Claims) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for device, l := range c.held {
		errs = append(errs, l.Close())
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
