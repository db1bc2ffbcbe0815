package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/gpu"
)

// keeper looks after the control daemon of one device.
type keeper struct {
	m      *Manager
	uuid   gpu.UUID
	dir    string
	ctx    context.Context // ends when the daemon is not to be looked after any more
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has returned

	mu  sync.Mutex
	now *process // nil while there is none
}

// process is a running control daemon, known by a descriptor that no other process can take over.
type process struct {
	pid   int
	pidfd *os.File
}

func (k *keeper) pipe() string    { return filepath.Join(k.dir, "pipe") }
func (k *keeper) log() string     { return filepath.Join(k.dir, "log") }
func (k *keeper) pidFile() string { return filepath.Join(k.dir, "pid") }

func (k *keeper) process() *process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

func (k *keeper) set(p *process) {
	k.mu.Lock()
	k.now = p
	k.mu.Unlock()
}

// open takes hold of process pid if it started at that time (in clock ticks since boot; 0 for any).
func open(pid int, started uint64) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &process{pid: pid, pidfd: os.NewFile(uintptr(fd), "pidfd")}
	if at, err := startTime(pid); err != nil || started != 0 && at != started {
		p.pidfd.Close()
		return nil, fmt.Errorf("process %d is another one now: %w", pid, unix.ESRCH)
	}
	return p, nil
}

// startTime is when a process started, in clock ticks since boot.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may contain anything; the fields after it are numbered from 3.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("process %d: unknown format of stat", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// wait returns nil when the process has ended, or an error when it has been interrupted.
func (p *process) wait() error {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
}

func (p *process) signal(s unix.Signal) {
	if conn, err := p.pidfd.SyscallConn(); err == nil {
		// The only error is that the process has ended, which whoever waits for it sees.
		_ = conn.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), s, nil, 0) })
	}
}

// interrupt makes wait return, now or when it is called next.
func (p *process) interrupt() { _ = p.pidfd.SetReadDeadline(time.Now()) }

// waitFor is wait with a limit; it reports whether the process has ended.
func (p *process) waitFor(d time.Duration) bool {
	_ = p.pidfd.SetReadDeadline(time.Now().Add(d))
	defer p.pidfd.SetReadDeadline(time.Time{})
	return p.wait() == nil
}

// adopt takes over the daemon that a former manager has left; false if there is none that answers.
func (k *keeper) adopt() bool {
	text, err := os.ReadFile(k.pidFile())
	if err != nil {
		return false
	}
	var pid int
	var started uint64
	if n, _ := fmt.Sscanf(string(text), "%d %d", &pid, &started); n != 2 || pid <= 1 || started == 0 {
		return false
	}
	p, err := open(pid, started)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(k.m.ctx, k.m.config.Start)
	defer cancel()
	if err := k.answers(ctx, p); err != nil {
		p.signal(unix.SIGKILL)
		p.waitFor(k.m.config.Stop)
		p.pidfd.Close()
		return false
	}
	k.set(p)
	k.m.emit(Event{Device: k.uuid, Kind: "mps.adopted", PID: pid})
	return true
}

// clean removes what is left of a daemon that is dead: servers that lost it, and its files.
func (k *keeper) clean() {
	for _, pid := range k.orphans() {
		if p, err := open(pid, 0); err == nil {
			p.signal(unix.SIGKILL)
			p.waitFor(k.m.config.Stop)
			p.pidfd.Close()
		}
	}
	if err := os.RemoveAll(k.dir); err != nil {
		k.m.config.Log.Warn("remove the files of an MPS control daemon", "error", err)
	}
}

// orphans are processes of MPS that use this device's pipes.
func (k *keeper) orphans() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
		// The kernel keeps 15 bytes of a name.
		if err != nil || !strings.HasPrefix(string(name), "nvidia-cuda-mps") {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && slices.Contains(strings.Split(string(environ), "\x00"), "CUDA_MPS_PIPE_DIRECTORY="+k.pipe()) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// environment is this process's, without what would make the daemon a tenant or another daemon's client, and with the
// daemon's own.
func (k *keeper) environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "CUDA_") || strings.HasPrefix(v, "LGPU_") || strings.HasPrefix(v, "LD_PRELOAD=")
	})
	return append(env, "CUDA_VISIBLE_DEVICES="+k.uuid.String(), "CUDA_MPS_PIPE_DIRECTORY="+k.pipe(),
		"CUDA_MPS_LOG_DIRECTORY="+k.log())
}

// start starts the daemon and returns when it answers.
func (k *keeper) start(ctx context.Context) error {
	program, err := exec.LookPath(k.m.config.Command)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	k.clean()
	// Clients of any user reach the pipes through these.
	for _, dir := range []string{k.dir, k.pipe(), k.log()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make the folder of an MPS control daemon: %w", err)
		}
	}
	out, err := os.Create(filepath.Join(k.log(), "output"))
	if err != nil {
		return fmt.Errorf("make the log of an MPS control daemon: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(program, "-f")
	cmd.Env, cmd.Dir = k.environment(), "/"
	cmd.Stdout, cmd.Stderr = out, out // a file, so that nobody waits for a pipe that a server has inherited
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	p, err := open(cmd.Process.Pid, 0) // not reaped yet, so it is this one
	go cmd.Wait()                      // reaps it; its end is seen by the descriptor
	if err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	give := func(err error) error {
		p.signal(unix.SIGKILL)
		p.waitFor(k.m.config.Stop)
		p.pidfd.Close()
		return fmt.Errorf("start %s: %w%s", program, err, k.lastWords())
	}
	started, err := startTime(p.pid)
	if err != nil {
		return give(err)
	}
	if err := os.WriteFile(k.pidFile(), fmt.Appendf(nil, "%d %d\n", p.pid, started), 0o644); err != nil {
		return give(fmt.Errorf("note its process: %w", err))
	}
	ctx, cancel := context.WithTimeout(ctx, k.m.config.Start)
	defer cancel()
	if err := k.answers(ctx, p); err != nil {
		return give(err)
	}
	k.set(p)
	k.m.emit(Event{Device: k.uuid, Kind: "mps.started", PID: p.pid})
	return nil
}

// lastWords is the end of what the daemon wrote, for an error.
func (k *keeper) lastWords() string {
	for _, name := range []string{"output", "control.log"} {
		text, err := os.ReadFile(filepath.Join(k.log(), name))
		if text := strings.TrimSpace(string(text)); err == nil && text != "" {
			return "; its log ends: " + text[max(0, len(text)-400):]
		}
	}
	return ""
}

// answers returns nil when the daemon p answers.
func (k *keeper) answers(ctx context.Context, p *process) error {
	for {
		_, err := k.ask(ctx, "get_server_list")
		if err == nil {
			return nil
		}
		if p.waitFor(20 * time.Millisecond) {
			return errors.New("it ended at once")
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it does not answer: %w", err)
		}
	}
}

// ask sends the daemon a command and returns its answer.
func (k *keeper) ask(ctx context.Context, command string) (string, error) {
	cmd := exec.CommandContext(ctx, k.m.config.Command)
	cmd.Env, cmd.Dir, cmd.Stdin = k.environment(), "/", strings.NewReader(command+"\n")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s of MPS: %w: %s", command, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// run looks after the daemon, which runs, until let is called.
func (k *keeper) run() {
	defer close(k.ended)
	pause := k.m.config.RetryMin
	for k.ctx.Err() == nil {
		p := k.process()
		began := time.Now()
		if err := p.wait(); err != nil || k.ctx.Err() != nil {
			return
		}
		k.set(nil)
		p.pidfd.Close()
		k.m.emit(Event{Device: k.uuid, Kind: "mps.died", PID: p.pid,
			Err: fmt.Errorf("the MPS control daemon ended; its clients have lost their contexts%s", k.lastWords())})
		if time.Since(began) > k.m.config.RetryMax {
			pause = k.m.config.RetryMin
		}
		for k.process() == nil {
			select {
			case <-time.After(pause):
			case <-k.ctx.Done():
				return
			}
			pause = min(2*pause, k.m.config.RetryMax)
			if err := k.start(k.ctx); err != nil && k.ctx.Err() == nil {
				k.m.emit(Event{Device: k.uuid, Kind: "mps.failed", Err: err})
			}
		}
	}
}

// let makes run return, and returns the daemon, if there is one, which is the caller's then.
func (k *keeper) let() *process {
	k.cancel()
	if p := k.process(); p != nil {
		p.interrupt()
	}
	<-k.ended
	p := k.process()
	k.set(nil)
	return p
}

// end ends the daemon and returns when it is gone and nothing of it is left.
func (k *keeper) end() {
	p := k.let()
	if p != nil {
		k.stop(p)
		p.pidfd.Close()
		k.m.emit(Event{Device: k.uuid, Kind: "mps.stopped", PID: p.pid})
	}
	k.clean()
}

// stop ends the process p: asked, told, forced.
func (k *keeper) stop(p *process) {
	ctx, cancel := context.WithTimeout(context.Background(), k.m.config.Stop)
	defer cancel()
	if _, err := k.ask(ctx, "quit"); err == nil && p.waitFor(k.m.config.Stop) {
		return
	}
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		p.signal(s)
		if p.waitFor(k.m.config.Stop) {
			return
		}
	}
}

// leave stops looking after the daemon, which goes on.
func (k *keeper) leave() {
	if p := k.let(); p != nil {
		p.pidfd.Close()
	}
}

// processes are the daemon's process id and those of its servers.
func (k *keeper) processes() []int {
	p := k.process()
	if p == nil {
		return nil
	}
	pids := []int{p.pid}
	for _, pid := range k.orphans() {
		if pid != p.pid {
			pids = append(pids, pid)
		}
	}
	return pids
}
