package users

import (
	"errors"
	"os"
	"os/user"
	"slices"
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

// TestName: a name is read once, and again when it may have changed; nobody has none.
func TestName(t *testing.T) {
	f := &fake{names: map[string]string{"1000": "alice"}, at: time.Unix(1e9, 0)}
	c := f.cache()
	for range 3 {
		if got, err := c.find(1000); got != "alice" || err != nil {
			t.Errorf("1000 is %q", got)
		}
		if got, err := c.find(4294967295); got != "" || err != nil {
			t.Errorf("nobody is %q", got)
		}
	}
	if f.reads != 2 {
		t.Errorf("%d reads for two users", f.reads)
	}
	f.names["1000"] = "bob"
	f.at = f.at.Add(fresh)
	if got, err := c.find(1000); got != "bob" || err != nil {
		t.Errorf("renamed: %q", got)
	}
}

// TestBounded: however many numbers are asked for, no more than most are kept.
func TestBounded(t *testing.T) {
	c := (&fake{}).cache()
	for uid := range uint32(3 * most) {
		c.find(uid)
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
	if id, err := ID(u.Username); err != nil || id != uint32(os.Getuid()) {
		t.Errorf("%s is %d, %v", u.Username, id, err)
	}
	if !slices.Contains(List(), u.Username) {
		t.Errorf("%s is not among %v", u.Username, List())
	}
}

// TestID: numbers are taken as they are, names that nobody has and the kernel's word for nobody are not.
func TestID(t *testing.T) {
	for text, want := range map[string]uint32{"0": 0, "123456": 123456, "4294967294": 4294967294} {
		if id, err := ID(text); err != nil || id != want {
			t.Errorf("user %s is %d, %v", text, id, err)
		}
		if id, err := GroupID(text); err != nil || id != want {
			t.Errorf("group %s is %d, %v", text, id, err)
		}
	}
	for _, text := range []string{"", "nobody-has-this-name", "4294967295", "4294967296", "-1", "1.5", " 1"} {
		if id, err := ID(text); !errors.Is(err, ErrNoUser) {
			t.Errorf("user %q is %d, %v", text, id, err)
		}
		if id, err := GroupID(text); !errors.Is(err, ErrNoGroup) {
			t.Errorf("group %q is %d, %v", text, id, err)
		}
	}
	if name := Name(4294967294); name != "4294967294" {
		t.Errorf("nobody is called %s", name)
	}
	if name := GroupName(4294967294); name != "4294967294" {
		t.Errorf("no group is called %s", name)
	}
}
