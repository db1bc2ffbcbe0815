package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	built    = "../../build" // by make
	nodeName = "node0"
	system   = "lgpu-system"       // namespace of the chart
	shape    = "2x8GiB,sms=16"     // the software GPU that the node offers
	label    = "lgpu.io/node=true" // of nodes that the chart is for
)

// patience bounds what no test measures: how long other programs may take on a busy machine.
const patience = 4 * time.Minute

// node is the machine that all tests share.
type node struct {
	kubernetes.Interface
	dir        string
	kubeconfig string // the administrator's
	programs   map[string]*program
	doors      []string // of lgpus that are no claim's
}

var shared *node

// program is one of the node's own, which a test may kill and start again.
type program struct {
	name  string
	args  []string
	ready func(context.Context) error // returns once it serves
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	// starts is how often it was started.
	starts int
}

// start starts it, and waits until it serves.
func (p *program) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(filepath.Join(built, "kube", p.name), p.args...)
	path, err := filepath.Abs(filepath.Join(built, "kube")) // where containerd finds its shim
	if err != nil {
		return err
	}
	p.cmd.Env = []string{"PATH=" + path + ":" + os.Getenv("PATH"), "HOME=" + temporary}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if _, err := p.cmd.StdinPipe(); err != nil { // the control plane ends with it
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.starts, p.ended = p.starts+1, make(chan struct{})
	cmd, ended := p.cmd, p.ended
	go func() {
		cmd.Wait()
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if err = p.ready(ctx); err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("%s has ended: %v", p.name, cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w", p.name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// kill ends it as a crash does.
func (p *program) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// begin starts a node, with lgpu on it. Where it fails it returns what it has of it as well.
func begin() (*node, error) {
	n := &node{dir: "/var/lib/node", programs: map[string]*program{}}
	if err := errors.Join(os.Mkdir(n.dir, 0o755), os.Mkdir("/var/log/pods", 0o755)); err != nil {
		return nil, err
	}
	n.kubeconfig = filepath.Join(n.dir, "plane", "admin.kubeconfig")
	for file, text := range map[string]string{"containerd.toml": containerdConfig, "kubelet.yaml": kubeletConfig,
		"cni.d/10-own.conflist": cniConfig, "cni/own": cniPlugin} {
		path := filepath.Join(n.dir, file)
		text = strings.NewReplacer("@DIR@", n.dir, "@GROUP@", os.Getenv(envGroup), "@RUNC@", absolute("kube/runc"),
			"@ADDRESS@", address).Replace(text)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			return nil, err
		}
	}
	if err := n.images(); err != nil {
		return n, err
	}
	n.add("controlplane", n.planeServes, "-address", service+":443", filepath.Join(n.dir, "plane"))
	n.add("containerd", func(ctx context.Context) error {
		_, err := n.ctr(ctx, "version")
		return err
	}, "--config", filepath.Join(n.dir, "containerd.toml"))
	n.add("kubelet", n.isReady, "--config", filepath.Join(n.dir, "kubelet.yaml"), "--kubeconfig",
		filepath.Join(n.dir, "plane", nodeName+".kubeconfig"), "--hostname-override", nodeName, "--node-ip", address,
		"--node-labels", label, "--cert-dir", filepath.Join(n.dir, "pki"))
	for _, name := range []string{"controlplane", "containerd"} {
		if err := n.programs[name].start(); err != nil {
			return n, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, image := range []string{"pause", "app", "lgpu-1", "lgpu-2"} {
		if _, err := n.ctr(ctx, "images", "import", filepath.Join(n.dir, image+".tar")); err != nil {
			return n, err
		}
	}
	if err := n.programs["kubelet"].start(); err != nil {
		return n, err
	}
	err := n.install(ctx)
	n.doors = doors()
	return n, err
}

// absolute is the path of something that make has built.
func absolute(name string) string {
	path, err := filepath.Abs(filepath.Join(built, name))
	if err != nil {
		panic(err) // there is no working directory
	}
	return path
}

func (n *node) add(name string, ready func(context.Context) error, args ...string) {
	n.programs[name] = &program{name: name, args: args, ready: ready, log: filepath.Join(n.dir, name+".log")}
}

// ctr runs containerd's client, on the images and containers of the kubelet, and returns what it prints.
func (n *node) ctr(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, absolute("kube/ctr"), append([]string{"-n", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// planeServes connects to the control plane once all of it works.
func (n *node) planeServes(ctx context.Context) error {
	log, err := os.ReadFile(n.programs["controlplane"].log)
	if err != nil {
		return err
	}
	if bytes.Count(append([]byte("\n"), log...), []byte("\nready\n")) < n.programs["controlplane"].starts {
		return errors.New("it does not say that it is ready")
	}
	config, err := clientcmd.BuildConfigFromFlags("", n.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 2000
	n.Interface, err = kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = n.CoreV1().ServiceAccounts(corev1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// isReady returns why the Node is not ready.
func (n *node) isReady(ctx context.Context) error {
	one, err := n.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range one.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return errors.New(c.Message)
		}
	}
	return nil
}

// kubectl runs the administrator's client and returns what it prints.
func (n *node) kubectl(ctx context.Context, input string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, absolute("kube/kubectl"), append([]string{"--kubeconfig", n.kubeconfig}, args...)...)
	c.Env = append(os.Environ(), "HOME="+temporary)
	c.Stdin = strings.NewReader(input)
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// install applies the chart, as a user would, and waits until the driver has published the devices.
func (n *node) install(ctx context.Context) error {
	c := exec.CommandContext(ctx, absolute("kube/helm"), "template", "lgpu", "../deploy/chart", "--namespace", system,
		"--set", "namespace.create=true,image.repository=localhost/lgpu,image.pullPolicy=Never,explain.enabled=false",
		"--set-string", "image.tag=1", "--set", "sim="+strings.ReplaceAll(shape, ",", `\,`),
		"--set", "daemon.env[0].name=LGPU_REAL_LIBNVML,daemon.env[0].value=") // no GPU of this machine
	c.Env = append(os.Environ(), "HOME="+temporary)
	text, err := c.Output()
	if err != nil {
		return fmt.Errorf("helm template: %w", err)
	}
	if _, err := n.kubectl(ctx, string(text), "apply", "--validate=strict", "-f", "-"); err != nil {
		return err
	}
	return n.offers(ctx, 2)
}

// offers waits until the node offers so many devices.
func (n *node) offers(ctx context.Context, devices int) error {
	return until(ctx, fmt.Sprintf("%d devices are offered", devices), func(ctx context.Context) (bool, error) {
		slices, err := n.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil // the API server may be on its way
		}
		count := 0
		for _, s := range slices.Items {
			count += len(s.Spec.Devices)
		}
		return count == devices, nil
	})
}

// until asks again and again whether something is so, for as long as patience lasts.
func until(ctx context.Context, what string, is func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		yes, err := is(ctx)
		if yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not come about that %s", what)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// logs writes the end of what the node's programs and lgpu's pod have said.
func (n *node) logs(w io.Writer) {
	files, _ := filepath.Glob(filepath.Join(n.dir, "*.log"))
	pods, _ := filepath.Glob("/var/log/pods/" + system + "_*/*/*.log")
	for _, f := range append(files, pods...) {
		data, err := os.ReadFile(f)
		fmt.Fprintf(w, "--- %s (%v)\n%s\n", f, err, data[max(0, len(data)-6000):])
	}
}

// lines are those of a text.
func lines(text string) []string {
	var all []string
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		all = append(all, s.Text())
	}
	return all
}

// whole returns the node, which a failed test has the logs of printed.
func whole(t testing.TB) *node {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			var b strings.Builder
			shared.logs(&b)
			t.Log(b.String())
		}
	})
	return shared
}
