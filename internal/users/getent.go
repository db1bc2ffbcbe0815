package users

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
	"unicode"
)

// ErrUnsure: where names come from does not answer now, so whether there is one cannot be told.
var ErrUnsure = errors.New("the machine's list of users does not answer")

// errNone: there is no such entry.
var errNone = errors.New("no such entry")

// Bounds of a question to the name service.
const (
	patience  = 2 * time.Second  // for an answer: LDAP that is away answers after minutes
	pause     = 30 * time.Second // without questions, after one that got no answer
	maxAnswer = 64 << 10         // bytes; a group has all of its members
)

// getent asks the machine's name service (nsswitch.conf: LDAP, SSSD, systemd-userdbd …) by the program of the C library
// that does so, since this program loads no C library. One question is asked at a time, and those of a service that does
// not answer are refused for a while, so that nobody who asks often waits often.
type getent struct {
	programs []string // paths; the first that exists
	patience time.Duration
	now      func() time.Time

	asking sync.Mutex
	away   time.Time // guarded by asking; when the service may be asked again
}

var service = getent{programs: []string{"/usr/bin/getent", "/bin/getent"}, patience: patience, now: time.Now}

// entry returns the fields of an entry of a database, passwd or group, by its name or number. The error is errNone, also
// where there is no such program, or wraps ErrUnsure.
func (g *getent) entry(database, key string) ([]string, error) {
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) || r == ':' }) {
		return nil, errNone
	}
	g.asking.Lock()
	defer g.asking.Unlock()
	if g.now().Before(g.away) {
		return nil, ErrUnsure
	}
	out, err := g.run(database, key)
	var failed *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, errNone
	case errors.As(err, &failed) && failed.ExitCode() == notFound:
		return nil, errNone
	case err != nil:
		g.away = g.now().Add(pause)
		return nil, fmt.Errorf("%w: getent %s: %w", ErrUnsure, database, err)
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return strings.Split(string(line), ":"), nil
}

// notFound is getent's status for a key that is not there; any other failure says nothing of it.
const notFound = 2

// run starts the program, with nothing of this process's environment, and ends it when it takes too long.
func (g *getent) run(database, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), g.patience)
	defer cancel()
	for _, path := range g.programs {
		if _, err := exec.LookPath(path); err != nil {
			continue
		}
		c := exec.CommandContext(ctx, path, "--", database, key)
		c.Env, c.Dir, c.WaitDelay = []string{}, "/", g.patience
		answer := &bounded{full: cancel}
		c.Stdout = answer
		if err := c.Run(); err != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
		return answer.text, nil
	}
	return nil, exec.ErrNotFound
}

// bounded keeps so much of what is written; beyond it full is called.
type bounded struct {
	text []byte
	full func()
}

func (b *bounded) Write(data []byte) (int, error) {
	if len(b.text)+len(data) > maxAnswer {
		b.full()
		return 0, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	b.text = append(b.text, data...)
	return len(data), nil
}

// Fields of entries (passwd(5), group(5)).
const (
	nameField   = 0
	numberField = 2
)

// nameOf returns the name of a number, if an entry for it was found.
func (g *getent) nameOf(database, number string) (string, error) {
	fields, err := g.entry(database, number)
	if err != nil {
		return "", err
	}
	if len(fields) <= numberField || fields[numberField] != number || fields[nameField] == "" {
		return "", errNone
	}
	return fields[nameField], nil
}

// numberOf returns the number of a name.
func (g *getent) numberOf(database, name string) (string, error) {
	fields, err := g.entry(database, name)
	if err != nil {
		return "", err
	}
	if len(fields) <= numberField || fields[nameField] != name {
		return "", errNone
	}
	return fields[numberField], nil
}
