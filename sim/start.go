package sim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/sim/wire"
)

// StartOptions are where and how a hardware process is started.
type StartOptions struct {
	// Dir is the folder of the sockets, which must exist (rundir.Dir).
	Dir string
	// Command starts the hardware process: it must call Main with the arguments that Start adds.
	Command []string
	// Idle is how long the process stays without tenants; the default is 300 ms.
	Idle time.Duration
	// Timeout bounds how long the process may take to answer; the default is 20 s.
	Timeout time.Duration
}

// Hardware is a tenant's hold on a hardware process.
type Hardware struct {
	Socket string       // for the environment of programs (wire.Environment)
	Client *wire.Client // its devices; as long as it is open the process stays
}

// Close lets go. The process ends soon after nobody holds it any more and no program is connected.
func (h *Hardware) Close() error { return h.Client.Close() }

// SocketPath is the socket of the hardware process of a shape in dir. The name is a digest, since a socket's path must be
// short.
func SocketPath(dir string, shape Shape) string {
	sum := sha256.Sum256([]byte(shape.String()))
	return filepath.Join(dir, fmt.Sprintf("sim-%x.sock", sum[:6]))
}

// Start returns a hold on the hardware process of shape, which it starts if none is running. Any number of processes may
// call it at once, and one hardware process comes of it.
func Start(shape Shape, o StartOptions) (*Hardware, error) {
	if err := shape.Check(); err != nil {
		return nil, err
	}
	if o.Idle <= 0 {
		o.Idle = 300 * time.Millisecond
	}
	if o.Timeout <= 0 {
		o.Timeout = 20 * time.Second
	}
	socket := SocketPath(o.Dir, shape)
	unlock, err := lock(socket)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// A process that is about to end does so under the lock: what answers now stays until the hold is given up.
	client, err := wire.Dial(socket, o.Timeout)
	if err == nil {
		return &Hardware{Socket: socket, Client: client}, nil
	}
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		return nil, err
	}
	if len(o.Command) == 0 {
		return nil, fmt.Errorf("no software GPU is running: %w", err)
	}
	if err := launch(socket, shape, o); err != nil {
		return nil, err
	}
	client, err = wire.Dial(socket, o.Timeout)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, lastWords(socket))
	}
	return &Hardware{Socket: socket, Client: client}, nil
}

func lock(socket string) (unlock func(), err error) {
	path := strings.TrimSuffix(socket, ".sock") + ".lock"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the software GPU: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

func logPath(socket string) string { return strings.TrimSuffix(socket, ".sock") + ".log" }

// lastWords is the end of a hardware process's log, for an error.
func lastWords(socket string) string {
	text, err := os.ReadFile(logPath(socket))
	if err != nil || len(text) == 0 {
		return ""
	}
	return "; its log ends: " + strings.TrimSpace(string(text[max(0, len(text)-500):]))
}

// Listen makes the socket at path in the place of one that nobody listens on, for all users, as the files of devices
// are: who may pass its folder may use the GPU. The caller holds the lock, or knows that nobody else does this.
func Listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for programs: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(fmt.Errorf("open the socket to all users: %w", err), l.Close())
	}
	return l, nil
}

// launch starts a hardware process that inherits the listening socket: whoever connects from then on is served when it is
// ready, so that nobody has to wait for that.
func launch(socket string, shape Shape, o StartOptions) error {
	l, err := Listen(socket)
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	inherited, err := l.File()
	if err != nil {
		return fmt.Errorf("share the socket: %w", err)
	}
	defer inherited.Close()
	log, err := os.Create(logPath(socket))
	if err != nil {
		return fmt.Errorf("make the log of the software GPU: %w", err)
	}
	defer log.Close()
	args := append(o.Command[1:len(o.Command):len(o.Command)], "--inherit="+socket, "--shape="+shape.String(), "--idle="+o.Idle.String())
	cmd := exec.Command(o.Command[0], args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{inherited}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the software GPU: %w", err)
	}
	go cmd.Wait() // it may well outlive this process; until then it is not left a zombie
	return nil
}

// Inherited is the hardware process that Start started: socket, shape and idle are the values of the flags --inherit,
// --shape and --idle that it added to the command. It returns when the process has ended, or when ctx has.
func Inherited(ctx context.Context, socket, shape string, idle time.Duration, log *slog.Logger) error {
	s, err := ParseShape(shape)
	if err != nil {
		return err
	}
	f := os.NewFile(3, "listener")
	any, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("take over the socket: %w", err)
	}
	l, ok := any.(*net.UnixListener)
	if !ok {
		return errors.Join(fmt.Errorf("descriptor 3 is no Unix socket"), any.Close())
	}
	return Serve(ctx, l, s, ServeOptions{Idle: idle, Log: log, MayEnd: func(end func() bool) error {
		unlock, err := lock(socket)
		if errors.Is(err, os.ErrNotExist) {
			end() // the folder has been removed: nobody can come any more
			return nil
		}
		if err != nil {
			return err
		}
		defer unlock()
		if end() {
			err = errors.Join(os.Remove(socket), l.Close())
		}
		return err
	}})
}

var _ io.Closer = (*Hardware)(nil)
