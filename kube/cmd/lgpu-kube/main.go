// Command lgpu-kube is lgpu's DRA driver: it runs on each node beside lgpu's daemon, offers the node's devices to the
// scheduler, and gives each resource claim an lgpu. docs/kubernetes.md.
//
// In a cluster it is four commands of one image: lgpu-kube is the driver, lgpu-kube daemon runs lgpu's daemon on the node,
// lgpu-kube ready is the probe that says whether that one answers, and lgpu-kube explain, once for the cluster, makes events of
// what claims lack that wait.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/explain"
	"github.com/lgpu/lgpu/kube/host"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	name, args := "", os.Args[1:]
	if len(args) > 0 && slices.Contains([]string{"daemon", "ready", "explain"}, args[0]) {
		name, args = args[0], args[1:]
	}
	var err error
	switch name {
	case "daemon":
		err = runDaemon(ctx, args)
	case "ready":
		err = ready(ctx, args)
	case "explain":
		err = explainClaims(ctx, args)
	default:
		err = drive(ctx, args)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "lgpu-kube:", err)
		os.Exit(1)
	}
}

// runDaemon runs lgpu's daemon on the node.
func runDaemon(ctx context.Context, args []string) error {
	node := host.Node{Runtime: filepath.Dir(api.System)}
	f := flag.NewFlagSet("daemon", flag.ExitOnError)
	program := f.String("program", "/usr/bin/lgpu", "lgpu in this image")
	f.StringVar(&node.Root, "node", "/proc/1", "folder in /proc of a process of the node")
	f.StringVar(&node.Bin, "bin", "/var/lib/lgpu/bin", "folder of the node that lgpu is copied to")
	f.StringVar(&node.Store, "store", "/var/lib/lgpu/state.db", "file of the node for state that survives the daemon")
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "Usage: lgpu-kube daemon [options] [-- options of lgpu daemon]")
		f.PrintDefaults()
	}
	_ = f.Parse(args) // ends the process
	return node.Run(ctx, *program, f.Args()...)
}

// answer is how long the daemon may take to answer the probe.
const answer = 5 * time.Second

// ready returns why the daemon does not answer.
func ready(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("ready", flag.ExitOnError)
	socket := f.String("socket", api.System, "of lgpu's daemon")
	_ = f.Parse(args) // ends the process
	ctx, cancel := context.WithTimeoutCause(ctx, answer, errors.New("the daemon does not answer"))
	defer cancel()
	daemon, err := api.Dial(ctx, api.Options{Socket: *socket})
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	defer daemon.Close()
	_, err = daemon.Snapshot(ctx, &api.SnapshotRequest{})
	return errors.Join(err, context.Cause(ctx))
}

// explainClaims makes events of what claims lack until ctx ends.
func explainClaims(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("explain", flag.ExitOnError)
	kubeconfig := f.String("kubeconfig", "", "of the cluster; by default that of the pod's service account")
	period := f.Duration("period", 10*time.Second, "how often to look, and how long a claim may wait without an event")
	_ = f.Parse(args) // ends the process
	kube, err := cluster(*kubeconfig)
	if err != nil {
		return err
	}
	return explain.New(kube, *period).Run(ctx)
}
