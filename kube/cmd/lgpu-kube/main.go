// Command lgpu-kube is lgpu's DRA driver: it runs on each node beside lgpu's daemon, offers the node's devices to the
// scheduler, and gives each resource claim an lgpu. docs/kubernetes.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/driver"
	"github.com/lgpu/lgpu/kube/slice"
)

// options are the command's flags.
type options struct{ node, kubeconfig, kubelet, socket, sim string }

func main() {
	var o options
	flag.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "name of the Node; $NODE_NAME by default")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "of the cluster; by default that of the pod's service account")
	flag.StringVar(&o.kubelet, "kubelet-dir", "/var/lib/kubelet", "root folder of the kubelet")
	flag.StringVar(&o.socket, "socket", api.System, "of lgpu's daemon")
	flag.StringVar(&o.sim, "sim", "", "shape of a software GPU to offer in place of the machine's devices")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "lgpu-kube:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, or until the daemon is gone: whoever started this command starts it again.
func run(ctx context.Context, o options) error {
	if o.node == "" {
		return errors.New("which Node is this? Give --node, or set NODE_NAME")
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	daemon, err := api.Dial(ctx, api.Options{Socket: o.socket, Change: true})
	if err != nil {
		return err
	}
	defer daemon.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	d := driver.New(daemon, kube, o.node, o.sim, end)
	if err := d.Begin(ctx); err != nil {
		return err
	}
	data := filepath.Join(o.kubelet, "plugins", slice.Driver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return fmt.Errorf("make the plugin's folder: %w", err)
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(slice.Driver), kubeletplugin.NodeName(o.node),
		kubeletplugin.KubeClient(kube), kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.HealthService(false),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(o.kubelet, "plugins_registry")))
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	defer helper.Stop()
	err = d.Publish(ctx, helper.PublishResources)
	return errors.Join(context.Cause(ctx), err)
}
