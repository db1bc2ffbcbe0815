package containers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lgpu/lgpu/api/state"
)

// shape is the software GPU of the tests.
const shape = "--sim=1x4GiB,sms=4"

// daemon is the system's, or the one after it.
type daemon struct {
	*exec.Cmd
	log bytes.Buffer
}

// lgpu is a command of root.
func lgpu(args ...string) *exec.Cmd {
	c := exec.Command(work("lgpu"), args...)
	c.Dir = "/"
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LGPU_REAL_LIBNVML="}
	return c
}

// must runs a command and returns what it prints.
func must(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(c.Args, " "), err, out)
	}
	return string(out)
}

// serve starts the system's daemon, with options.
func serve(t *testing.T, options ...string) *daemon {
	t.Helper()
	d := &daemon{Cmd: lgpu(append([]string{"daemon", "--mount=off"}, options...)...)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	d.Stderr = &d.log
	d.Env = append(d.Env, "LGPU_READY_FD=3")
	d.ExtraFiles = []*os.File{w}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := io.Copy(io.Discard, r); err != nil { // it is closed when the daemon serves
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.ProcessState == nil {
			d.Process.Signal(syscall.SIGTERM)
			d.Wait()
		}
		if t.Failed() {
			t.Logf("the daemon:\n%s", d.log.String())
		}
	})
	return d
}

// imported are the images that users have.
var imported sync.Map

// image gives a user an image.
func image(t *testing.T, uid int, name string) string {
	t.Helper()
	once, _ := imported.LoadOrStore(fmt.Sprint(uid, name), sync.OnceValue(func() error {
		args := []string{"import"}
		if name == plain { // in listed, the list of libraries names them
			args = append(args, "--change", "ENV LD_LIBRARY_PATH=/opt/driver")
		}
		out, err := podman(uid, append(args, work("image-"+name+".tar"), "localhost/"+name)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}))
	if err := once.(func() error)(); err != nil {
		t.Fatalf("image %s of user %d: %v", name, uid, err)
	}
	return "localhost/" + name
}

// container is the command that runs a program in a container of an lgpu; more are podman's options.
func container(t *testing.T, uid int, lgpu, name string, more []string, program ...string) *exec.Cmd {
	args := append([]string{"run", "--rm", "--network=none", "--device", "lgpu.io/lgpu=" + lgpu}, more...)
	return podman(uid, append(append(args, image(t, uid, name)), program...)...)
}

// users calls f as root and as a user with rootless containers.
func users(t *testing.T, f func(t *testing.T, uid int)) {
	t.Run("root", func(t *testing.T) { f(t, 0) })
	t.Run("rootless", func(t *testing.T) { f(t, userID) })
}

// create makes an lgpu of 1 GiB that a user may use, and removes it after the test.
func create(t *testing.T, uid int, name string) {
	t.Helper()
	must(t, lgpu("create", shape, "/"+name, "memory.max=1GiB"))
	t.Cleanup(func() {
		if _, exists := specs(t)[name]; exists {
			remove(t, name)
		}
	})
	if uid != 0 {
		must(t, lgpu("chown", strconv.Itoa(uid), "/"+name))
	}
}

// remove removes an lgpu, of which programs may just have ended.
func remove(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		out, err := lgpu("rm", "/"+name).CombinedOutput()
		if err == nil {
			return
		}
		if !strings.Contains(string(out), "processes use it") || time.Now().After(deadline) {
			t.Fatalf("remove %s: %v\n%s", name, err, out)
		}
	}
}

// TestBounded: whatever a container's program does with its environment, its user and the libraries of its image, its memory
// is that of its lgpu.
func TestBounded(t *testing.T) {
	serve(t)
	users(t, func(t *testing.T, uid int) {
		create(t, uid, "team")
		for _, name := range []string{plain, listed} {
			out := must(t, container(t, uid, "team", name, nil, "/ways"))
			for _, w := range tried {
				found := false
				for line := range strings.Lines(out) {
					found = found || strings.HasPrefix(line, w.name+" => bounded: ")
				}
				if !found {
					t.Errorf("image %s: %s is not bounded", name, w.name)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		}
		// What the ways are kept from is there to be found.
		free := append([]string{"run", "--rm", "--network=none", "-v", simSocket(t) + ":/sim.sock", "-e", "LGPU_SIM=/sim.sock"},
			image(t, uid, plain), "/grab")
		if out, err := podman(uid, free...).CombinedOutput(); err == nil || !strings.Contains(string(out), "not bounded: ") {
			t.Errorf("without an lgpu: %v\n%s", err, out)
		}
	})
}

// simSocket is that of the software GPU.
func simSocket(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/run/lgpu/sim-*.sock")
	if err != nil || len(found) != 1 {
		t.Fatalf("the software GPU: %v, %v", found, err)
	}
	return found[0]
}

// kept is a container whose program keeps memory.
type kept struct {
	*exec.Cmd
	name string
	uid  int
	in   io.WriteCloser
	out  *bufio.Scanner
}

// keep starts a container with a program that keeps memory.
func keep(t *testing.T, uid int, lgpu string, more ...string) *kept {
	t.Helper()
	k := &kept{name: fmt.Sprintf("keep-%d-%s", uid, lgpu), uid: uid}
	k.Cmd = container(t, uid, lgpu, plain, append(more, "-i", "--name", k.name), "/keep")
	in, err := k.StdinPipe()
	out, failed := k.StdoutPipe()
	k.Stderr = os.Stderr
	if err = errors.Join(err, failed, k.Start()); err != nil {
		t.Fatal(err)
	}
	k.in, k.out = in, bufio.NewScanner(out)
	t.Cleanup(k.end)
	k.hears(t, "kept")
	return k
}

func (k *kept) end() {
	if k.ProcessState == nil {
		k.in.Close()
		k.Wait()
	}
}

// hears waits for a line of the program.
func (k *kept) hears(t *testing.T, want string) {
	t.Helper()
	if !k.out.Scan() || k.out.Text() != want {
		t.Fatalf("%s says %q, not %q: %v", k.name, k.out.Text(), want, k.out.Err())
	}
}

// tries has the program try to get more than the limit.
func (k *kept) tries(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(k.in, "\n"); err != nil {
		t.Fatal(err)
	}
	k.hears(t, "bounded")
}

// pid is that of the container's first process, as this namespace sees it.
func (k *kept) pid(t *testing.T) string {
	return strings.TrimSpace(must(t, podman(k.uid, "inspect", "--format", "{{.State.Pid}}", k.name)))
}

// TestEntered: what enters a running container, by the runtime or by setns, is in the container's lgpu.
func TestEntered(t *testing.T) {
	serve(t)
	users(t, func(t *testing.T, uid int) {
		create(t, uid, "team")
		k := keep(t, uid, "team")
		pid := k.pid(t)
		for name, c := range map[string]*exec.Cmd{
			"exec":              podman(uid, "exec", k.name, "/grab"),
			"exec as a user":    podman(uid, "exec", "--user", "65534", k.name, "/launch", "/grab"),
			"all namespaces":    exec.Command("nsenter", "-t", pid, "-a", "/grab"),
			"mount namespace":   exec.Command("nsenter", "-t", pid, "-m", "-r", "/grab"),
			"without variables": exec.Command("nsenter", "-t", pid, "-m", "-p", "-r", "/launch", "/grab"),
		} {
			out, err := c.CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "bounded: ") {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
		text := must(t, lgpu("ps", "--json"))
		var s state.State
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		shown := 0 // as a client: the driver's own list of processes may have it by now, or not yet
		for _, l := range s.LGPUs {
			for _, c := range l.Processes {
				if c.Command == "keep" {
					shown++
				}
			}
		}
		if shown != 1 {
			t.Errorf("the container's program is shown %d times: %s", shown, text)
		}
	})
}

// TestRefused: what may not be in an lgpu, or could not, is told so before it starts.
func TestRefused(t *testing.T) {
	serve(t)
	create(t, 0, "root")
	create(t, userID, "hers")
	for _, c := range []struct {
		name, lgpu, image string
		uid               int
		more              []string
		want              string
	}{
		{"musl", "root", musl, 0, nil, "the image has the C library musl, and the driver's libraries need glibc"},
		{"old glibc", "root", old, 0, nil, "the image has glibc 2.12, and libcuda.so.1 needs 2."},
		{"no libc", "root", bare, 0, nil, "the image has no C library"},
		{"two lgpus", "root", plain, 0, []string{"--device", "lgpu.io/lgpu=hers"}, "a container can be in one lgpu"},
		{"another's lgpu", "root", plain, userID, nil, "user " + userName + " may not"},
		{"no such lgpu", "absent", plain, 0, nil, "lgpu.io/lgpu=absent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := container(t, c.uid, c.lgpu, c.image, c.more, "/launch", "/launch").CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestStolen: another container's socket opens nothing.
func TestStolen(t *testing.T) {
	serve(t)
	create(t, 0, "mine")
	create(t, 0, "other")
	folder := ""
	for _, m := range spec(t, "other").Edits.Mounts {
		if m.Container == "/run/lgpu/container" {
			folder = m.Host
		}
	}
	forged := []string{"env", "-u", "LD_LIBRARY_PATH", "LD_PRELOAD=/opt/liblgpu.so", "LGPU_SOCKET=/other/tenant.sock",
		"LGPU_REAL_LIBCUDA=/run/lgpu/driver/libcuda.so.1", "LGPU_SIM=/run/lgpu/sim.sock", "/linked"}
	out, err := container(t, 0, "mine", plain, []string{"-v", folder + ":/other"}, forged...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "in no container of it") {
		t.Errorf("inside a container: %v\n%s", err, out)
	}
	c := exec.Command(work("grab"))
	c.Env = []string{"LD_PRELOAD=" + preload(t), "LGPU_SOCKET=" + folder + "/tenant.sock",
		"LD_LIBRARY_PATH=" + filepath.Join(filepath.Dir(preload(t)), "sim"), "LGPU_SIM=" + simSocket(t)}
	if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "in no container of it") {
		t.Errorf("outside: %v\n%s", err, out)
	}
}

// TestBypassed: a container's program that goes around the library on purpose is found to be the lgpu's, whatever it
// belongs to otherwise, and ended where the administrator wants that.
func TestBypassed(t *testing.T) {
	serve(t, "--police=stop")
	users(t, func(t *testing.T, uid int) {
		create(t, uid, "team")
		c := container(t, uid, "team", plain, []string{"-i"}, "env", "LD_PRELOAD=/run/lgpu/driver/libcuda.so.1",
			"LGPU_SIM=/run/lgpu/sim.sock", "/keep")
		in, err := c.StdinPipe() // open, so that the program stays
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "kept") {
			t.Errorf("%v\n%s", err, out)
		}
		if said := must(t, lgpu("events", "--kind=police.stopped", "/team")); !strings.Contains(said, "(keep)") ||
			!strings.Contains(said, "belongs to /team but holds") {
			t.Errorf("the events: %s", said)
		}
	})
}

// preload is the interposer as lgpu run preloads it.
func preload(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/run/lgpu/lib/*/liblgpu.so")
	if err != nil || len(found) != 1 {
		t.Fatalf("the interposer: %v, %v", found, err)
	}
	return found[0]
}

// device is what a specification says of an lgpu, as far as the tests read it.
type device struct {
	Name  string
	Edits struct {
		Mounts []struct {
			Host      string `json:"hostPath"`
			Container string `json:"containerPath"`
		}
	} `json:"containerEdits"`
	file string
}

// specs are the specifications that runtimes find, by the name of the lgpu.
func specs(t *testing.T) map[string]device {
	t.Helper()
	found := map[string]device{}
	files, _ := filepath.Glob("/run/cdi/*.json") // the pattern is well formed
	for _, path := range files {
		var f struct{ Devices []device }
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(data, &f)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, d := range f.Devices {
			d.file = path
			found[d.Name] = d
		}
	}
	return found
}

func spec(t *testing.T, name string) device {
	t.Helper()
	d, ok := specs(t)[name]
	if !ok {
		t.Fatalf("%s is not offered", name)
	}
	return d
}

// TestRestart: a container outlives the daemon that it was started with, killed at any moment: its limit holds without one,
// and its programs come to the next.
func TestRestart(t *testing.T) {
	users(t, func(t *testing.T, uid int) {
		first := serve(t)
		create(t, uid, "team")
		before := spec(t, "team")
		k := keep(t, uid, "team")
		if err := first.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		first.Wait() // killed
		k.tries(t)
		stale := strings.TrimSuffix(before.file, filepath.Ext(before.file))
		stale = stale[:strings.LastIndex(stale, "_")] + "_1234.json"
		foreign := "/run/cdi/other.json"
		for path, text := range map[string]string{stale: "{}", foreign: "{}"} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		serve(t)
		if after := spec(t, "team"); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the specification has changed from\n%v to\n%v", before, after)
		}
		if _, err := os.Stat(stale); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the specification of an lgpu that is gone: %v", err)
		}
		if err := os.Remove(foreign); err != nil {
			t.Errorf("another's specification: %v", err)
		}
		k.tries(t)
		if out := must(t, podman(uid, "exec", k.name, "/launch", "/grab")); !strings.HasPrefix(out, "bounded: ") {
			t.Errorf("a program of the container with the next daemon: %s", out)
		}
		if out, err := lgpu("rm", "/team").CombinedOutput(); err == nil {
			t.Errorf("an lgpu with a container's program has been removed: %s", out)
		}
		k.end() // while this daemon serves
		remove(t, "team")
	})
}

// TestOffers: the specifications are those of the named lgpus, at any time.
func TestOffers(t *testing.T) {
	serve(t)
	offered := func(want ...string) {
		t.Helper()
		list := must(t, lgpu("cdi", "list"))
		found := specs(t)
		for _, name := range want {
			if _, ok := found[name]; !ok || !strings.Contains(list, "lgpu.io/lgpu="+name+" ") {
				t.Errorf("%s is not offered: %s", name, list)
			}
		}
		if len(found) != len(want) {
			t.Errorf("%d specifications, not %d: %s", len(found), len(want), list)
		}
	}
	offered()
	must(t, lgpu("create", shape, "/a"))
	must(t, lgpu("create", shape, "/0.b"))
	offered("a", "0.b")
	must(t, lgpu("create", shape, "/a/c"))
	offered("a:c", "0.b") // a is a group now
	must(t, lgpu("rm", "/a/c"))
	must(t, lgpu("rm", "/a"))
	offered("0.b")
	must(t, lgpu("rm", "/0.b"))
	offered()
	if left, err := os.ReadDir("/run/lgpu/containers"); err != nil || len(left) != 0 {
		t.Errorf("folders of lgpus that are gone: %v, %v", left, err)
	}
}

// TestInstance: a container of an lgpu that has one MIG instance has that instance's memory, and nothing of its environment says
// which it is. An lgpu that could have several is offered once it was given one.
func TestInstance(t *testing.T) {
	serve(t)
	const divided = "--sim=1x8GiB,sms=7,mig=1g+1g" // instances of 1 GiB
	must(t, lgpu("create", divided, "/mine"))
	defer remove(t, "mine")
	if _, offered := specs(t)["mine"]; offered {
		t.Error("an lgpu of two MIG instances is offered")
	}
	must(t, lgpu("run", divided, "--name", "mine", "--group", "/", "--device", "0:1", "--", "true"))
	for deadline := time.Now().Add(time.Minute); ; {
		list := must(t, lgpu("cdi", "list"))
		if strings.Contains(list, "lgpu.io/lgpu=mine ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is not offered: %s", list)
		}
	}
	out := must(t, container(t, 0, "mine", plain, nil, "/grab"))
	if !strings.HasPrefix(out, "bounded: ") {
		t.Errorf("in the container: %s", out)
	}
}
