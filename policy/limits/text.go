package limits

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"syscall"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/units"
)

// line is a line of a file with values per device.
type line struct {
	number  int   // from 1
	devices []int // those that it is about: one, or all without a key
	fields  []string
}

// fault makes an error about a line.
func (l line) fault(errno syscall.Errno, key, token, reason string) *Error {
	return &Error{Errno: errno, Line: l.number, Key: key, Token: token, Reason: reason}
}

// lines reads text of a file with values per device. Each line begins with a device, or is about all devices; no device
// can be meant twice. Blank lines are skipped, but something must be there.
func (s *state) lines(text string) ([]line, *Error) {
	var lines []line
	named := make([]bool, len(s.devices))
	for i, raw := range strings.Split(text, "\n") {
		l := line{number: i + 1, fields: split(raw)}
		if len(l.fields) == 0 {
			continue
		}
		d, problem := -1, error(nil)
		if deviceFirst(l.fields) {
			d, problem = s.device(l.fields[0])
		}
		switch {
		case problem != nil:
			return nil, l.fault(syscall.ENODEV, "", "", problem.Error())
		case d >= 0:
			l.devices, l.fields = []int{d}, l.fields[1:]
		case len(s.devices) == 0:
			return nil, l.fault(syscall.ENODEV, "", "", "there are no devices")
		default:
			for d := range s.devices {
				l.devices = append(l.devices, d)
			}
		}
		for _, d := range l.devices {
			if named[d] {
				return nil, l.fault(syscall.EINVAL, "", s.devices[d].Key(), "a line before this one is about the same device")
			}
			named[d] = true
		}
		lines = append(lines, l)
	}
	if len(lines) == 0 {
		return nil, &Error{Errno: syscall.EINVAL, Reason: "nothing was written; a line is [DEVICE] VALUE"}
	}
	return lines, nil
}

// device finds a device by any of its names.
func (s *state) device(token string) (int, error) {
	names := make([]gpu.Names, len(s.devices))
	for i, d := range s.devices {
		names[i] = d.names()
	}
	return gpu.Find(names, token)
}

// deviceFirst says that the first word of a line means a device. A number alone is a value, and so is one before a
// unit.
func deviceFirst(fields []string) bool {
	return deviceLike(fields[0]) || digits(fields[0]) && len(fields) > 1 && !units.IsUnit(fields[1])
}

// deviceLike says that a word can only mean a device.
func deviceLike(word string) bool {
	major, minor, colon := strings.Cut(word, ":")
	upper := strings.ToUpper(word)
	return colon && digits(major) && digits(minor) || strings.HasPrefix(upper, "GPU-") || strings.HasPrefix(upper, "MIG-")
}

// counted says how many groups and lgpus there are.
func counted(n int) string {
	if n == 1 {
		return "1 group or lgpu"
	}
	return strconv.Itoa(n) + " groups or lgpus"
}

// split parts a line at blanks. Bytes above ASCII are no blanks here, whatever they are elsewhere.
func split(line string) []string {
	return strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\v\f", r) })
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// perDevice reads a file of lines [DEVICE] VALUE into a limit of each device.
func perDevice(v *limit, parse func(l *Limits, value string) error) func(*state, *directory, string) *Error {
	return func(s *state, n *directory, text string) *Error {
		lines, err := s.lines(text)
		if err != nil {
			return err
		}
		for _, line := range lines {
			value := strings.Join(line.fields, " ")
			if value == "" {
				return line.fault(syscall.EINVAL, "", s.devices[line.devices[0]].Key(), "the value is missing behind the device")
			}
			var asked Limits
			err := parse(&asked, value)
			for i := 0; err == nil && i < len(line.devices); i++ {
				err = s.ask(n, line.devices[i], v, asked)
			}
			if err != nil {
				fault := line.fault(errnoOf(err), "", value, err.Error())
				fault.Remedy = remedyOf(err)
				return fault
			}
		}
		return nil
	}
}

// single reads a file that holds one value.
func single(set func(n *directory, value string) error) func(*state, *directory, string) *Error {
	return func(s *state, n *directory, text string) *Error {
		value := strings.Join(split(strings.TrimRight(text, "\n")), " ")
		if strings.Contains(value, "\n") {
			return &Error{Errno: syscall.EINVAL, Line: 2, Reason: "the file holds one line"}
		}
		if err := set(n, value); err != nil {
			return &Error{Errno: errnoOf(err), Line: 1, Token: value, Reason: err.Error(), Remedy: remedyOf(err)}
		}
		n.revision, s.stale = s.sequence, true
		return nil
	}
}

// errnoOf is the errno for a value that does not read.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, units.ErrRange):
		return syscall.ERANGE
	}
	return syscall.EINVAL
}

// invalid is an error of a value, with the errno that write(2) returns for it.
type invalid struct {
	errno  syscall.Errno
	reason string
	remedy string // empty where nothing can be guessed
}

func (e invalid) Error() string { return e.reason }
func (e invalid) Unwrap() error { return e.errno }

// remedyOf is what to write instead of a value that does not read, or nothing.
func remedyOf(err error) string {
	var e invalid
	errors.As(err, &e)
	return e.remedy
}

// Words for values that are not set.
const (
	wordMax     = "max"     // no limit, or all that the parent has
	wordDefault = "default" // the device's default, or the default value
)

// parseBytes reads a limit on memory. A number without a unit is bytes, as files print it.
func parseBytes(value string) (Bytes, error) {
	if value == wordMax {
		return Bytes{}, nil
	}
	n, err := units.ParseSize(value)
	switch {
	case err != nil:
		return Bytes{}, err
	case n == math.MaxUint64: // what regions have for no limit
		return Bytes{}, nil
	case n > 0 && n < MinMemory && units.Bare(value):
		return Bytes{}, noUnit(value)
	}
	return AtMost(n), nil
}

// noUnit refuses a number without a unit.
func noUnit(value string) error {
	return invalid{syscall.EINVAL, "a size has a unit", units.Guess(value)}
}

// Typed checks what a person typed for a file: sizes need a unit. The file itself takes bytes without one, so that what
// it shows can be written back to it. An error is a *Error (EINVAL).
func Typed(file, text string) error {
	switch file {
	case "memory.max", "memory.high", "host.max", fileBudget, fileHostBudget:
	default:
		return nil
	}
	for i, raw := range strings.Split(text, "\n") {
		fields := split(raw)
		if len(fields) == 0 {
			continue
		}
		value := fields[len(fields)-1]
		if units.Bare(value) && strings.Trim(value, "0.") != "" {
			err := noUnit(value)
			return &Error{Errno: errnoOf(err), File: file, Line: i + 1, Token: value, Reason: err.Error(), Remedy: remedyOf(err)}
		}
	}
	return nil
}

// parseMax reads a cap on device time, or max as nil.
func parseMax(value string) (*uint32, error) {
	if value == wordMax {
		return nil, nil
	}
	share, err := units.ParsePercent(value)
	switch {
	case errors.Is(err, units.ErrRange) && zero(value):
		return nil, fmt.Errorf("%w; for no compute at all write count=0 to lgpu, for no limit max", err)
	case err != nil:
		return nil, err
	}
	return &share, nil
}

// parseMin reads a guarantee, or 0 as nil.
func parseMin(value string) (*uint32, error) {
	share, err := units.ParsePercent(value)
	switch {
	case errors.Is(err, units.ErrRange) && zero(value):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &share, nil
}

// zero says that a percentage, which units do not take, is one of nothing.
func zero(value string) bool { return strings.Trim(value, "0. %") == "" }

func formatShare(share uint32) string { return units.FormatPercent(share) + "%" }

func formatMax(p *uint32) string {
	if p == nil {
		return wordMax
	}
	return formatShare(*p)
}

// parseWeight reads a weight, or default as 0.
func parseWeight(value string) (uint32, error) {
	if value == wordDefault {
		return 0, nil
	}
	if !digits(value) {
		return 0, invalid{errno: syscall.EINVAL, reason: "a weight is a whole number or default"}
	}
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || n < MinWeight || n > MaxWeight {
		return 0, invalid{errno: syscall.ERANGE, reason: fmt.Sprintf("weights are %d to %d", MinWeight, MaxWeight)}
	}
	return uint32(n), nil
}

// parsePriority reads a priority, or default as nil.
func parsePriority(value string) (*Priority, error) {
	if value == wordDefault {
		return nil, nil
	}
	for p, word := range priorityWords {
		if word == value {
			priority := Priority(p)
			return &priority, nil
		}
	}
	return nil, invalid{errno: syscall.EINVAL, reason: "priorities are normal, high, latency and default (the parent's)"}
}

// MarshalText writes the word that files show.
func (p Priority) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a word that files show.
func (p *Priority) UnmarshalText(text []byte) error {
	q, err := parsePriority(string(text))
	switch {
	case err != nil:
		return err
	case q == nil:
		return errors.New("a priority cannot be default here")
	}
	*p = *q
	return nil
}
