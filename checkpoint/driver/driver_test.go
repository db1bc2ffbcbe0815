package driver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// helperEnv makes the test binary a helper: one that serves a library, or does what else it names.
const helperEnv = "LGPU_TEST_HELPER"

func TestMain(m *testing.M) {
	switch what := os.Getenv(helperEnv); what {
	case "":
		os.Exit(m.Run())
	case "silent": // takes requests, and answers none
		io.Copy(io.Discard, os.Stdin)
	case "nonsense":
		bufio.NewReader(os.Stdin).ReadString('\n')
		fmt.Println("this is no answer")
		io.Copy(io.Discard, os.Stdin)
	default:
		if err := Serve(what, false, os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
	}
}

func helper(t *testing.T, what string) *Helper {
	t.Helper()
	h := &Helper{Command: func() (*exec.Cmd, error) {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), helperEnv+"="+what)
		return c, nil
	}}
	t.Cleanup(h.Close)
	return h
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// What keeps the helper from calling the driver is the answer to each call.
func TestNoDriver(t *testing.T) {
	h := helper(t, "/nonexistent/libcuda.so.1")
	for range 2 {
		if _, err := h.Do(bounded(t), State, os.Getpid(), 0); err == nil || !strings.Contains(err.Error(), "no driver") {
			t.Errorf("without a library: %v", err)
		}
	}
	if h.PID() == 0 {
		t.Error("there is no helper")
	}
}

// A library that lacks the calls is named.
func TestOldDriver(t *testing.T) {
	h := helper(t, "libc.so.6")
	if _, err := h.Do(bounded(t), State, os.Getpid(), 0); err == nil || !strings.Contains(err.Error(), "570") {
		t.Errorf("with libc in its place: %v", err)
	}
}

// A helper that ends, or talks nonsense, ends the calls that wait; the next call starts another.
func TestHelperEnds(t *testing.T) {
	h := helper(t, "silent")
	for range 3 {
		done := make(chan error, 1)
		go func() {
			_, err := h.Do(bounded(t), Lock, 1, 10)
			done <- err
		}()
		for h.PID() == 0 {
			time.Sleep(time.Millisecond)
		}
		p, err := os.FindProcess(h.PID())
		if err == nil {
			err = p.Kill()
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, ErrHelper) {
			t.Fatalf("a call whose helper was killed: %v", err)
		}
	}
	if _, err := helper(t, "nonsense").Do(bounded(t), Lock, 1, 10); !errors.Is(err, ErrHelper) {
		t.Errorf("a call that is answered by nonsense: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := helper(t, "silent").Do(ctx, Lock, 1, 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that is given up: %v", err)
	}
}

func TestNoHelper(t *testing.T) {
	h := &Helper{Command: func() (*exec.Cmd, error) { return nil, errors.New("there is none") }}
	if _, err := h.Do(bounded(t), Lock, 1, 10); !errors.Is(err, ErrHelper) {
		t.Errorf("without a helper: %v", err)
	}
}

func TestServe(t *testing.T) {
	if err := Serve("/nonexistent", false, strings.NewReader("{\n"), io.Discard); err == nil {
		t.Error("a request that is no JSON is served")
	}
	for _, name := range []any{Running, Locked, Checkpointed, Failed, Condition(9), OutOfMemory, Result(77)} {
		if text := fmt.Sprint(name); text == "" {
			t.Errorf("%#v has no text", name)
		}
	}
}
