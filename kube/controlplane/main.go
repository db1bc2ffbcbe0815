// Command controlplane is a Kubernetes control plane for tests, in one process: etcd, kube-apiserver, kube-scheduler and
// kube-controller-manager as they are released, on loopback addresses with free ports.
//
//	controlplane [-address ADDRESS:PORT] FOLDER
//
// It keeps everything in FOLDER, and writes there admin.kubeconfig. If the folder is not empty it goes on with what an earlier
// one left there, at that one's address. As soon as all of it works it prints "ready". It ends when its standard input does, so
// that none stays behind of a test that was killed.
//
// There are no kubelets: whoever needs Nodes makes them, and no controller looks for their heartbeats. Only controllers run that
// tests need (see controllers). For one kubelet there are node0.kubeconfig and, so that it knows the API server,
// kubelet-client.crt.
//
// The module is of its own, since only k8s.io/kubernetes has these programs, and it needs 33 replace lines and gigabytes of
// build cache.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	address := flag.String("address", "127.0.0.1:0", "of the API server; port 0 is a free one")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: controlplane [-address ADDRESS:PORT] FOLDER")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		end(nil)
	}()
	if err := run(ctx, end, flag.Arg(0), *address); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

// run starts each component once the ones that it needs are there, and returns when ctx has ended or a component has: end ends
// ctx with the reason.
func run(ctx context.Context, end context.CancelCauseFunc, dir, address string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	c, err := lay(dir, address)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", dir, err)
	}
	closed, err := c.etcd(ctx)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer closed()
	failed := func(name string, err error) {
		if ctx.Err() == nil {
			end(fmt.Errorf("%s has ended: %v", name, err))
		}
	}
	for _, component := range []struct {
		name  string
		start func(context.Context, func(error)) error
	}{{"kube-apiserver", c.apiserver}, {"kube-scheduler", c.scheduler}, {"kube-controller-manager", c.controllerManager}} {
		if err := component.start(ctx, func(err error) { failed(component.name, err) }); err != nil {
			return fmt.Errorf("%s: %w", component.name, err)
		}
	}
	if err := c.await(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return cause
	}
	return nil
}
