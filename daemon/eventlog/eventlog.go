// Package eventlog keeps numbered records on disk, so that what happened can be looked up after the daemon has ended.
//
//	l, recent, err := eventlog.Open[Event](eventlog.Options{Dir: "/var/lib/lgpu/state.events"})
//	l.Append(number, time.Now(), event)
//	r := l.Read(time.Now().Add(-time.Hour))
//	for records, err := r.Next(ctx); err == nil; records, err = r.Next(ctx) { … }
//
// # Promises
//
// Append never waits: one goroutine writes, from a bounded queue. What cannot be written, because the queue or the disk
// is full, is left out, which is reported once; nothing else stops. A record that was written survives the end of the
// process. It is not synced: the end of the machine can take the last seconds. A line that is torn or damaged is left
// out when it is read, and takes no other with it. The files take at most Files × MaxFile bytes: the oldest is removed
// when a new one begins.
//
// # Format
//
// Files NUMBER.jsonl, where NUMBER (20 digits) is that of the first record. Each line is one JSON object: number, time,
// and the record itself as event.
package eventlog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds that hold where Options leave a zero, and of lines.
const (
	defaultMaxFile = 4 << 20
	defaultFiles   = 4
	defaultQueue   = 1024
	// maxLine is the longest line, in bytes; a record that needs more is not kept.
	maxLine = 64 << 10
	// maxNumber is the highest number that every reader of JSON gets right.
	maxNumber = 1 << 53
	// tail is how much of the newest files Open reads, in bytes.
	tail = 256 << 10
)

// Options of a Log.
type Options struct {
	Dir     string // made if it is missing, for its owner only
	MaxFile int64  // bytes of one file, at least 128 KiB; the default is 4 MiB
	Files   int    // how many files there are at most; the default is 4
	Queue   int    // records that wait to be written; the default is 1024
	// Report is told when records can no longer be kept, and why, once until they can again. It runs on the goroutine
	// that writes. nil is nobody.
	Report func(error)
}

// Record is one line.
type Record[T any] struct {
	Number uint64    `json:"number"` // at least 1; rises from record to record
	Time   time.Time `json:"time"`
	Value  T         `json:"event"`
}

// Log keeps records. Its methods may be called by any number of goroutines.
type Log[T any] struct {
	o       Options
	reading turns
	done    chan struct{} // closed when the writer has ended
	w       writer        // of the writer's goroutine alone

	mu     sync.Mutex
	queue  chan entry[T] // guarded by mu for sending; nil once closed
	missed uint64        // guarded by mu; records that found no room in the queue
}

// entry is a record to write, or a question whether all before it are written.
type entry[T any] struct {
	record  Record[T]
	written chan<- struct{}
}

// Open opens the log in a folder, and returns its last records, as many as there are in the last 256 KiB. The caller
// closes it. An error is one of the file system.
func Open[T any](o Options) (*Log[T], []Record[T], error) {
	if o.MaxFile <= 0 {
		o.MaxFile = defaultMaxFile
	}
	o.MaxFile = max(o.MaxFile, batch+maxLine)
	if o.Files <= 0 {
		o.Files = defaultFiles
	}
	if o.Queue <= 0 {
		o.Queue = defaultQueue
	}
	if o.Report == nil {
		o.Report = func(error) {}
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the folder for events: %w", err)
	}
	numbers, err := list(o.Dir)
	if err != nil {
		return nil, nil, err
	}
	l := &Log[T]{
		o: o, done: make(chan struct{}), queue: make(chan entry[T], o.Queue),
		w: writer{dir: o.Dir, maxFile: o.MaxFile, files: o.Files},
	}
	recent, err := last[T](o.Dir, numbers)
	if err != nil {
		return nil, nil, err
	}
	go l.write(l.queue)
	return l, recent, nil
}

// Append has a record written soon. It never waits; where the queue is full the record is left out.
func (l *Log[T]) Append(number uint64, at time.Time, value T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		return
	}
	select {
	case l.queue <- entry[T]{record: Record[T]{Number: number, Time: at, Value: value}}:
	default:
		l.missed++
	}
}

// Close writes what is in the queue, and ends the log.
func (l *Log[T]) Close() error {
	l.mu.Lock()
	if l.queue != nil {
		close(l.queue)
		l.queue = nil
	}
	l.mu.Unlock()
	<-l.done
	return l.w.close()
}

// batch is how much is written at once, in bytes: lines are added until there is as much.
const batch = 64 << 10

// write is the goroutine that writes.
func (l *Log[T]) write(queue <-chan entry[T]) {
	defer close(l.done)
	well := true
	for e := range queue {
		first, lines, waiting, failed := gather(e, queue)
		if len(lines) > 0 {
			failed = errors.Join(failed, l.w.write(first, lines))
		}
		if n := l.takeMissed(); n > 0 {
			failed = errors.Join(failed, fmt.Errorf("%d came faster than they could be written", n))
		}
		if failed != nil && well {
			l.o.Report(fmt.Errorf("events are not kept in %s: %w", l.o.Dir, failed))
		}
		if failed != nil || len(lines) > 0 {
			well = failed == nil
		}
		for _, w := range waiting {
			close(w)
		}
	}
}

// gather makes lines of e and of what else is in the queue, as much as is written at once. first is the number of the
// first record.
func gather[T any](e entry[T], queue <-chan entry[T]) (first uint64, lines []byte, waiting []chan<- struct{}, err error) {
	for more := true; more; {
		if e.written != nil {
			waiting = append(waiting, e.written)
		} else if line, failed := encode(e.record); failed != nil {
			err = failed
		} else {
			if len(lines) == 0 {
				first = e.record.Number
			}
			lines = append(lines, line...)
		}
		if len(lines) >= batch {
			break
		}
		select {
		case e, more = <-queue:
		default:
			more = false
		}
	}
	return first, lines, waiting, err
}

func (l *Log[T]) takeMissed() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.missed
	l.missed = 0
	return n
}

// settle returns a channel that is closed when all that was appended so far is written.
func (l *Log[T]) settle(done <-chan struct{}) <-chan struct{} {
	written := make(chan struct{})
	for {
		l.mu.Lock()
		queue := l.queue
		if queue == nil {
			l.mu.Unlock()
			close(written)
			return written
		}
		select {
		case queue <- entry[T]{written: written}:
			l.mu.Unlock()
			return written
		default:
		}
		l.mu.Unlock()
		select { // the queue is full: the writer is at it
		case <-done:
			return written
		case <-time.After(time.Millisecond):
		}
	}
}

// encode makes a line of a record.
func encode[T any](r Record[T]) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", r.Number, err)
	}
	if len(line) >= maxLine {
		return nil, fmt.Errorf("event %d has %d bytes; %d are the most", r.Number, len(line), maxLine)
	}
	return append(line, '\n'), nil
}

// writer appends lines to the newest file, and begins another when that is full.
type writer struct {
	dir     string
	maxFile int64
	files   int

	file *os.File
	size int64
	torn bool // the file does not end with a whole line
}

// write appends lines, the first of which is a record's with that number.
func (w *writer) write(first uint64, lines []byte) error {
	if w.file == nil {
		if err := w.resume(); err != nil {
			return err
		}
	}
	if w.file == nil || w.size > 0 && w.size+int64(len(lines)) > w.maxFile {
		if err := w.rotate(first); err != nil {
			return err
		}
	}
	if w.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	n, err := w.file.Write(lines)
	if err == nil {
		w.size, w.torn = w.size+int64(n), false
		return nil
	}
	if n > 0 && w.file.Truncate(w.size) != nil {
		w.size, w.torn = w.size+int64(n), true
	}
	return err
}

// resume opens the newest file, if there is one.
func (w *writer) resume() error {
	numbers, err := list(w.dir)
	if err != nil || len(numbers) == 0 {
		return err
	}
	return w.open(numbers[len(numbers)-1])
}

// open opens a file to append to it, and looks whether its last line is whole.
func (w *writer) open(number uint64) error {
	f, err := os.OpenFile(name(w.dir, number), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	end := []byte{'\n'}
	if err == nil && info.Size() > 0 {
		_, err = f.ReadAt(end, info.Size()-1)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w.file, w.size, w.torn = f, info.Size(), end[0] != '\n'
	return nil
}

// rotate begins a file, and removes the oldest ones.
func (w *writer) rotate(first uint64) error {
	numbers, err := list(w.dir)
	if err != nil {
		return err
	}
	// Before the new one is made: the disk may be full of the old.
	numbers = slices.DeleteFunc(numbers, func(n uint64) bool { return n == first })
	for len(numbers) >= w.files {
		if err := os.Remove(name(w.dir, numbers[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		numbers = numbers[1:]
	}
	before := w.file
	if err := w.open(first); err != nil {
		return err
	}
	if before != nil {
		return before.Close()
	}
	return nil
}

func (w *writer) close() error {
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

// extension of the files.
const extension = ".jsonl"

// name is the path of the file that begins with a record.
func name(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", number, extension))
}

// list returns the numbers of the files in a folder, in ascending order. What has another name is not the log's.
func list(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the files of events: %w", err)
	}
	var numbers []uint64
	for _, e := range entries {
		digits, ours := strings.CutSuffix(e.Name(), extension)
		number, err := strconv.ParseUint(digits, 10, 64)
		if ours && err == nil && len(digits) == 20 && number <= maxNumber && e.Type().IsRegular() {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// last returns the records in the last part of the files.
func last[T any](dir string, numbers []uint64) ([]Record[T], error) {
	var out []Record[T]
	for left, i := int64(tail), len(numbers)-1; i >= 0 && left > 0; i-- {
		f, err := os.Open(name(dir, numbers[i]))
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		size, err := f.Seek(0, io.SeekEnd)
		from := max(size-left, 0)
		if err == nil {
			_, err = f.Seek(from, io.SeekStart)
		}
		s := newScanner[T](f) // a line that begins before from is no record, and left out as such
		for err == nil {
			var records []Record[T]
			records, err = s.next()
			out = append(out, records...)
		}
		f.Close()
		if !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read events: %w", err)
		}
		left -= size
	}
	slices.SortStableFunc(out, func(a, b Record[T]) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}
