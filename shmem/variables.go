package shmem

import (
	"os"
	"slices"
	"strings"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda"
)

// others are the settings that package bootstrap reads.
var others = []Variable{
	{Name: "LSHMEM_PE", Aliases: []string{"PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}, Help: "number of this PE, from 0"},
	{Name: "LSHMEM_PES", Aliases: []string{"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}, Help: "number of PEs"},
	{Name: "LSHMEM_HOME", Help: "folder of liblshmem.so, lshmem.py and the headers; lgpu run --pes sets it"},
	{Name: "LSHMEM_LIBRARY", Help: "the liblshmem.so that lshmem.py loads"},
	{Name: "LSHMEM_BOOTSTRAP", Help: "how PEs find each other: uid:HEX, or tcp://HOST:PORT?TOKEN, where PE 0 listens"},
	{Name: "LSHMEM_BOOTSTRAP_INTERFACE", Aliases: []string{"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"}, Help: "network interface of the bootstrap: the beginning of its name, =NAME, or ^NAME for all but it"},
	{Name: "LSHMEM_BOOTSTRAP_ADDRESS", Aliases: []string{"NVSHMEM_BOOTSTRAP_UID_SESSION_ID"}, Help: "HOST:PORT that the bootstrap's root listens at"},
	{Name: "LSHMEM_BOOTSTRAP_TIMEOUT", Default: "LSHMEM_TIMEOUT", Help: "longest collective of the bootstrap (init, heap calls, finalize), from the first PE that calls it; by default init waits for 60s at least"},
	{Name: "LSHMEM_BOOTSTRAP_JOIN_TIMEOUT", Default: "60s", Help: "longest wait for all PEs to start"},
	{Name: "LSHMEM_BOOTSTRAP_HEARTBEAT", Default: "10s", Help: "silence after which a machine counts as dead"},
}

// AllVariables lists every setting of lshmem by name, also those that other packages read.
func AllVariables() []Variable {
	all := append(Variables(), others...)
	for _, v := range ibgda.Variables() {
		all = append(all, Variable{Name: v.Name, Aliases: v.Aliases, Default: v.Default, Help: v.Help})
	}
	slices.SortFunc(all, func(a, b Variable) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// BootstrapOptions are those of a bootstrap for c: times are as the settings LSHMEM_BOOTSTRAP_* say, and its
// collectives, the heap's calls among them, wait for as long as Timeout, in Init for a minute at least. lookup is where
// variables are found; nil is in Settings, and what is not there in the process's environment.
func (c *Config) BootstrapOptions(lookup func(name string) (string, bool)) (bootstrap.Options, error) {
	if lookup == nil {
		lookup = func(name string) (string, bool) {
			if v, ok := c.Settings[name]; ok {
				return v, true
			}
			return os.LookupEnv(name)
		}
	}
	o, err := bootstrap.TimesFromEnv(bootstrap.Options{Lookup: lookup})
	if err != nil {
		return o, fault(layout.StatusArgument, "settings", -1, "%w", err)
	}
	switch {
	case o.Timeout != 0:
	case c.Timeout <= 0:
		o.Timeout = bootstrap.Forever
	default:
		o.Timeout = max(c.Timeout, bootstrap.DefaultTimeout)
	}
	return o, nil
}

// knownNames are all names that settings have.
func knownNames() []string {
	var names []string
	for _, v := range AllVariables() {
		names = append(names, v.Name)
		names = append(names, v.Aliases...)
	}
	return names
}
