package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lgpu/lgpu/internal/logs"
)

// Environment of a daemon that is started by need.
const (
	// EnvDir names the runtime folder.
	EnvDir = "LGPU_RUNTIME_DIR"
	// EnvReady is the descriptor where the daemon says that it serves, or why it cannot: see Readiness.
	EnvReady = "LGPU_READY_FD"
)

const (
	startLock = "lgpud.start" // held by whoever starts a daemon
	lastWords = 2048          // bytes at the end of the log
)

const readyWord = "ready"

// succession bounds the time in which daemons end as soon as they have begun.
const succession = 10 * time.Second

// start connects to the daemon of dir, after starting it if still nobody has.
func start(ctx context.Context, dir string, o Options) (*Conn, error) {
	unlock, err := lock(ctx, filepath.Join(dir, startLock))
	if err != nil {
		return nil, fmt.Errorf("start a daemon: %w", err)
	}
	defer unlock()
	socket := filepath.Join(dir, Socket)
	for began := time.Now(); ; {
		c, err := connect(ctx, socket, o)
		if err == nil || !errors.Is(err, ErrNoDaemon) || time.Since(began) > succession {
			return c, err
		}
		if err := launch(ctx, dir, o.Start); err != nil {
			return nil, fmt.Errorf("start a daemon: %w", err)
		}
		// It may be told to end before it was asked anything: then there is to be another.
	}
}

// lock takes the exclusive lock of the file at path, made if need be. It ends with the process at the latest.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	locked := make(chan error, 1)
	go func() {
		for {
			err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
			if err != syscall.EINTR {
				locked <- err
				return
			}
		}
	}()
	select {
	case err := <-locked:
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		go func() { <-locked; f.Close() }()
		return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
	}
}

// launch runs command, which becomes a daemon of dir, until it serves.
func launch(ctx context.Context, dir string, command []string) error {
	log, err := logs.Open(filepath.Join(dir, Log))
	if err != nil {
		return err
	}
	defer log.Close()
	said, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	ready, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command(command[0], command[1:]...)
	// Which devices the program is to see is no concern of the daemon's.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CUDA_") })
	cmd.Env = append(env, EnvDir+"="+dir, EnvReady+"=3")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return err
	}
	go cmd.Wait() // it goes on alone; what matters comes through the pipe
	stop := context.AfterFunc(ctx, func() { ready.Close() })
	defer stop()
	answer, err := io.ReadAll(io.LimitReader(ready, 4096))
	switch text := strings.TrimSpace(string(answer)); {
	case text == readyWord:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("wait for it: %w", context.Cause(ctx))
	case text != "":
		return errors.New(text)
	case err != nil:
		return fmt.Errorf("wait for it: %w", err)
	}
	return fmt.Errorf("it ended at once; %s", words(log, said))
}

// words returns what the daemon said last in its log, from an offset on.
func words(log *os.File, from int64) string {
	info, err := log.Stat()
	if err != nil {
		return err.Error()
	}
	from = max(from, info.Size()-lastWords)
	s := bufio.NewScanner(io.NewSectionReader(log, from, lastWords))
	last := ""
	for s.Scan() {
		if line := strings.TrimSpace(s.Text()); line != "" {
			last = line
		}
	}
	if last == "" {
		return "it said nothing in " + log.Name()
	}
	return fmt.Sprintf("its last words in %s: %s", log.Name(), last)
}

// Readiness returns how a daemon answers who started it and waits: nil when it serves, else why it cannot. Without
// anybody waiting the answer goes nowhere. It is to be called before the daemon starts programs, which would keep the
// starter waiting.
func Readiness() (answer func(error)) {
	fd, err := strconv.Atoi(os.Getenv(EnvReady))
	os.Unsetenv(EnvReady)
	if err != nil || fd < 3 {
		return func(error) {}
	}
	syscall.CloseOnExec(fd)
	w := os.NewFile(uintptr(fd), "ready")
	return func(err error) {
		text := readyWord
		if err != nil {
			text = err.Error()
		}
		_, _ = io.WriteString(w, text+"\n") // nobody may be waiting any more
		w.Close()
	}
}
