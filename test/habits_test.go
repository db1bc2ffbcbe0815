package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/checkpoint/criu"
)

// What programs have, such as threads, workers, timers and locks, is after a restore as it was, and after one from an image of
// the restored program, too. habits.py has it, and names what is not.
func TestCheckpointHabits(t *testing.T) {
	for _, overcommit := range []string{"--overcommit=false", "--overcommit"} {
		t.Run(overcommit, func(t *testing.T) { checkpointHabits(t, overcommit) })
	}
}

func checkpointHabits(t *testing.T, overcommit string) {
	p, folder := imagePlace(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("the habits of programs are NOT TESTED: python3 is not here")
	}
	program, err := filepath.Abs("habits.py")
	if err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(p.dir, "files")
	if err := os.Mkdir(files, 0o700); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", tideShape, "--name", "kept", overcommit, "--", python, program, files}
	if can, err := (criu.Program{Path: p.criu}).Features(t.Context()); err != nil {
		t.Fatal(err)
	} else if can.Sockets {
		args = append(args, "network")
	} else {
		t.Log("sockets of the network are NOT TESTED: it takes criu 4.2 with this kernel")
	}
	c := p.start("lgpu", args...)
	c.until("ready")
	for n := range 2 {
		image := filepath.Join(folder, fmt.Sprint(n))
		p.checkpoint("kept", image, "--stop")
		p.gone(c, "/kept")
		c = p.restore(image)
		c.tell("check")
		c.checked(fmt.Sprintf("restore %d", n+1))
	}
	c.end()
}

// namedIn are the files in memory that an image has, by their names, as lgpu notes them.
func namedIn(t *testing.T, image string) (paths []string) {
	t.Helper()
	var manifest struct{ Words map[string]string }
	var program struct{ Named []struct{ Name string } }
	text, err := os.ReadFile(filepath.Join(image, "manifest.json"))
	if err == nil {
		err = json.Unmarshal(text, &manifest)
	}
	if err == nil {
		err = json.Unmarshal([]byte(manifest.Words["program"]), &program)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range program.Named {
		paths = append(paths, filepath.Join("/dev/shm", one.Name))
	}
	return paths
}

// Memory that has a name is in the image: it comes back where its name is gone, and where something else is in it that nobody
// uses. What somebody uses is left alone, and the restore is refused.
func TestCheckpointNamedMemory(t *testing.T) {
	for _, contain := range []string{"--contain=off", "--contain=on"} {
		t.Run(contain, func(t *testing.T) { checkpointNamedMemory(t, contain) })
	}
}

func checkpointNamedMemory(t *testing.T, contain string) {
	p, folder := imagePlace(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("named memory is NOT TESTED: python3 is not here")
	}
	program, err := filepath.Abs("habits_named.py")
	if err != nil {
		t.Fatal(err)
	}
	c := p.start("lgpu", "run", tideShape, "--name", "kept", contain, "--", python, program)
	c.until("ready")
	first, last := filepath.Join(folder, "first"), filepath.Join(folder, "last")
	p.checkpoint("kept", first) // it goes on
	c.tell("check")
	c.checked("the program that goes on")
	p.checkpoint("kept", last, "--stop")
	p.gone(c, "/kept")
	named := namedIn(t, last)
	if !slices.Equal(namedIn(t, first), named) || len(named) != 4 {
		t.Fatalf("the images have %q and %q", namedIn(t, first), named)
	}
	p.must("image", "verify", p.key(), first, last)
	if changes := p.must("image", "diff", first, last); !strings.Contains(changes, "named/"+filepath.Base(named[0])) {
		t.Errorf("what has changed between two images: %s", changes)
	}
	t.Cleanup(func() {
		for _, path := range named {
			_ = os.Remove(path) // it is gone, if all is well
		}
	})
	restored := func(name, image string) {
		t.Helper()
		c := p.restore(image)
		c.tell("check")
		c.checked(name)
		c.end()
		p.wait("the lgpu goes", func() bool { return p.directory("/kept") == nil })
		for _, path := range named {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s: the program leaves %s", name, path)
			}
		}
	}
	other := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("another's"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	restored("as it was", last)
	restored("without the names", last) // which the restored program has taken away
	restored("of before", first)
	c = p.restore(last)
	c.tell("check")
	c.checked("before the third image")
	third := filepath.Join(folder, "third")
	p.checkpoint("kept", third, "--stop")
	p.gone(c, "/kept")
	for _, path := range named { // a restore that has succeeded leaves them to its program
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	restored("of a restored program", third)
	for _, path := range named {
		other(path)
	}
	restored("with other contents", last)

	env, made := p.env, filepath.Join(p.dir, "made")
	p.env = append(slices.Clip(env), "LGPU_CRIU="+p.actsAsCRIU(fmt.Sprintf(`[ -e %q ] && echo >%q; exit 1`, named[0], made)))
	r := p.restore(last)
	p.env = env
	if s := r.status(); s != 1 {
		t.Errorf("a restore whose CRIU fails: status %d, %s", s, r.stderr.String())
	}
	if _, err := os.Stat(made); err != nil {
		t.Error("nothing was made before CRIU began")
	}
	for _, path := range named {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("a restore that fails leaves %s", path)
		}
	}

	other(named[1])
	used, err := os.Open(named[1])
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	r = p.restore(last)
	if s := r.status(); s != 1 || !strings.Contains(r.stderr.String(), named[1]+" is not as its program had it, and process ") {
		t.Errorf("what somebody uses: status %d, %s", s, r.stderr.String())
	}
	if text, err := os.ReadFile(named[1]); err != nil || string(text) != "another's" {
		t.Errorf("what somebody uses has %q, %v", text, err)
	}
	if _, err := os.Stat(named[0]); err == nil {
		t.Errorf("a restore that was refused leaves %s", named[0])
	}
}

// checked expects all habits to be as they were.
func (t *tenant) checked(when string) {
	t.t.Helper()
	wrong, _ := t.read("what it has checked", func(line string) bool { return strings.HasPrefix(line, "checked ") })
	for _, line := range wrong {
		t.t.Errorf("%s: %s", when, line)
	}
}
