package users

import (
	"errors"
	"os"
	"os/user"
	"strconv"
	"sync"
	"testing"
	"time"
)

// fake is a list of users that counts its readers, with a clock of its own.
type fake struct {
	names map[string]string
	reads int
	at    time.Time
}

func (f *fake) cache() *cache {
	return &cache{lookup: func(uid string) (string, error) {
		f.reads++
		if n, ok := f.names[uid]; ok {
			return n, nil
		}
		return "", errors.New("nobody")
	}, now: func() time.Time { return f.at }, names: map[uint32]entry{}}
}

// TestName: a name is read once, and again when it may have changed; nobody is a number.
func TestName(t *testing.T) {
	f := &fake{names: map[string]string{"1000": "alice"}, at: time.Unix(1e9, 0)}
	c := f.cache()
	for range 3 {
		if got := c.name(1000); got != "alice" {
			t.Errorf("1000 is %q", got)
		}
		if got := c.name(4294967295); got != "4294967295" {
			t.Errorf("nobody is %q", got)
		}
	}
	if f.reads != 2 {
		t.Errorf("%d reads for two users", f.reads)
	}
	f.names["1000"] = "bob"
	f.at = f.at.Add(fresh)
	if got := c.name(1000); got != "bob" {
		t.Errorf("renamed: %q", got)
	}
}

// TestBounded: however many numbers are asked for, no more than most are kept.
func TestBounded(t *testing.T) {
	c := (&fake{}).cache()
	for uid := range uint32(3 * most) {
		c.name(uid)
		if len(c.names) > most {
			t.Fatalf("%d names are kept", len(c.names))
		}
	}
}

// TestThisMachine asks the real list, from several goroutines.
func TestThisMachine(t *testing.T) {
	u, err := user.Current()
	if err != nil {
		t.Skip("the user of this test has no name: ", err)
	}
	if u.Uid != strconv.Itoa(os.Getuid()) {
		t.Fatalf("%+v", u)
	}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			if got := Name(uint32(os.Getuid())); got != u.Username {
				t.Errorf("this user is %q, want %q", got, u.Username)
			}
		})
	}
	wait.Wait()
}
