// Package conf reads the daemon's configuration, /etc/lgpu/lgpud.conf: what an administrator says about who may do and
// see what, and how much.
//
//	c, err := conf.Read(conf.Path)
//
// A line is KEY = VALUE; # begins a comment. docs/security.md describes the keys, and Example has all of them with their
// defaults. A file with anything that is not understood is refused as a whole, so that no slip leaves a door open.
package conf

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/internal/slip"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/limits"
)

// Path is where the system's daemon looks for its configuration.
const Path = "/etc/lgpu/lgpud.conf"

// Example is a configuration with every key, its default and what it means.
//
//go:embed lgpud.conf
var Example string

// Config is what a configuration says. What it leaves out has its zero value.
type Config struct {
	// Admins is the name or number of the administrators' group; empty is the group lgpu, which need not exist.
	Admins string
	Places daemon.Places
	Quota  limits.Quota
	Others limits.Others
	// Patience, Copies and Dmem are daemon.Config's.
	Patience time.Duration
	Copies   string
	Dmem     string
}

// defaultGroup is the administrators' group, where there is one of that name.
const defaultGroup = "lgpu"

// Group finds the administrators' group by its name or number. Empty is lgpu, and nil where that does not exist.
func Group(name string) (*uint32, error) {
	text := name
	if name == "" {
		text = defaultGroup
	}
	gid, err := users.GroupID(text)
	switch {
	case errors.Is(err, users.ErrNoGroup) && name == "":
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("group %q: %w", text, err)
	}
	return &gid, nil
}

// Error is what is wrong with a line.
type Error struct {
	Line   int // from 1
	Reason string
	Remedy string // what to write instead; may be empty
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

// Hint says what to write instead; it may be empty.
func (e *Error) Hint() string { return e.Remedy }

// Bounds of a file, against one that is no configuration.
const (
	maxLine  = 4096
	maxQuota = 1 << 20
)

// Bounds of residence.patience.
const (
	minPatience = time.Second
	maxPatience = time.Hour
)

// Read reads the file at path. One that does not exist says nothing. An error names the file, and wraps an *Error where
// it is about a line.
func Read(path string) (Config, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	defer f.Close()
	c, err := Parse(f)
	if err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse reads a configuration. An error is an *Error or one of r.
func Parse(r io.Reader) (Config, error) {
	var c Config
	seen := map[string]int{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	number := 0
	for lines.Scan() {
		number++
		key, value, err := split(lines.Text())
		if err == nil && key == "" {
			continue
		}
		if before, twice := seen[key]; err == nil && twice {
			err = &Error{Reason: fmt.Sprintf("%s is in line %d already", key, before)}
		}
		if err == nil {
			seen[key] = number
			err = c.set(key, value)
		}
		if err != nil {
			err.Line = number
			return Config{}, err
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return Config{}, &Error{Line: number + 1, Reason: fmt.Sprintf("it has more than %d bytes", maxLine)}
	} else if err != nil {
		return Config{}, err
	}
	return c, nil
}

// split reads a line. The key is empty where it says nothing.
func split(line string) (key, value string, err *Error) {
	line, _, _ = strings.Cut(line, "#")
	if line = strings.TrimSpace(line); line == "" {
		return "", "", nil
	}
	key, value, found := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	switch {
	case !found || key == "":
		return "", "", &Error{Reason: fmt.Sprintf("%q is not KEY = VALUE", line)}
	case value == "":
		return "", "", &Error{Reason: key + " has no value", Remedy: "leave the line out for the default"}
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }):
		return "", "", &Error{Reason: key + ": the value has characters that are no text"}
	}
	return key, value, nil
}

// placePrefix is what the keys of a place's limits begin with.
const placePrefix = "place."

// setters are the keys, but for those of a place's limits.
var setters = map[string]func(c *Config, value string) error{
	"admins": func(c *Config, value string) error { c.Admins = value; return nil },
	"users": choice(func(c *Config, word string) { c.Places.Refuse = word == "refuse" },
		"place", "refuse"),
	"others": choice(func(c *Config, word string) { c.Others = limits.Others(word) },
		string(limits.OthersAll), string(limits.OthersTotals), string(limits.OthersNone)),
	"place": func(c *Config, value string) error {
		c.Places.Template = value
		return daemon.CheckPlace(value)
	},
	"residence.patience": func(c *Config, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d < minPatience || d > maxPatience {
			return fmt.Errorf("%q: it is a time from %v to %v, such as 60s", value, minPatience, maxPatience)
		}
		c.Patience = d
		return nil
	},
	"overcommit.dir":    folder(func(c *Config) *string { return &c.Copies }),
	"dmem.cgroup":       folder(func(c *Config) *string { return &c.Dmem }),
	"quota.directories": quota(func(c *Config) *int { return &c.Quota.Directories }),
	"quota.depth":       quota(func(c *Config) *int { return &c.Quota.Depth }),
	"quota.processes":   quota(func(c *Config) *int { return &c.Quota.Processes }),
	"quota.watches":     quota(func(c *Config) *int { return &c.Quota.Watches }),
}

// choice sets one of some words.
func choice(set func(*Config, string), words ...string) func(*Config, string) error {
	return func(c *Config, value string) error {
		if !slices.Contains(words, value) {
			return fmt.Errorf("%q: it is one of %s", value, strings.Join(words, ", "))
		}
		set(c, value)
		return nil
	}
}

// folder sets a path.
func folder(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, value string) error {
		if !filepath.IsAbs(value) {
			return fmt.Errorf("%q: it is the full path of a folder", value)
		}
		*field(c) = filepath.Clean(value)
		return nil
	}
}

// quota sets a number.
func quota(field func(*Config) *int) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxQuota {
			return fmt.Errorf("%q: it is a number from 1 to %d", value, maxQuota)
		}
		*field(c) = n
		return nil
	}
}

// set does what a line says.
func (c *Config) set(key, value string) *Error {
	if file, is := strings.CutPrefix(key, placePrefix); is {
		return c.setLimit(key, file, value)
	}
	set, known := setters[key]
	if !known {
		return unknown(key)
	}
	if err := set(c, value); err != nil {
		return &Error{Reason: fmt.Sprintf("%s: %v", key, err)}
	}
	return nil
}

// setLimit sets a limit of new places.
func (c *Config) setLimit(key, file, value string) *Error {
	if !slices.Contains(placeFiles(), file) {
		return unknown(key)
	}
	if err := tryLimit(file, value); err != nil {
		return &Error{Reason: fmt.Sprintf("%s: %q: %s", key, value, err.Reason), Remedy: err.Remedy}
	}
	if c.Places.Limits == nil {
		c.Places.Limits = map[string]string{}
	}
	c.Places.Limits[file] = value
	return nil
}

// placeFiles are the files that a place can be given: limits, but not whose processes it takes in.
func placeFiles() (names []string) {
	for _, f := range limits.Files() {
		if limits.PerDevice(f.Name) || f.Name == "host.max" || f.Name == "memory.overcommit" {
			names = append(names, f.Name)
		}
	}
	return names
}

// tryLimit writes a value into a tree of its own, with a device that can give anything.
func tryLimit(file, value string) *limits.Error {
	const device = "GPU-00000000-0000-0000-0000-000000000000"
	text := value
	if limits.PerDevice(file) {
		text = device + " " + value
	}
	t := limits.New(limits.Options{})
	err := limits.Typed(file, value)
	if err == nil {
		err = t.SetDevices([]limits.Device{{UUID: device, Capacity: 1024, UnitsPerBit: 1, Memory: 1 << 50}})
	}
	if err == nil {
		_, err = t.Create(limits.CreateSpec{Path: "/place", Writes: []limits.Assignment{{File: file, Text: text}}})
	}
	var refused *limits.Error
	if errors.As(err, &refused) {
		return refused
	}
	return nil
}

// unknown is the error of a key that there is not.
func unknown(key string) *Error {
	keys := slices.Collect(maps.Keys(setters))
	for _, f := range placeFiles() {
		keys = append(keys, placePrefix+f)
	}
	slices.Sort(keys)
	e := &Error{Reason: fmt.Sprintf("there is no key %q", shown(key)), Remedy: "keys are " + strings.Join(keys, ", ")}
	if near := slip.Nearest(key, keys); near != "" {
		e.Remedy = fmt.Sprintf("did you mean %s?", near)
	}
	return e
}

// shown is a key that can be shown in a line.
func shown(key string) string {
	if r := []rune(key); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return key
}
