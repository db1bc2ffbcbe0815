package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the scheduler's metrics of its client
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	manageroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// controllers are those that tests need. The controller of Nodes is none of them: it would take Nodes without a kubelet for dead.
const controllers = "daemonset-controller,device-taint-eviction-controller,garbage-collector-controller,namespace-controller," +
	"resourceclaim-controller,root-ca-certificate-publisher-controller,serviceaccount-controller"

// startTime is how long a component may take to become ready.
const startTime = 2 * time.Minute

func init() {
	// Each component configures logging, and the second one may not say anything else than the first.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
}

// etcd starts etcd. Nothing of it has to survive a crash of the machine.
func (c *cluster) etcd(ctx context.Context) (closed func(), err error) {
	config := embed.NewConfig()
	config.Dir, config.LogLevel, config.UnsafeNoFsync = c.path("etcd"), "error", true
	client, err := loopback()
	if err != nil {
		return nil, err
	}
	peer, err := loopback()
	if err != nil {
		return nil, err
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.InitialCluster = config.Name + "=" + peer[0].String()
	e, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
	case err = <-e.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.store = client[0].String()
	return e.Close, err
}

func loopback() ([]url.URL, error) {
	port, err := free()
	return []url.URL{{Scheme: "http", Host: "127.0.0.1:" + port}}, err
}

// parse sets the flags of a component.
func parse(sets cliflag.NamedFlagSets, args string, a ...any) error {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		all.AddFlagSet(set)
	}
	return all.Parse(strings.Fields(fmt.Sprintf(args, a...)))
}

// apiserver starts kube-apiserver and waits until it is ready. One admission plugin is off: nobody is there to lift the taint
// that TaintNodesByCondition gives to a new Node.
func (c *cluster) apiserver(ctx context.Context, ended func(error)) error {
	options := apiserveroptions.NewServerRunOptions()
	err := parse(options.Flags(), `--etcd-servers=%s --bind-address=%s --advertise-address=127.0.0.1 --secure-port=%s
		--cert-dir=%s --service-cluster-ip-range=10.0.0.0/24 --endpoint-reconciler-type=none --allow-privileged=true
		--service-account-issuer=https://kubernetes.default.svc --service-account-key-file=%[5]s
		--service-account-signing-key-file=%[5]s --token-auth-file=%[6]s --authorization-mode=Node,RBAC
		--enable-admission-plugins=NodeRestriction --disable-admission-plugins=TaintNodesByCondition
		--max-requests-inflight=2000 --max-mutating-requests-inflight=1000 --kubelet-preferred-address-types=InternalIP
		--kubelet-client-certificate=%[7]s --kubelet-client-key=%[8]s`,
		c.store, c.host, c.port, c.path("pki"), c.path("sa.key"), c.path("tokens.csv"),
		c.path("kubelet-client.crt"), c.path("kubelet-client.key"))
	if err != nil {
		return err
	}
	if err := options.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	completed, err := options.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return errors.Join(errs...)
	}
	go func() { ended(apiserver.Run(ctx, completed)) }()
	client, err := c.client()
	if err != nil {
		return err
	}
	return poll(ctx, func() error {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
}

// connection are the flags by which a component finds the API server, and no more patience than tests have.
const connection = ` --kubeconfig=%[1]s --authentication-kubeconfig=%[1]s --authorization-kubeconfig=%[1]s --bind-address=127.0.0.1
	--secure-port=0 --leader-elect=false --kube-api-qps=2000 --kube-api-burst=4000`

func (c *cluster) scheduler(ctx context.Context, ended func(error)) error {
	options := scheduleroptions.NewOptions()
	if err := parse(*options.Flags, connection, c.kubeconfig("system:kube-scheduler")); err != nil {
		return err
	}
	config, stock, err := scheduler.Setup(ctx, options)
	if err != nil {
		return err
	}
	go func() { ended(scheduler.Run(ctx, config, stock)) }()
	return nil
}

func (c *cluster) controllerManager(ctx context.Context, ended func(error)) error {
	options, err := manageroptions.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	known, off, aliases := manager.KnownControllers(), manager.ControllersDisabledByDefault(), manager.ControllerAliases()
	flags := options.Flags(known, off, aliases)
	options.ParsedFlags = &flags
	err = parse(flags, connection+` --use-service-account-credentials=true --service-account-private-key-file=%[2]s
		--root-ca-file=%[3]s --controllers=%[4]s`, c.kubeconfig("system:kube-controller-manager"), c.path("sa.key"),
		c.path("pki/apiserver.crt"), controllers)
	if err != nil {
		return err
	}
	config, err := options.Config(ctx, known, off, aliases)
	if err != nil {
		return err
	}
	go func() { ended(manager.Run(ctx, config.Complete())) }()
	return nil
}

// await waits until pods can be made and controllers work: the service account of the first namespace is there.
func (c *cluster) await(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	return poll(ctx, func() error {
		_, err := client.CoreV1().ServiceAccounts(corev1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			err = errors.New("no controller has made the default service account yet")
		}
		return err
	})
}

func (c *cluster) client() (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig("admin"))
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// poll asks until there is no error, or until startTime is over.
func poll(ctx context.Context, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
