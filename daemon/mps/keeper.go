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
	"github.com/lgpu/lgpu/internal/proc"
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
	now *proc.Handle // nil while there is none
}

func (k *keeper) pipe() string    { return filepath.Join(k.dir, "pipe") }
func (k *keeper) log() string     { return filepath.Join(k.dir, "log") }
func (k *keeper) pidFile() string { return filepath.Join(k.dir, "pid") }

func (k *keeper) process() *proc.Handle {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

func (k *keeper) set(p *proc.Handle) {
	k.mu.Lock()
	k.now = p
	k.mu.Unlock()
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
	p, err := proc.Open(pid, started)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(k.m.ctx, k.m.config.Start)
	defer cancel()
	if err := k.answers(ctx, p); err != nil {
		k.kill(p)
		return false
	}
	k.set(p)
	k.m.emit(Event{Device: k.uuid, Kind: "mps.adopted", PID: pid})
	return true
}

// clean removes what is left of a daemon that is dead: servers that lost it, and its files.
func (k *keeper) clean() {
	for _, pid := range k.orphans() {
		if p, err := proc.Open(pid, 0); err == nil {
			k.kill(p)
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
	p, err := proc.Open(cmd.Process.Pid, 0) // not reaped yet, so it is this one
	go cmd.Wait()                           // reaps it; its end is seen by the descriptor
	if err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	give := func(err error) error {
		k.kill(p)
		return fmt.Errorf("start %s: %w%s", program, err, k.lastWords())
	}
	status, err := proc.Read(p.PID)
	if err != nil {
		return give(err)
	}
	if err := os.WriteFile(k.pidFile(), fmt.Appendf(nil, "%d %d\n", p.PID, status.Start), 0o644); err != nil {
		return give(fmt.Errorf("note its process: %w", err))
	}
	ctx, cancel := context.WithTimeout(ctx, k.m.config.Start)
	defer cancel()
	if err := k.answers(ctx, p); err != nil {
		return give(err)
	}
	k.set(p)
	k.m.emit(Event{Device: k.uuid, Kind: "mps.started", PID: p.PID})
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
func (k *keeper) answers(ctx context.Context, p *proc.Handle) error {
	for {
		_, err := k.ask(ctx, "get_server_list")
		if err == nil {
			return nil
		}
		if p.WaitFor(ctx, 20*time.Millisecond) {
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
		if err := p.Wait(k.ctx); err != nil || k.ctx.Err() != nil {
			return
		}
		k.set(nil)
		p.Close()
		k.m.emit(Event{Device: k.uuid, Kind: "mps.died", PID: p.PID,
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
func (k *keeper) let() *proc.Handle {
	k.cancel()
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
		p.Close()
		k.m.emit(Event{Device: k.uuid, Kind: "mps.stopped", PID: p.PID})
	}
	k.clean()
}

// signal sends p a signal. Where that fails p does not end, which whoever waits for it sees.
func (k *keeper) signal(p *proc.Handle, s unix.Signal) {
	if err := p.Signal(s); err != nil {
		k.m.config.Log.Warn("a process of MPS cannot be stopped", "pid", p.PID, "error", err)
	}
}

// kill ends the process p by force, and lets go of it.
func (k *keeper) kill(p *proc.Handle) {
	k.signal(p, unix.SIGKILL)
	p.WaitFor(context.Background(), k.m.config.Stop)
	p.Close()
}

// stop ends the process p: asked, told, forced.
func (k *keeper) stop(p *proc.Handle) {
	ctx, cancel := context.WithTimeout(context.Background(), k.m.config.Stop)
	defer cancel()
	if _, err := k.ask(ctx, "quit"); err == nil && p.WaitFor(context.Background(), k.m.config.Stop) {
		return
	}
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		k.signal(p, s)
		if p.WaitFor(context.Background(), k.m.config.Stop) {
			return
		}
	}
}

// leave stops looking after the daemon, which goes on.
func (k *keeper) leave() {
	if p := k.let(); p != nil {
		p.Close()
	}
}

// processes are the daemon's process id and those of its servers, which are its children: any program can call itself
// one and have the environment of one.
func (k *keeper) processes() []int {
	p := k.process()
	if p == nil {
		return nil
	}
	pids := []int{p.PID}
	for _, pid := range k.orphans() {
		if s, err := proc.Read(pid); err == nil && s.Parent == p.PID {
			pids = append(pids, pid)
		}
	}
	return pids
}
