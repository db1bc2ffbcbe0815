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
const work, each = "launch 20 5000", 5 * time.Millisecond

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

// meter is what the neighbours have had so far, by path: for how long they had work on the device, each as its own library
// counts it, and the device time of the kernels that they have launched, of which a few still wait. Where kernels of several
// lgpus share the device, or the software GPU has no processor, the former is longer.
type meter struct {
	when         time.Time
	busy, worked map[string]time.Duration
}

// meter reads it.
func (s *siege) meter() (meter, error) {
	snapshot, err := s.snapshot(callTime)
	m := meter{when: snapshot.GetTime().AsTime(), busy: map[string]time.Duration{}, worked: map[string]time.Duration{}}
	for _, node := range snapshot.GetDirectories() {
		for _, d := range node.GetDevices() {
			m.busy[node.GetPath()] += time.Duration(d.GetBusyNs())
			m.worked[node.GetPath()] += time.Duration(d.GetLaunches()) * each
		}
	}
	return m, err
}

// shares returns what each neighbour got between two meters, and those whose part is not what they asked for.
func (s *siege) shares(from, to meter) (shares, unfair []string) {
	for _, n := range s.neighbours {
		path := "/" + n.name
		one := spell{busy: to.busy[path] - from.busy[path], worked: to.worked[path] - from.worked[path], long: to.when.Sub(from.when)}
		sum := s.whole[n.name]
		s.whole[n.name] = spell{busy: sum.busy + one.busy, worked: sum.worked + one.worked, long: sum.long + one.long}
		text, err := n.judge(one)
		shares = append(shares, text)
		if err := errors.Join(n.well(), err); err != nil {
			unfair = append(unfair, err.Error())
		}
	}
	return shares, unfair
}

// judge says what the neighbour got, and returns an error if that is not what it asked for: if it was on the device for less,
// or more of its work was done.
func (n *neighbour) judge(s spell) (string, error) {
	busy, worked := 100*s.busy.Seconds()/s.long.Seconds(), 100*s.worked.Seconds()/s.long.Seconds()
	text := fmt.Sprintf("%s %.1f of %.0f %%, on the device for %.1f %%", n.name, worked, n.asked, busy)
	if busy < n.asked-shareLess || worked > n.asked+shareMore {
		return text, fmt.Errorf("%s got %.1f %% of the device's time instead of %.0f %%, and was on it for %.1f %%", n.name, worked, n.asked, busy)
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
