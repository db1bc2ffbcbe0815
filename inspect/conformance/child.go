package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRefused is wrapped where lgpu says that what was asked cannot be, which is an answer and no failure.
var ErrRefused = errors.New("refused")

// refusedStatus is the exit status of lgpu when what was asked of it cannot be.
const refusedStatus = 2

// child is a probe that runs in an lgpu.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	remove func() // the node made for it
	ended  bool
}

// serial makes names unique in this process.
var serial atomic.Int64

// start starts a probe as a tenant.
func (r *run) start(ctx context.Context, t tenant) (*child, error) {
	c := &child{remove: func() {}}
	args := append([]string{"run"}, r.common()...)
	args = append(args, "--device", r.Device)
	if t.spatial {
		args = append(args, "--spatial")
	}
	if t.units > 0 {
		args = append(args, "--units", strconv.Itoa(t.units))
	}
	if t.list != "" {
		name := fmt.Sprintf("conformance-%d-%d", os.Getpid(), serial.Add(1))
		create := append([]string{"create"}, r.common()...)
		create = append(create, "/"+name, "lgpu="+r.report.Device+" list="+t.list)
		if err := r.lgpu(ctx, create...); err != nil {
			return nil, err
		}
		c.remove = func() {
			// Not ctx, which may have ended; a node that stays behind is seen in lgpu ps.
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = r.lgpu(ctx, append(append([]string{"rm"}, r.socket()...), "/"+name)...)
		}
		args = append(args, "--name", name)
	}
	args = append(args, "--", r.Program, "conformance", "--probe", fmt.Sprintf("--iterations=%d", r.iterations),
		fmt.Sprintf("--sized=%d", r.report.Units), fmt.Sprintf("--lead=%g", lead), fmt.Sprintf("--seconds=%g", r.Seconds))
	c.cmd = exec.CommandContext(ctx, r.Program, args...)
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(unix.SIGTERM) } // lgpu run passes it on
	c.cmd.WaitDelay = 5 * time.Second
	c.cmd.Stderr = &c.stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		c.remove()
		return nil, fmt.Errorf("make a pipe to a probe: %w", err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		c.remove()
		return nil, fmt.Errorf("make a pipe from a probe: %w", err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		c.remove()
		return nil, fmt.Errorf("start %s: %w", r.Program, err)
	}
	return c, nil
}

func (r *run) socket() []string {
	if r.Socket == "" {
		return nil
	}
	return []string{"--socket=" + r.Socket}
}

func (r *run) common() []string { return append(r.socket(), r.Arguments...) }

// lgpu runs an lgpu command to its end.
func (r *run) lgpu(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.Program, args...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return failure(err, string(out))
}

// failure makes an error of how an lgpu command ended and what it said.
func failure(err error, said string) error {
	if err == nil {
		return nil
	}
	var text string
	for line := range strings.Lines(said) {
		if _, message, ok := strings.Cut(line, "lgpu: error: "); ok {
			text = strings.TrimSpace(message)
		}
	}
	if text == "" {
		text = strings.Join(strings.Fields(said), " ")
	}
	if text == "" {
		text = "it said nothing"
	}
	var exited *exec.ExitError
	if errors.As(err, &exited) && exited.ExitCode() == refusedStatus {
		return fmt.Errorf("%w: %s", ErrRefused, text)
	}
	return fmt.Errorf("%s (%w)", text, err)
}

// ready waits until the probe has a context.
func (c *child) ready() error {
	line, err := c.out.ReadString('\n')
	if err == nil && line == "ready\n" {
		return nil
	}
	return c.over(fmt.Errorf("the probe said %q: %v", line, err))
}

// begin lets the probe work.
func (c *child) begin() error {
	if _, err := io.WriteString(c.in, "go\n"); err != nil {
		return c.over(err)
	}
	return nil
}

// result waits for what the probe measured.
func (c *child) result() (Measurement, error) {
	var m Measurement
	line, err := c.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &m)
	}
	if err != nil {
		return m, c.over(fmt.Errorf("the probe said %q: %w", line, err))
	}
	if m.Rate <= 0 || m.DeviceTime <= 0 {
		return m, c.over(fmt.Errorf("no kernel ran in the measured time"))
	}
	return m, nil
}

// over waits for the end of a probe that went wrong, and says why it did.
func (c *child) over(why error) error {
	c.in.Close()
	err := c.wait()
	if err == nil {
		return why
	}
	return failure(err, c.stderr.String())
}

func (c *child) wait() error {
	if c.ended {
		return nil
	}
	c.ended = true
	return c.cmd.Wait()
}

// end lets the probe end and removes what was made for it.
func (c *child) end() {
	c.in.Close()
	_ = c.wait() // how a probe ends that has answered, or was never asked, is of no interest
	c.remove()
}
