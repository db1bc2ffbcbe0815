package contain

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHold: a namespace without a program has all that one with a program has, and says what it was made of; one that a program
// makes for itself from it is none of lgpu's.
func TestHold(t *testing.T) {
	p := fullPlan(t)
	permitted(t, p)
	if os.Geteuid() != 0 {
		t.Skip("who is not root may not look into it")
	}
	h, err := p.Hold()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	in, err := Of(h.PID())
	if err != nil || in == nil || !slices.Equal(in.Environment, p.Kept) || len(p.Kept) != 1 || !strings.HasPrefix(p.Kept[0], pathVariable+"=") {
		t.Errorf("it is %+v, %v; made of %q", in, err, p.Kept)
	}
	for _, path := range p.Covers {
		inside, err := os.Stat(h.Root() + path)
		if err != nil {
			t.Fatal(err)
		}
		if outside, err := os.Stat(path); err != nil || os.SameFile(inside, outside) {
			t.Errorf("%s is not covered: %v", path, err)
		}
	}
	if in, err := Of(os.Getpid()); in != nil || err != nil {
		t.Errorf("this process: %+v, %v", in, err)
	}
	own := exec.Command("nsenter", "--mount=/proc/"+filepath.Base(filepath.Dir(h.Root()))+"/ns/mnt", "unshare", "--mount", "cat")
	own.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	write, err := own.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	read, err := own.StdoutPipe()
	if err == nil {
		err = own.Start()
	}
	if err == nil {
		_, err = write.Write([]byte("x"))
	}
	if err == nil {
		_, err = read.Read(make([]byte, 1)) // it is cat now
	}
	if err != nil {
		t.Fatal(err)
	}
	if in, err := Of(own.Process.Pid); in != nil || err != nil {
		t.Errorf("a namespace made from it: %+v, %v", in, err)
	}
	write.Close()
	if err := own.Wait(); err != nil {
		t.Error(err)
	}
}

// TestContents: a stamped copy has the contents of the library, and another file its own.
func TestContents(t *testing.T) {
	plain := library(t)
	stamped, err := stamp(plain, map[string]string{"LGPU_SOCKET": "/run/a"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, want []byte }{
		"stamped": {stamped, plain}, "plain": {plain, plain}, "text": {[]byte("text"), []byte("text")}, "empty": {},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, c.file, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := Contents(f)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(c.want))
		}
	}
}
