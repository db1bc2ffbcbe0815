package shmem

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/ibgda"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// openNetwork opens the network transport. If one PE has none, the PEs that would reach it by that transport cannot;
// the others can still use it among themselves.
func (r *routes) openNetwork(ctx context.Context, c *Config) error {
	t, err := r.networkTransport(c)
	if err != nil && !errors.Is(err, nic.ErrNoDevice) {
		return err
	}
	reason := "" // why there is none, told to all
	if err != nil {
		r.job.log.Info("no network transport", "pe", r.job.rank, "error", err)
		reason = err.Error()
		reason = strings.ToValidUTF8(reason[:min(len(reason), 500)], "")
	}
	all, err := r.job.b.AllGather(ctx, []byte(reason))
	if err != nil {
		if t != nil {
			err = errors.Join(err, t.Close())
		}
		return &known{err}
	}
	r.networks = make([]string, r.job.size)
	for pe, text := range all {
		r.networks[pe] = string(text)
	}
	if !slices.Contains(r.networks, "") {
		return nil
	}
	if t == nil {
		t = absent{r.job.size}
	}
	r.transports = append(r.transports, t)
	caps := make([]transport.Capability, r.job.size)
	for pe := range caps {
		if r.networks[pe] == "" {
			caps[pe] = t.Capability(r.job.self, r.job.peers[pe])
		}
	}
	r.reach = append(r.reach, caps)
	return nil
}

func (r *routes) networkTransport(c *Config) (transport.Transport, error) {
	settings, _, err := c.network()
	if err != nil {
		return nil, err
	}
	if settings.NIC == ibgda.None {
		return nil, fmt.Errorf("%w: LSHMEM_NIC or LSHMEM_REMOTE_TRANSPORT is none", nic.ErrNoDevice)
	}
	j := r.job
	n := ibgda.Config{Settings: settings, PE: j.rank, PEs: j.size, HeapBase: r.heap.heapBase, HeapBytes: r.heap.heapBytes,
		KeyShift: uint(bits.TrailingZeros64(r.heap.chunk)), Location: ibgda.LocationOf(j.self.PCI),
		Peer: func(pe int) uint64 {
			if pe == j.rank {
				return r.heap.heapBase
			}
			base, _ := r.p2p.Address(pe)
			return base
		},
		Log: func(format string, args ...any) { j.log.Info(fmt.Sprintf(format, args...)) },
	}
	n.OneHost = true
	for pe, q := range j.peers {
		if pe < j.rank && q.Host == j.self.Host {
			n.Turn++
		}
		n.OneHost = n.OneHost && q.Host == j.self.Host && q.Network == j.self.Network
	}
	if r.exec.plain() {
		n.Platform = ibgda.NewProcessor()
	} else if n.Platform, err = ibgda.NewCUDA(r.exec.ctx); err != nil {
		return nil, err
	}
	t, err := ibgda.Open(n)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// whyNot says why no transport reaches a PE.
func (r *routes) whyNot(c *Config, pe int) string {
	self, q := r.job.self, r.job.peers[pe]
	network := "no network transport is available"
	switch {
	case len(r.networks) == 0:
	case r.networks[r.job.rank] != "":
		network += " here: " + r.networks[r.job.rank]
	case r.networks[pe] != "":
		network += " there: " + r.networks[pe]
	default:
		network = "the network transport, " + r.transports[1].Name() +
			", does not reach it (LSHMEM_NIC=gpu: only PEs with a GPU of this machine)"
	}
	why := apart(self, q)
	switch {
	case q.Host == self.Host && c.DisableP2P:
		why = "LSHMEM_DISABLE_P2P is set"
	case why == "":
		why = "its GPU is not visible to this process or cannot be mapped"
	}
	return why + ", and " + network
}

// apart says why memory of b's process cannot be mapped in a's, "" if the processes are not the reason.
func apart(a, b transport.PeerInfo) string {
	switch {
	case a.Host != b.Host:
		return "it is on another machine"
	case a.UID != b.UID:
		return "it runs as another user"
	case a.Network != b.Network:
		return "it is in another network namespace, where memory cannot be passed to"
	}
	return ""
}

// absent stands for a network transport that this PE does not have, where others have one.
type absent struct{ pes int }

func (absent) Name() string { return "none" }
func (absent) Capability(_, _ transport.PeerInfo) transport.Capability {
	return 0
}
func (a absent) Endpoints([]transport.PeerInfo, []transport.Capability) ([][]byte, error) {
	return make([][]byte, a.pes), nil
}
func (absent) Connect([][]byte) error                   { return nil }
func (absent) Register(transport.Chunk) ([]byte, error) { return nil, nil }
func (absent) Attach(int, [][]byte) error               { return nil }
func (absent) Detach(int) error                         { return nil }
func (absent) State(*layout.State) error                { return nil }
func (absent) Close() error                             { return nil }
