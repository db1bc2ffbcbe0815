// Package progress shows on a terminal that something goes on which takes long, and how far it is.
//
//	line := progress.Start(os.Stderr, "measuring")
//	defer line.Done()
//	line.Set(3, 12, "two at once")
//
// The line comes after two seconds, and goes without a trace. Nothing at all is written to what is not a terminal.
package progress

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// When the line comes, and how often it changes.
const (
	delay    = 2 * time.Second
	interval = 200 * time.Millisecond
)

// Line is a line of a terminal. Its methods may be called at the same time, and on nil, which shows nothing.
type Line struct {
	out   *os.File
	begun time.Time

	mu       sync.Mutex // guards what follows
	what     string
	amount   string // in place of "done of of"; empty for that
	done, of int
	timer    *time.Timer
	turn     int
	shown    bool
	ended    bool
}

// Start begins a line about what goes on. It is nil where out is not a terminal.
func Start(out io.Writer, what string) *Line { return start(out, what, delay) }

func start(out io.Writer, what string, after time.Duration) *Line {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return nil
	}
	if _, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err != nil {
		return nil
	}
	l := &Line{out: file, begun: time.Now(), what: what}
	l.mu.Lock() // the timer may be quick
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(after, l.tick)
	return l
}

// Set says what goes on now, and how much of how much is done; of is 0 where that is not known.
func (l *Line) Set(done, of int, what string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done, l.of, l.what, l.amount = done, of, what, ""
}

// Measure is Set for what is measured rather than counted: amount says how much is done, such as "2 GiB of 16 GiB", and
// part is that as a part of the whole, 0 to 1.
func (l *Line) Measure(part float64, amount, what string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done, l.of, l.what, l.amount = int(part*barWidth), barWidth, what, amount
}

// Done takes the line away for good.
func (l *Line) Done() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.timer.Stop()
	l.clear()
}

// Print writes a line of text that stays, above this one; without a terminal to out.
func (l *Line) Print(out io.Writer, text string) {
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.clear()
	}
	fmt.Fprintln(out, text) // where this fails there is nobody to tell
}

// clear takes away what is shown; l.mu is held.
func (l *Line) clear() {
	if l.shown {
		fmt.Fprint(l.out, "\r\x1b[K")
		l.shown = false
	}
}

// tick writes the line anew.
func (l *Line) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	width := 80
	if size, err := unix.IoctlGetWinsize(int(l.out.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		width = int(size.Col)
	}
	fmt.Fprint(l.out, "\r"+frame(l.what, l.amount, l.done, l.of, l.turn, time.Since(l.begun), width-1)+"\x1b[K")
	l.shown = true
	l.turn++
	l.timer.Reset(interval)
}

// barWidth is the length of a bar.
const barWidth = 20

// frame is the line: a bar and the amount, or where that is not known something that turns; what goes on; and for how
// long it has. It has at most so many columns.
func frame(what, amount string, done, of, turn int, passed time.Duration, width int) string {
	head := string(`|/-\`[turn%4])
	if of > 0 {
		full := barWidth * min(max(done, 0), of) / of
		head = fmt.Sprintf("[%s%s] %s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
			cmp.Or(amount, fmt.Sprintf("%d of %d", done, of)))
	}
	line := []rune(fmt.Sprintf("%s %s, %v", head, what, passed.Round(time.Second)))
	return string(line[:min(len(line), max(width, 0))])
}
