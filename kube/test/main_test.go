// Package test runs the driver beside a real control plane: etcd, API server, stock scheduler and the controllers of claims,
// built of their own modules by make kube-control-plane. There is no kubelet: the tests make Nodes, and call the driver as one,
// or kwok plays many.
package test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// binary is the control plane, and tools beside it are kubectl, helm and kwok.
const binary = "../../build/kube/controlplane"

// envRequired makes it a failure that the control plane is not built, as all is required.
const envRequired = "LGPU_TEST_KUBE"

// cluster is a control plane that runs.
type cluster struct {
	kubernetes.Interface
	config     *rest.Config
	kubeconfig string // file of the administrator's
}

// shared is the control plane of all tests, nil where none is built.
var shared *cluster

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (int, error) {
	if _, err := os.Stat(binary); err != nil {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "plane-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	c, stop, err := start(dir)
	if err != nil {
		return 0, err
	}
	defer stop()
	shared = c
	return m.Run(), nil
}

// start starts a control plane in a folder. It ends with this process, or by stop.
func start(dir string) (*cluster, func(), error) {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	command := exec.Command(binary, filepath.Join(dir, "state"))
	command.Stderr, command.SysProcAttr = log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := command.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := command.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() { in.Close(); command.Process.Kill(); command.Wait() }
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "ready" {
		stop()
		text, _ := os.ReadFile(log.Name())
		return nil, nil, fmt.Errorf("the control plane did not start (%v), and said:\n%s", err, text[max(0, len(text)-4000):])
	}
	c := &cluster{kubeconfig: filepath.Join(dir, "state", "admin.kubeconfig")}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig); err == nil {
		c.config.QPS, c.config.Burst = 2000, 4000
		c.Interface, err = kubernetes.NewForConfig(c.config)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return c, stop, nil
}

// plane returns the control plane, or ends the test.
func plane(t *testing.T) *cluster {
	t.Helper()
	if shared == nil {
		const missing = "NOT RUN: there is no control plane; build it, once, by: make kube-control-plane (minutes, 4 GB of cache)"
		if os.Getenv(envRequired) == "all" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return shared
}

// tool runs kubectl or helm, and returns what it prints.
func tool(ctx context.Context, t *testing.T, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(ctx, filepath.Join(filepath.Dir(binary), name), args...)
	c.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
