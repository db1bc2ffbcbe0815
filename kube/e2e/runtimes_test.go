package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// client is one that starts containers without Kubernetes, each in an lgpu.
type client struct {
	program string
	options []string
	env     []string
	// begin are the arguments that start a container of a name, with some options, in which a command runs.
	begin func(name string, options []string, command ...string) []string
	// enter are those that run a command in a container that runs, and end those that remove it.
	enter func(name string, command ...string) []string
	end   func(name string) [][]string
}

// command is one of the client's.
func (c *client) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, absolute("kube/"+c.program), append(c.options[:len(c.options):len(c.options)], args...)...)
	cmd.Env = append([]string{"PATH=" + absolute("kube") + ":" + os.Getenv("PATH"), "HOME=" + temporary}, c.env...)
	return cmd
}

// runs runs a command, and returns what it prints.
func (c *client) runs(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := c.command(ctx, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", c.program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// device is the option for the lgpu of a name.
func device(name string) string { return "--device=lgpu.io/lgpu=" + name }

const appImage = "localhost/app:1"

// A named lgpu of the node is a device for containerd's own client, which has no word for the control group's parent.
func TestCtr(t *testing.T) {
	begun(t)
	held(t, &client{program: "ctr", options: []string{"-n", "k8s.io"},
		begin: func(name string, options []string, command ...string) []string {
			args := append([]string{"run", "--cgroup", "/" + os.Getenv(envGroup) + "/ctr/" + name}, options...)
			return append(append(args, appImage, name), command...)
		},
		enter: func(name string, command ...string) []string {
			return append([]string{"tasks", "exec", "--exec-id", "one", name}, command...)
		},
		end: func(name string) [][]string {
			return [][]string{{"tasks", "delete", "--force", name}, {"containers", "delete", name}}
		}})
}

// likeDocker are the arguments that nerdctl has as Docker has them.
func likeDocker(c client) *client {
	c.begin = func(name string, options []string, command ...string) []string {
		args := append([]string{"run", "--name", name, "--net=none", "--cgroup-parent=/" + os.Getenv(envGroup) + "/" + c.program},
			options...)
		return append(append(args, appImage), command...)
	}
	c.enter = func(name string, command ...string) []string { return append([]string{"exec", name}, command...) }
	c.end = func(name string) [][]string { return [][]string{{"rm", "--force", name}} }
	return &c
}

// The same by nerdctl.
func TestNerdctl(t *testing.T) {
	begun(t)
	held(t, likeDocker(client{program: "nerdctl",
		options: []string{"--namespace=k8s.io", "--cgroup-manager=cgroupfs", "--snapshotter=overlayfs"}}))
}

// And by Docker, whose daemon uses the node's containerd.
func TestDocker(t *testing.T) {
	for _, name := range []string{"dockerd", "docker"} {
		if _, err := os.Stat(absolute("kube/" + name)); err != nil {
			t.Skipf("NOT RUN: %s is not built; run, once: make kube-docker", name)
		}
	}
	s := begun(t)
	const socket = "unix:///run/docker.sock"
	c := likeDocker(client{program: "docker", env: []string{"DOCKER_HOST=" + socket}})
	s.add("dockerd", func(ctx context.Context) error {
		out, err := c.command(ctx, "version").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}, "--containerd=/run/containerd/containerd.sock", "--host="+socket, "--bridge=none", "--iptables=false", "--ip6tables=false",
		"--ip-forward=false", "--userland-proxy=false")
	daemon := s.programs["dockerd"]
	if err := daemon.start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		daemon.cmd.Process.Signal(syscall.SIGTERM)
		<-daemon.ended
	}()
	c.runs(t, "load", "--input", filepath.Join(s.dir, "app.tar"))
	held(t, c)
}

// held tests that what a client starts in an lgpu is held to its limits, whatever it does, and says why where it does not start.
func held(t *testing.T, c *client) {
	const limit, most = 1 << 30, 0.30
	lgpu := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("/var/lib/lgpu/bin/lgpu", args...).CombinedOutput(); err != nil {
			t.Errorf("lgpu %s: %v\n%s", args, err, out)
		}
	}
	for _, name := range []string{"team", "other"} {
		lgpu("create", "--sim="+shape, "/"+name, fmt.Sprintf("memory.max=%dB", limit), fmt.Sprintf("compute.max=%d%%", int(most*100)))
		defer lgpu("rm", "/"+name)
	}
	if t.Failed() {
		return
	}
	once := []string{"--rm", device("team")}
	for i, way := range ways {
		bounded(t, strings.Join(way, " "), c.runs(t, c.begin("way-"+strconv.Itoa(i), once, alone(way...)...)...), limit)
	}
	if said := c.runs(t, c.begin("view", once, "/view")...); !strings.Contains(said, fmt.Sprintf("device 0 memory %d\n", limit)) {
		t.Errorf("NVML shows %q, and not %d bytes", said, limit)
	}
	for name, want := range map[string]string{"absent": "lgpu.io/lgpu=absent", "other": "a container can be in one lgpu"} {
		refused := c.begin("refused-"+name, append(once[:len(once):len(once)], device(name)), alone("/tenant")...)
		if out, err := c.command(t.Context(), refused...).CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("with the lgpus team and %s: %v, %q, and not %q", name, err, out, want)
		}
	}

	c.runs(t, c.begin("kept", []string{"-d", device("team")}, "/bin/sleep", "1000000")...)
	defer func() {
		for _, args := range c.end("kept") {
			c.runs(t, args...)
		}
	}()
	said := c.runs(t, c.enter("kept", alone("env", "-i", "/tenant", "/compute.ptx")...)...)
	bounded(t, "a program that enters", said, limit)
	before := used(t, "/team")
	said = c.runs(t, c.enter("kept", "sh", "-c", "for i in 1 2 3 4; do echo 1; done | /tenant /compute.ptx")...)
	var took float64
	for _, seconds := range computed.FindAllStringSubmatch(said, -1) {
		one, _ := strconv.ParseFloat(seconds[1], 64) // the expression has a number
		took += one
	}
	part := (used(t, "/team") - before).Seconds() / took
	t.Logf("it has %.0f %% of the device's time, with a cap of %.0f", part*100, most*100)
	if !(part > 0 && part < most+slack) { // nor without any
		t.Errorf("it has %.0f %% of the device's time: %q", part*100, said)
	}
}

// alone is a command that reads nothing, where ctr leaves its input open.
func alone(command ...string) []string {
	return []string{"/bin/sh", "-c", strings.Join(command, " ") + " </dev/null"}
}

// computed is what the program tenant says for how long it has computed.
var computed = regexp.MustCompile(`(?m)^kernels \d+ ([\d.]+)$`)

// used is how much time of devices an lgpu has used.
func used(t testing.TB, path string) time.Duration {
	t.Helper()
	var all time.Duration
	for _, d := range snapshot(t).GetDirectories() {
		if d.GetPath() == path {
			for _, use := range d.GetDevices() {
				all += time.Duration(use.GetBusyNs())
			}
		}
	}
	return all
}
