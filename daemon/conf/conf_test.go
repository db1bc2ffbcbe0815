package conf

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/policy/limits"
)

func TestParse(t *testing.T) {
	got, err := Parse(strings.NewReader(`
# who
admins = gpu-admins   # beside root
users=place
place = /lab/{uid}
place.memory.max = 8GiB
place.compute.max = 50%
place.host.max = 16GiB
quota.directories = 10
quota.depth = 3
quota.processes = 4
quota.watches = 2
others = totals
place.memory.overcommit = 1
residence.patience = 90s
overcommit.dir = /big/copies/
dmem.cgroup = /sys/fs/cgroup/lgpu
`))
	want := Config{
		Admins: "gpu-admins", Others: limits.OthersTotals,
		Places: daemon.Places{Template: "/lab/{uid}",
			Limits: map[string]string{"memory.max": "8GiB", "compute.max": "50%", "host.max": "16GiB", "memory.overcommit": "1"}},
		Quota:    limits.Quota{Directories: 10, Depth: 3, Processes: 4, Watches: 2},
		Patience: 90 * time.Second, Copies: "/big/copies", Dmem: "/sys/fs/cgroup/lgpu",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if c, err := Parse(strings.NewReader("users = refuse")); err != nil || !c.Places.Refuse {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := Parse(strings.NewReader("")); err != nil || !reflect.DeepEqual(c, Config{}) {
		t.Errorf("%+v, %v", c, err)
	}
}

// What is wrong is refused with its line and a way out.
func TestErrors(t *testing.T) {
	for text, want := range map[string]struct{ says, hint string }{
		"\nadmin = x":                       {`line 2: there is no key "admin"`, "did you mean admins?"},
		"quota.direcories = 1":              {`line 1: there is no key`, "did you mean quota.directories?"},
		"place.memory.mx = 1GiB":            {`line 1: there is no key`, "did you mean place.memory.max?"},
		"place.cgroup.path = /":             {`line 1: there is no key`, "keys are admins, "},
		"residence.patience = 5":            {`line 1: residence.patience: "5": it is a time`, ""},
		"residence.patience = 1ms":          {"it is a time from 1s to 1h", ""},
		"overcommit.dir = copies":           {"it is the full path of a folder", ""},
		"dmem.cgroup = lgpu":                {"it is the full path of a folder", ""},
		"place.memory.overcommit = 2":       {"it is 0 or 1", ""},
		"zzz = 1":                           {`line 1: there is no key`, "keys are admins, "},
		"others":                            {`line 1: "others" is not KEY = VALUE`, ""},
		"= 1":                               {`line 1: "= 1" is not`, ""},
		"others =":                          {"line 1: others has no value", "default"},
		"others = some":                     {`line 1: others: "some": it is one of all, totals, none`, ""},
		"others = all\n\nothers = none":     {"line 3: others is in line 1 already", ""},
		"users = nobody":                    {"it is one of place, refuse", ""},
		"place = users/{user}":              {"a place is a path", ""},
		"place = /users":                    {"so that each user has another", ""},
		"place = /a b/{user}":               {"line 1: place: ", ""},
		"quota.depth = 0":                   {"it is a number from 1 to", ""},
		"quota.depth = 9999999999999999":    {"it is a number from 1 to", ""},
		"place.memory.max = 8":              {"a size has a unit", ""},
		"place.memory.max = 0 8GiB":         {`line 1: place.memory.max: "0 8GiB"`, ""},
		"place.compute.max = 300%":          {"line 1: place.compute.max", ""},
		"place.lgpu.priority = highest":     {"line 1: place.lgpu.priority", ""},
		"admins = a\x00b":                   {"no text", ""},
		"# " + strings.Repeat("x", maxLine): {"line 1: it has more than", ""},
	} {
		_, err := Parse(strings.NewReader(text))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want.says) || !strings.Contains(e.Hint(), want.hint) {
			t.Errorf("%q: %v; hint %q", text, err, e)
		}
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lgpud.conf")
	if c, err := Read(path); err != nil || !reflect.DeepEqual(c, Config{}) {
		t.Errorf("none: %+v, %v", c, err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path+": line 1: ") {
		t.Error(err)
	}
	if _, err := Read(filepath.Dir(path)); err == nil {
		t.Error("a folder is a configuration")
	}
}

func TestGroup(t *testing.T) {
	if _, err := Group("no-such-group"); err == nil || !strings.Contains(err.Error(), `group "no-such-group"`) {
		t.Error(err)
	}
	if g, err := Group("54321"); err != nil || g == nil || *g != 54321 {
		t.Errorf("%v, %v", g, err)
	}
	if g, err := Group("root"); err != nil || g == nil || *g != 0 {
		t.Errorf("%v, %v", g, err)
	}
}

// The example has every key, and says nothing but what holds without it.
func TestExample(t *testing.T) {
	if c, err := Parse(strings.NewReader(Example)); err != nil || !reflect.DeepEqual(c, Config{}) {
		t.Errorf("%+v, %v", c, err)
	}
	active := regexp.MustCompile(`(?m)^#([a-z.]+ = )`).ReplaceAllString(Example, "$1")
	c, err := Parse(strings.NewReader(active))
	if err != nil {
		t.Fatal(err)
	}
	if c.Quota != limits.DefaultQuota || c.Others != limits.OthersAll || c.Places.Template != daemon.DefaultPlace || c.Places.Refuse {
		t.Errorf("what it calls defaults is none: %+v", c)
	}
	for key := range setters {
		if !strings.Contains(Example, "\n#"+key+" = ") {
			t.Errorf("it does not have %s", key)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Example)
	f.Add("admins = lgpu\nusers = refuse\nplace = /u/{user}\nplace.lgpu = count=4\nquota.depth = 3\nothers=none")
	f.Add("place.memory.max = 8GiB # most\nplace.compute.min = 1%")
	f.Add("=\n#\nx=y=z\nplace.=1\nplace = /{user}/../..")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(strings.NewReader(text))
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1 || !reflect.DeepEqual(c, Config{})) {
			t.Fatalf("%q: %+v, %v", text, c, err)
		}
		if err == nil && c.Places.Template != "" && daemon.CheckPlace(c.Places.Template) != nil {
			t.Fatalf("%q: the place %q", text, c.Places.Template)
		}
	})
}
