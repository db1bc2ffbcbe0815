package e2e

// containerdConfig has the runtime that make has built. Containers may not lower their score for the kernel's out-of-memory
// killer, as the tests may have no right to.
const containerdConfig = `version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.nri.v1.nri']
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  pinned_images = {sandbox = 'localhost/pause:1'}
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  cdi_spec_dirs = ['/var/run/cdi']
  cni = {bin_dirs = ['@DIR@/cni'], conf_dir = '@DIR@/cni.d', use_internal_loopback = true}
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      options = {BinaryName = '@RUNC@', SystemdCgroup = false}
`

// kubeletConfig is that of a node on control groups of version 1, whose kubelet talks to the API server that makes its
// certificate. It does not look after the machine: a busy one is not what is tested.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /@GROUP@
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
address: @ADDRESS@
port: 10250
healthzPort: 0
readOnlyPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: @DIR@/plane/kubelet-client.crt}}
authorization: {mode: AlwaysAllow}
enforceNodeAllocatable: [none]
makeIPTablesUtilChains: false
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
nodeStatusUpdateFrequency: 2s
syncFrequency: 5s
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
registryPullQPS: 0
eventRecordQPS: 0
maxPods: 250
volumePluginDir: @DIR@/flex
`

const cniConfig = `{"cniVersion":"1.0.0","name":"own","plugins":[{"type":"own"}]}
`

// cniPlugin leaves each pod with its loopback interface alone.
const cniPlugin = `#!/bin/sh
case "$CNI_COMMAND" in
ADD)
	n=$((0x$(printf %s "$CNI_CONTAINERID" | cut -c1-4)))
	echo "{\"cniVersion\":\"1.0.0\",\"interfaces\":[{\"name\":\"$CNI_IFNAME\",\"sandbox\":\"$CNI_NETNS\"}]," \
		"\"ips\":[{\"address\":\"127.77.$((n / 256)).$((n % 256))/16\",\"interface\":0}]}"
	;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
esac
`
