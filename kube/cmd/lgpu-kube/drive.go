package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/driver"
	"github.com/lgpu/lgpu/kube/podmetrics"
	"github.com/lgpu/lgpu/kube/slice"
)

// options are the driver's flags.
type options struct{ node, kubeconfig, kubelet, socket, sim, cdi, metrics string }

// drive serves until ctx ends, or until the daemon is gone: whoever started this command starts it again.
func drive(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("lgpu-kube", flag.ExitOnError)
	f.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "name of the Node; $NODE_NAME by default")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "of the cluster; by default that of the pod's service account")
	f.StringVar(&o.kubelet, "kubelet-dir", "/var/lib/kubelet", "root folder of the kubelet")
	f.StringVar(&o.socket, "socket", api.System, "of lgpu's daemon")
	f.StringVar(&o.sim, "sim", "", "shape of a software GPU to offer in place of the machine's devices")
	f.StringVar(&o.cdi, "cdi", "auto", "whether the Node's container runtime reads CDI: auto (by its version) or on")
	f.StringVar(&o.metrics, "metrics", "", "serve which pods have which lgpus to Prometheus, at this address")
	_ = f.Parse(args) // ends the process
	if f.NArg() > 0 {
		return fmt.Errorf("what is %q? The commands are daemon, ready and explain", f.Arg(0))
	}
	if o.cdi != "auto" && o.cdi != "on" {
		return fmt.Errorf("--cdi is %q, and can be auto or on", o.cdi)
	}
	if o.node == "" {
		return errors.New("which Node is this? Give --node, or set NODE_NAME")
	}
	kube, err := cluster(o.kubeconfig)
	if err != nil {
		return err
	}
	daemon, err := api.Dial(ctx, api.Options{Socket: o.socket, Change: true})
	if err != nil {
		return err
	}
	defer daemon.Close()
	return serve(ctx, o, kube, daemon)
}

// cluster connects to the API server.
func cluster(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return kube, nil
}

// serve serves the kubelet and publishes the devices.
func serve(ctx context.Context, o options, kube kubernetes.Interface, daemon *api.Conn) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	data := filepath.Join(o.kubelet, "plugins", slice.Driver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return fmt.Errorf("make the plugin's folder: %w", err)
	}
	release, err := driver.Alone(ctx, data)
	if err != nil {
		return err
	}
	defer release()
	d := driver.New(daemon, kube, driver.Options{Node: o.node, Sim: o.sim, TrustRuntime: o.cdi == "on"}, end)
	if err := d.Begin(ctx); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(slice.Driver), kubeletplugin.NodeName(o.node),
		kubeletplugin.KubeClient(kube), kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.HealthService(false),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(o.kubelet, "plugins_registry")))
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	defer helper.Stop()
	if o.metrics != "" {
		if err := tell(ctx, o, end); err != nil {
			return err
		}
	}
	err = d.Publish(ctx, helper.PublishResources)
	return errors.Join(context.Cause(ctx), err)
}

// tell serves metrics until ctx ends. end is called if it cannot go on.
func tell(ctx context.Context, o options, end func(error)) error {
	kubelet, closed, err := podmetrics.Kubelet(filepath.Join(o.kubelet, "pod-resources", "kubelet.sock"))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.metrics)
	if err != nil {
		return errors.Join(fmt.Errorf("serve metrics: %w", err), closed())
	}
	server := &http.Server{Handler: podmetrics.Handler(kubelet), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _, _ = server.Close(), closed() })
	go func() { end(fmt.Errorf("serve metrics: %w", server.Serve(l))) }()
	return nil
}
