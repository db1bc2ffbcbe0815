// Package driver makes the driver's calls by which processes are checkpointed, from a helper process: the driver's library
// is loaded and initialised once, and not in the daemon, which it could take down. The two talk in lines of JSON.
//
// A Helper may be used by several goroutines at once. Calls about different processes are made at the same time.
package driver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
)

// Call is one of the driver's calls.
type Call string

// The calls, by what follows cuCheckpointProcess in their names.
const (
	State      Call = "GetState"
	Lock       Call = "Lock"
	Checkpoint Call = "Checkpoint"
	Restore    Call = "Restore"
	Unlock     Call = "Unlock"
)

// Condition is what the driver says of a process.
type Condition int32

// The conditions.
const (
	Running Condition = iota
	Locked
	Checkpointed
	Failed
)

// String is the condition as a word.
func (c Condition) String() string {
	if names := []string{"running", "locked", "checkpointed", "failed"}; c >= 0 && int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("condition %d", int32(c))
}

// Result is the driver's answer to a call that failed.
type Result int32

// Results that mean something here.
const (
	InvalidValue   Result = 1
	OutOfMemory    Result = 2
	NotInitialized Result = 3
	IllegalState   Result = 401
	NotReady       Result = 600
)

var results = map[Result]string{
	InvalidValue: "there is no such process, or device", OutOfMemory: "the device has no room for its memory",
	NotInitialized: "it does not use the driver", 46: "there is no device", 200: "its image has been damaged",
	304: "it is at its limit of descriptors, or the system refuses", IllegalState: "it is in another state",
	NotReady: "its work does not end", 800: "the daemon may not",
	801: "it has something that the driver cannot save (LGPU_LOG=1 in its environment says what)",
}

// Error says what the result means.
func (r Result) Error() string {
	if text := results[r]; text != "" {
		return fmt.Sprintf("%s (error %d)", text, int32(r))
	}
	return fmt.Sprintf("error %d", int32(r))
}

// ErrHelper: the helper process has ended, or could not be started.
var ErrHelper = errors.New("the helper that calls the driver has ended")

// request and reply are what travels.
type request struct {
	ID      uint64 `json:"id"`
	Call    Call   `json:"call"`
	PID     int    `json:"pid"`
	Timeout uint32 `json:"timeout,omitempty"` // ms, of Lock
	Pairs   []Pair `json:"pairs,omitempty"`   // of Restore
}

// Pair says that a device takes another's place.
type Pair struct {
	Old [16]byte `json:"old"` // UUID of the one that the process was on
	New [16]byte `json:"new"` // and of the one that it is to be on
}

type reply struct {
	ID        uint64 `json:"id"`
	Result    Result `json:"result"`
	Condition int32  `json:"condition"`
	Text      string `json:"text,omitempty"` // why the call could not be made at all
}

// Helper is a helper process, started when it is first needed, and again after it has ended.
type Helper struct {
	// Command makes the command of a helper: one that calls Serve.
	Command func() (*exec.Cmd, error)

	mu      sync.Mutex
	process *process
	last    uint64
}

// process is one that runs.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	waits map[uint64]chan reply // nil once it has ended; guarded by Helper.mu
}

// Do makes a call about a process. timeout is Lock's, in ms. If ctx ends before the answer the call may still be made. An
// error is a Result, ErrHelper, or that of ctx.
func (h *Helper) Do(ctx context.Context, call Call, pid int, timeout uint32) (Condition, error) {
	return h.do(ctx, request{Call: call, PID: pid, Timeout: timeout})
}

// Restore is Do for Restore, on the devices that pairs say: all that the driver shows, each once; none if they are the same.
func (h *Helper) Restore(ctx context.Context, pid int, pairs []Pair) error {
	_, err := h.do(ctx, request{Call: Restore, PID: pid, Pairs: pairs})
	return err
}

func (h *Helper) do(ctx context.Context, r request) (Condition, error) {
	call, pid := r.Call, r.PID
	p, id, answer, err := h.ask(r)
	if err != nil {
		return 0, err
	}
	select {
	case r, ok := <-answer:
		switch {
		case !ok:
			return 0, fmt.Errorf("%s of process %d: %w", call, pid, ErrHelper)
		case r.Text != "":
			return 0, fmt.Errorf("%s of process %d: %s", call, pid, r.Text)
		case r.Result != 0:
			return 0, fmt.Errorf("%s of process %d: %w", call, pid, r.Result)
		}
		return Condition(r.Condition), nil
	case <-ctx.Done():
		h.mu.Lock()
		delete(p.waits, id)
		h.mu.Unlock()
		return 0, ctx.Err()
	}
}

func (h *Helper) ask(r request) (*process, uint64, chan reply, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.process == nil {
		p, err := h.start()
		if err != nil {
			return nil, 0, nil, fmt.Errorf("%w: %w", ErrHelper, err)
		}
		h.process = p
	}
	p := h.process
	h.last++
	r.ID = h.last
	line, err := json.Marshal(r)
	if err != nil {
		return nil, 0, nil, err
	}
	answer := make(chan reply, 1)
	p.waits[h.last] = answer
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		delete(p.waits, h.last)
		return nil, 0, nil, fmt.Errorf("%w: %w", ErrHelper, err)
	}
	return p, h.last, answer, nil
}

// start starts a helper. Called with mu held.
func (h *Helper) start() (*process, error) {
	cmd, err := h.Command()
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, in: in, waits: map[uint64]chan reply{}}
	go h.listen(p, out)
	return p, nil
}

// listen hands answers to those who wait, until the helper ends.
func (h *Helper) listen(p *process, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r reply
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			break
		}
		h.mu.Lock()
		if answer := p.waits[r.ID]; answer != nil {
			answer <- r
			delete(p.waits, r.ID)
		}
		h.mu.Unlock()
	}
	h.mu.Lock()
	for _, answer := range p.waits {
		close(answer)
	}
	p.waits = nil
	if h.process == p {
		h.process = nil
	}
	h.mu.Unlock()
	p.in.Close()
	p.cmd.Process.Kill() // where it said what is no answer
	p.cmd.Wait()
}

// PID is the helper's process number, 0 while there is none.
func (h *Helper) PID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.process == nil {
		return 0
	}
	return h.process.cmd.Process.Pid
}

// Close ends the helper, which ends the calls under way.
func (h *Helper) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.process != nil {
		h.process.in.Close()
	}
}
