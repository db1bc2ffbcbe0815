package eventlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"
)

// Reader reads a log from some time on, up to what was appended before it was made. One goroutine may use it.
type Reader[T any] struct {
	log   *Log[T]
	since time.Time
	user  uint32
	began bool
	left  []uint64 // files to read, oldest first
	file  *os.File
	lines *scanner[T]
	after uint64 // the number of the last record that was returned
}

// Read returns a reader, for a user, of the records since a time; the zero time is all. The caller closes it.
func (l *Log[T]) Read(since time.Time, user uint32) *Reader[T] {
	return &Reader[T]{log: l, since: since, user: user}
}

// Next returns the next records, oldest first, and io.EOF when there are no more. It may return none without an error.
// Users take turns, and the readers of each; together they have half of a processor. The error is ctx's, or the file system's.
func (r *Reader[T]) Next(ctx context.Context) ([]Record[T], error) {
	if !r.began {
		if err := r.begin(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.log.reading.take(ctx, r.user); err != nil {
		return nil, err
	}
	defer r.log.reading.pass()
	start := time.Now()
	records, err := r.next()
	select {
	case <-time.After(time.Since(start)):
	case <-ctx.Done():
	}
	return records, err
}

// begin waits until what was appended is written, and looks for the files that can have what is asked for.
func (r *Reader[T]) begin(ctx context.Context) error {
	select {
	case <-r.log.settle(ctx.Done()):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	numbers, err := list(r.log.o.Dir)
	if err != nil {
		return err
	}
	// A file whose successor begins before that time has nothing.
	for len(numbers) > 1 && r.begins(numbers[1]).Before(r.since) {
		numbers = numbers[1:]
	}
	r.left, r.began = numbers, true
	return nil
}

// begins returns the time of the first record of a file, or a time after all others if that cannot be told.
func (r *Reader[T]) begins(number uint64) time.Time {
	never := time.Unix(1<<40, 0)
	f, err := os.Open(name(r.log.o.Dir, number))
	if err != nil {
		return never
	}
	defer f.Close()
	records, err := newScanner[T](f).next()
	if err != nil || len(records) == 0 {
		return never
	}
	return records[0].Time
}

// next reads a piece of the present file, or opens the next one.
func (r *Reader[T]) next() ([]Record[T], error) {
	if r.file == nil {
		if len(r.left) == 0 {
			return nil, io.EOF
		}
		f, err := os.Open(name(r.log.o.Dir, r.left[0]))
		r.left = r.left[1:]
		if errors.Is(err, os.ErrNotExist) { // it was the oldest, and is removed
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		r.file, r.lines = f, newScanner[T](f)
	}
	all, err := r.lines.next()
	if errors.Is(err, io.EOF) {
		err = r.file.Close()
		r.file = nil
	}
	var records []Record[T]
	for _, record := range all {
		if record.Number > r.after && !record.Time.Before(r.since) {
			r.after = record.Number
			records = append(records, record)
		}
	}
	return records, err
}

// Close ends the reader.
func (r *Reader[T]) Close() {
	if r.file != nil {
		r.file.Close() // nothing was written
		r.file = nil
	}
}

// piece is how much is read in one turn, in bytes.
const piece = 64 << 10

// scanner reads lines. What is no record, whatever it is, is left out.
type scanner[T any] struct {
	in   *bufio.Reader
	long bool // in the middle of a line that is too long
}

func newScanner[T any](in io.Reader) *scanner[T] {
	return &scanner[T]{in: bufio.NewReaderSize(in, maxLine)}
}

// next returns the records of some lines, and io.EOF with the last ones. An unfinished line at the end, which somebody
// may be writing, is none, unless it lacks nothing but its end.
func (s *scanner[T]) next() (records []Record[T], err error) {
	for read := 0; err == nil && read < piece; {
		var line []byte
		line, err = s.in.ReadSlice('\n')
		read += len(line)
		whole := !s.long
		if s.long = errors.Is(err, bufio.ErrBufferFull); s.long {
			err = nil
			continue
		}
		if record, ok := decode[T](line); ok && whole {
			records = append(records, record)
		}
	}
	return records, err
}

// decode reads a line.
func decode[T any](line []byte) (r Record[T], ok bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || json.Unmarshal(line, &r) != nil || r.Number == 0 || r.Number > maxNumber || r.Time.IsZero() {
		return Record[T]{}, false
	}
	return r, true
}
