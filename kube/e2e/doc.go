// Package e2e tests lgpu on a whole node of Kubernetes: a control plane, a kubelet, containerd and runc, all as they are released
// (make kube-control-plane kube-node), and lgpu's chart with a software GPU. Other clients of its containerd are tested on it as
// well: ctr, nerdctl, and Docker (make kube-docker).
//
// The node lives in namespaces of its own: mounts, processes, network. All that it writes is on file systems in memory that are
// mounted there. So nothing of it stays, however the tests end: the processes die with the first one of their namespace, which
// dies with the test's, and mounts and addresses go with the processes. Only control groups have to be removed.
package e2e
