package driver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library is what is called of the driver.
type library struct {
	start            func(flags uint32) int32
	state            func(pid int32, condition *int32) int32
	lock             func(pid int32, args *[8]uint64) int32
	restore          func(pid int32, args *restoreArgs) int32
	checkpoint, open func(pid int32, args uintptr) int32
}

// restoreArgs are those of Restore, as the driver has them.
type restoreArgs struct {
	pairs *Pair // which is laid out as the driver's
	count uint32
	_     [52]byte
}

var _ = [1]struct{}{}[unsafe.Sizeof(restoreArgs{})-64]

// load finds the driver's library at path.
func load(path string) (*library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("no driver: %w", err)
	}
	l := &library{}
	for name, f := range map[string]any{
		"cuInit": &l.start, "cuCheckpointProcessGetState": &l.state, "cuCheckpointProcessLock": &l.lock,
		"cuCheckpointProcessCheckpoint": &l.checkpoint, "cuCheckpointProcessRestore": &l.restore,
		"cuCheckpointProcessUnlock": &l.open,
	} {
		symbol, err := purego.Dlsym(handle, name)
		if err != nil {
			return nil, fmt.Errorf("the driver has no %s (570 and newer have it): %w", name, err)
		}
		purego.RegisterFunc(f, symbol)
	}
	return l, nil
}

// do makes a call.
func (l *library) do(r request) (answer reply) {
	answer.ID = r.ID
	pid := int32(r.PID)
	switch r.Call {
	case State:
		answer.Result = Result(l.state(pid, &answer.Condition))
	case Lock:
		answer.Result = Result(l.lock(pid, &[8]uint64{uint64(r.Timeout)}))
	case Checkpoint:
		answer.Result = Result(l.checkpoint(pid, 0))
	case Restore:
		var args *restoreArgs // without pairs: back to the same devices
		if len(r.Pairs) > 0 {
			args = &restoreArgs{pairs: &r.Pairs[0], count: uint32(len(r.Pairs))}
		}
		answer.Result = Result(l.restore(pid, args))
	case Unlock:
		answer.Result = Result(l.open(pid, 0))
	default:
		answer.Text = fmt.Sprintf("the helper knows no call %q", r.Call)
	}
	return answer
}

// Serve answers requests that come in until there are no more, with the driver's library at path. It initialises the driver
// where start says so: NVIDIA's restores only for a process that has it initialised, unless persistence mode is on. What
// keeps it from calling the driver is the answer to each request.
func Serve(path string, start bool, in io.Reader, out io.Writer) error {
	l, failed := load(path)
	if failed == nil && start {
		if r := l.start(0); r != 0 {
			failed = fmt.Errorf("the driver does not start: %w", Result(r))
		}
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	var writing sync.Mutex
	encoder := json.NewEncoder(out)
	say := func(r reply) {
		writing.Lock()
		defer writing.Unlock()
		encoder.Encode(r) // who asked has gone where this fails
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("a request is no JSON: %w", err)
		}
		if failed != nil {
			say(reply{ID: r.ID, Text: failed.Error()})
			continue
		}
		calls.Go(func() { say(l.do(r)) })
	}
	return lines.Err()
}
