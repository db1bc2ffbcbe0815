package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// standInReady is the descriptor that a command which was started in a terminal closes when that is plain and input may come.
const standInReady = 3

// plain sets a terminal so that nothing is shown that was not written, nor changed, nor a signal. What ends input needs lines.
func plain(terminal *os.File) error {
	modes, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	modes.Iflag, modes.Oflag, modes.Lflag = 0, 0, unix.ICANON
	modes.Cc[unix.VEOF] = inputEnd
	return unix.IoctlSetTermios(int(terminal.Fd()), unix.TCSETS, modes)
}

// inputEnd is Ctrl-D.
const inputEnd = 4

// standIn is a terminal for programs where this command has none: what is written to it comes to an output as it is, and an
// input comes to it by lines, with its end.
type standIn struct {
	in      io.Reader
	user    *os.File // where the other side of a terminal would be
	program *os.File
	written chan struct{} // closed when all output has been written
}

// newStandIn makes a terminal between an input and an output.
func newStandIn(in io.Reader, out io.Writer) (*standIn, error) {
	user, program, err := pty.Open()
	if err != nil {
		return nil, err
	}
	s := &standIn{in: in, user: user, program: program, written: make(chan struct{})}
	if err := plain(program); err != nil {
		return nil, errors.Join(err, user.Close(), program.Close())
	}
	go func() {
		defer close(s.written)
		_, _ = io.Copy(out, user) // ends with the last process that has the terminal, or by close
	}()
	return s, nil
}

// start is the starter of a command that needs a terminal where this one has none: as the first process of a session
// of its own, whose terminal stands between the standard input and output of this command. Closing it brings the last output.
func (s *standIn) start(path string, argv []string, attr *os.ProcAttr) (*os.Process, func() error, error) {
	ready, its, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	a, sys := *attr, *attr.Sys
	a.Files = []*os.File{s.program, s.program, os.Stderr, standInReady: its}
	sys.Setsid, sys.Setctty = true, true // Ctty is 0
	a.Sys = &sys
	process, err := os.StartProcess(path, argv, &a)
	s.program.Close() // the other one's now
	its.Close()
	go func() {
		_, _ = io.Copy(io.Discard, ready)
		ready.Close()
		s.feed()
	}()
	return process, nil, err
}

// feed brings the input to the program, and its end: an input that ends within a line ends that first.
func (s *standIn) feed() {
	last := byte('\n')
	_, err := io.Copy(s.user, io.TeeReader(s.in, lastByte{&last}))
	if err != nil {
		return // nobody has the terminal any more
	}
	ends := []byte{inputEnd}
	if last != '\n' {
		ends = bytes.Repeat(ends, 2)
	}
	_, _ = s.user.Write(ends) // likewise
}

// lastByte keeps the last byte of what is written to it.
type lastByte struct{ at *byte }

func (l lastByte) Write(b []byte) (int, error) {
	if len(b) > 0 {
		*l.at = b[len(b)-1]
	}
	return len(b), nil
}

// drainTime is how long is waited for what a program has written last, where processes that it left keep the terminal.
const drainTime = 100 * time.Millisecond

// close ends it, when all that was written has come out.
func (s *standIn) close() {
	select {
	case <-s.written:
	case <-time.After(drainTime):
	}
	s.user.Close()
}
