package names

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, name := range []string{"a", "0", "a.b-c_d", strings.Repeat("x", 63), "Z9"} {
		if err := Check(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".x", "-x", "_x", "../x", "a/b", "a b", "é", "a\x00", strings.Repeat("x", 64)} {
		if Check(name) == nil {
			t.Errorf("%q is taken for a name", name)
		}
	}
	if err := Check("kühl"); !strings.Contains(err.Error(), `"ü" is not possible`) {
		t.Error(err)
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		path, ancestor string
		want           bool
	}{
		{"/a", "/a", true}, {"/a/b", "/a", true}, {"/ab", "/a", false}, {"/a", "/a/b", false}, {"/a", "/", true},
		{"/", "/", true}, {"/", "/a", false}, {"", "/a", false},
	} {
		if got := Within(c.path, c.ancestor); got != c.want {
			t.Errorf("%q within %q: %v", c.path, c.ancestor, got)
		}
	}
}
