package attack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// neighbour is an honest tenant that always has something to run.
type neighbour struct {
	name  string
	asked float64 // percent of the device's time
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	done  chan struct{} // closed when it runs nothing more

	mu    sync.Mutex
	wrong string // what it said instead of what it should; guarded by mu
}

// work is what a neighbour is told again and again: to launch so many kernels, of so many µs each, and wait for them.
const work = "launch 20 5000"

// settle starts the neighbours.
func (s *siege) settle(t *testing.T) {
	t.Helper()
	s.neighbours = append(s.neighbours, s.neighbour(t, "honest1", 30), s.neighbour(t, "honest2", 20))
}

func (s *siege) neighbour(t *testing.T, name string, percent float64) *neighbour {
	t.Helper()
	n := &neighbour{name: name, asked: percent, done: make(chan struct{})}
	n.cmd = s.command("lgpu", "run", shape, "--name", name, "--memory", "2GiB", "--compute", fmt.Sprint(percent), "--",
		filepath.Join(bin, "obey"), "../../sim/kernels/control.ptx")
	n.cmd.Stderr = os.Stderr
	out, err := n.cmd.StdoutPipe()
	if err == nil {
		n.in, err = n.cmd.StdinPipe()
	}
	if err == nil {
		err = n.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	n.lines = bufio.NewScanner(out)
	if !n.lines.Scan() || n.lines.Text() != "ready" {
		t.Fatalf("%s says %q", name, n.lines.Text())
	}
	go n.work()
	return n
}

// work runs batch after batch until the input is closed.
func (n *neighbour) work() {
	defer close(n.done)
	for {
		if _, err := fmt.Fprintln(n.in, work); err != nil || !n.lines.Scan() {
			return
		}
		if text := n.lines.Text(); !strings.HasPrefix(text, "launched ") {
			n.mu.Lock()
			n.wrong = text
			n.mu.Unlock()
		}
	}
}

// well returns an error if the neighbour does not work as it should.
func (n *neighbour) well() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.wrong != "" {
		return fmt.Errorf("%s: %s", n.name, n.wrong)
	}
	select {
	case <-n.done:
		return fmt.Errorf("%s has ended", n.name)
	default:
		return nil
	}
}

// meter is how much device time the neighbours have been charged so far, each as its own library counts it.
type meter struct {
	when time.Time
	busy map[string]time.Duration // by path
}

// meter reads it.
func (s *siege) meter() (meter, error) {
	snapshot, err := s.snapshot(callTime)
	m := meter{when: snapshot.GetTime().AsTime(), busy: map[string]time.Duration{}}
	for _, node := range snapshot.GetNodes() {
		for _, d := range node.GetDevices() {
			m.busy[node.GetPath()] += time.Duration(d.GetBusyNs())
		}
	}
	return m, err
}

// shares returns what each neighbour got between two meters, and for whom that is not what it asked for.
func (s *siege) shares(from, to meter) (shares, unfair []string) {
	for _, n := range s.neighbours {
		path := "/" + n.name
		one := spell{got: to.busy[path] - from.busy[path], long: to.when.Sub(from.when)}
		sum := s.whole[n.name]
		s.whole[n.name] = spell{got: sum.got + one.got, long: sum.long + one.long}
		text, err := n.judge(one)
		shares = append(shares, text)
		if err := errors.Join(n.well(), err); err != nil {
			unfair = append(unfair, err.Error())
		}
	}
	return shares, unfair
}

// judge says what the neighbour got, and returns an error if that is not what it asked for.
func (n *neighbour) judge(s spell) (string, error) {
	got := 100 * s.got.Seconds() / s.long.Seconds()
	text := fmt.Sprintf("%s %.1f of %.0f %%", n.name, got, n.asked)
	if got < n.asked-shareLess || got > n.asked+shareMore {
		return text, fmt.Errorf("%s got %.1f %% of the device's time instead of %.0f %%", n.name, got, n.asked)
	}
	return text, nil
}

func (n *neighbour) stop() {
	n.in.Close()
	timer := time.AfterFunc(calm, func() { _ = unix.Kill(-n.cmd.Process.Pid, unix.SIGKILL) })
	defer timer.Stop()
	<-n.done
	_ = n.cmd.Wait()
}
