package ibgda

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// Handler says who rings.
type Handler uint8

// Handlers. Auto takes the GPU where it can reach the doorbell, else a thread of the host.
const (
	HandlerAuto Handler = iota
	HandlerGPU          // the GPU writes record and doorbell
	HandlerHost         // the GPU raises a word; a host thread writes record and doorbell
)

func (h Handler) String() string {
	switch h {
	case HandlerAuto:
		return "auto"
	case HandlerGPU:
		return "gpu"
	case HandlerHost:
		return "host"
	}
	return fmt.Sprintf("handler %d", uint8(h))
}

// Where is where queues lie.
type Where uint8

// Places of queues. Auto is the GPU's memory where the NIC can reach it and the GPU posts, else the host's.
const (
	QueuesAuto Where = iota
	QueuesGPU
	QueuesHost
)

func (w Where) String() string {
	switch w {
	case QueuesAuto:
		return "auto"
	case QueuesGPU:
		return "gpumem"
	case QueuesHost:
		return "hostmem"
	}
	return fmt.Sprintf("place %d", uint8(w))
}

// By says by which number of its own a caller in a kernel picks its queue among those to a PE, if it names none.
type By uint8

// What picks a queue.
const (
	ByCTA  By = iota // the CTA's number in the grid
	ByWarp           // the warp's number in the grid
	BySM             // the multiprocessor that it runs on
)

func (b By) String() string {
	switch b {
	case ByCTA:
		return "cta"
	case ByWarp:
		return "warp"
	case BySM:
		return "sm"
	}
	return fmt.Sprintf("by %d", uint8(b))
}

// flags are those of State.
func (b By) flags() uint32 {
	switch b {
	case ByWarp:
		return layout.StateCallerWarp
	case BySM:
		return layout.StateCallerSM
	}
	return 0
}

// Kinds of NICs: values of Settings.NIC.
const (
	Auto = "auto" // MLX5 if a port can be used, else Host
	MLX5 = "mlx5" // NICs
	Host = "host" // the software HCA on the host
	GPU  = "gpu"  // the software HCA on the GPU, for peers on this machine; a kernel of its own always runs
	None = "none" // no network transport
)

// Settings are what a user can choose. The zero value is not valid: begin with Defaults.
type Settings struct {
	NIC string // Auto, MLX5, Host, GPU or None

	QueuesPerPE int // RC queue pairs to each PE
	Depth       int // basic blocks of a send queue, a power of two
	Batch       int // ready blocks that a caller may leave to a later one's doorbell
	MaxFetches  int // of a queue's internal buffer, a power of two
	By          By  // what picks a caller's queue among those to a PE

	Handler Handler
	Queues  Where

	// NICs are those to use, as name, name:port, ^name (not that one); none: all that are active, the closest to the
	// GPU first.
	NICs []string
	// Prefix is that of NICs' names to consider, such as mlx5.
	Prefix string
	// MaxNICs is the number of NICs to use at most. The default is those as close to the GPU as the closest.
	MaxNICs int

	GIDIndex     int // in a port's table, -1: choose
	RoCEVersion  int // 1 or 2, of a chosen GID
	AddressIPv6  bool
	AddressRange netip.Prefix // of a chosen GID; the zero value: any
	TrafficClass int          // 0..255, of packets with a global header
	ServiceLevel int          // 0..15
	PartitionKey int          // index in the port's table

	Relaxed     bool // PCIe relaxed ordering for registered memory
	NoDMABuf    bool // register GPU memory by address only
	Retries     int  // 0..7
	AckTimeout  int  // 0..31: 4.096 us * 2^AckTimeout
	ReadsAtOnce int  // outstanding reads and atomics of a queue pair, a power of two

	// Listen and Advertise are where a software HCA listens, as host:port, and the host name that others use; "":
	// chosen.
	Listen, Advertise string
}

// Defaults are the settings without any environment.
func Defaults() Settings {
	return Settings{
		NIC: Auto, QueuesPerPE: 2, Depth: 1024, Batch: 32, MaxFetches: 1024, Prefix: "mlx5",
		GIDIndex: -1, RoCEVersion: 2, Relaxed: false, Retries: 7, AckTimeout: 20, ReadsAtOnce: 16,
	}
}

// FromEnvironment are the defaults, changed by the environment that get looks up, under LSHMEM_ and the NVSHMEM_ names
// of the same meaning. LSHMEM_ wins. Of NVSHMEM's values there are some that are of no use here: unused says which, and
// they change nothing.
func FromEnvironment(get func(string) (string, bool)) (s Settings, unused []error, err error) {
	type given struct {
		Variable
		name, text string
	}
	var list []given // in the order in which they take effect
	for _, v := range variables {
		for _, name := range append([]string{v.Name}, v.Aliases...) {
			if text, ok := get(name); ok && text != "" {
				list = append(list, given{v, name, text})
				break
			}
		}
	}
	without := make([]bool, len(list))
	apply := func() (s Settings, err error) {
		s = Defaults()
		var errs []error
		for i, g := range list {
			if without[i] {
				continue
			}
			if err := g.set(&s, g.text); err != nil {
				errs = append(errs, fmt.Errorf("%s=%q: %w", g.name, g.text, err))
			}
		}
		return s, errors.Join(errs...)
	}
	for i, g := range list {
		without[i] = g.name != g.Name
	}
	s, err = apply()
	sound := err == nil && s.Check() == nil
	for i, g := range list {
		if !without[i] {
			continue
		}
		without[i] = false
		next, nextErr := apply()
		if sound && nextErr == nil {
			if nextErr = next.Check(); nextErr != nil {
				nextErr = fmt.Errorf("%s=%q: %w", g.name, g.text, nextErr)
			}
		}
		if sound && nextErr != nil {
			without[i] = true
			unused = append(unused, nextErr)
			continue
		}
		s, err = next, nextErr
	}
	return s, unused, err
}

// Check says whether the settings can work together.
func (s *Settings) Check() error {
	var errs []error
	complain := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch s.NIC {
	case Auto, MLX5, Host, GPU, None:
	default:
		complain("NIC %q: want auto, mlx5, host, gpu or none", s.NIC)
	}
	if s.QueuesPerPE < 1 || s.QueuesPerPE > 64 {
		complain("%d queue pairs per PE: want 1 to 64", s.QueuesPerPE)
	}
	if s.Depth < layout.MinDepth || s.Depth > layout.MaxDepth || s.Depth&(s.Depth-1) != 0 {
		complain("queue depth %d: want a power of two from %d to %d", s.Depth, layout.MinDepth, layout.MaxDepth)
	}
	if s.Batch < 1 {
		complain("batch of %d: want at least 1", s.Batch)
	} else if s.Batch-1+layout.MaxCall > s.Depth {
		// Ready entries of up to Batch-1 blocks may wait for the doorbell of a caller that waits for their room.
		complain("batch %d and queue depth %d can deadlock: (batch-1) + %d blocks of the largest call must fit the depth; "+
			"lower the batch to %d or raise the depth", s.Batch, s.Depth, layout.MaxCall, max(1, s.Depth-layout.MaxCall+1))
	}
	if s.MaxFetches < 1 || s.MaxFetches > 1<<16 || s.MaxFetches&(s.MaxFetches-1) != 0 {
		complain("%d fetches: want a power of two from 1 to %d", s.MaxFetches, 1<<16)
	}
	if s.MaxNICs < 0 || s.MaxNICs > layout.MaxNICs {
		complain("%d NICs: want at most %d", s.MaxNICs, layout.MaxNICs)
	}
	if s.GIDIndex < -1 || s.GIDIndex > 255 {
		complain("GID index %d: want -1 to 255", s.GIDIndex)
	}
	if s.RoCEVersion != 1 && s.RoCEVersion != 2 {
		complain("RoCE version %d: want 1 or 2", s.RoCEVersion)
	}
	for _, r := range []struct {
		name       string
		value, max int
	}{{"traffic class", s.TrafficClass, 255}, {"service level", s.ServiceLevel, 15}, {"partition key index", s.PartitionKey, 0xffff},
		{"retry count", s.Retries, 7}, {"ack timeout", s.AckTimeout, 31}} {
		if r.value < 0 || r.value > r.max {
			complain("%s %d: want 0 to %d", r.name, r.value, r.max)
		}
	}
	if s.ReadsAtOnce < 1 || s.ReadsAtOnce > 128 || s.ReadsAtOnce&(s.ReadsAtOnce-1) != 0 {
		complain("%d outstanding reads: want a power of two up to 128", s.ReadsAtOnce)
	}
	return errors.Join(errs...)
}

// access is that of registered heap memory.
func (s *Settings) access() nic.Access {
	if s.Relaxed {
		return nic.Full | nic.RelaxedOrdering
	}
	return nic.Full
}

// Variable is a setting in the environment.
type Variable struct {
	Name    string
	Aliases []string
	Default string
	Help    string

	set func(*Settings, string) error
}

// Variables are the settings in the environment, for help texts, in the order in which they take effect.
func Variables() []Variable { return slices.Clone(variables) }

var variables = []Variable{
	{"LSHMEM_REMOTE_TRANSPORT", []string{"NVSHMEM_REMOTE_TRANSPORT"}, "auto",
		"what reaches PEs whose memory is not mapped: auto, ibgda or ibdevx (the GPU posts), ibrc or proxy (a host thread posts), none", setTransport},
	{"LSHMEM_NIC", nil, "auto", "kind of network interface: auto, mlx5, host (software HCA), gpu (software HCA on the GPU), none",
		func(s *Settings, v string) error { s.NIC = strings.ToLower(v); return nil }},
	{"LSHMEM_QP_PER_PE", []string{"NVSHMEM_IBGDA_NUM_RC_PER_PE"}, "2", "queue pairs to each PE",
		number(func(s *Settings) *int { return &s.QueuesPerPE })},
	{"LSHMEM_QP_BY", []string{"NVSHMEM_IBGDA_RC_MAP_BY"}, "cta", "what picks the queue pair of a caller in a kernel: cta, warp or sm",
		choice(func(s *Settings) *By { return &s.By }, map[string]By{"cta": ByCTA, "warp": ByWarp, "sm": BySM})},
	{"LSHMEM_QP_DEPTH", []string{"NVSHMEM_QP_DEPTH"}, "1024", "blocks of 64 bytes in a send queue, a power of two",
		number(func(s *Settings) *int { return &s.Depth })},
	{"LSHMEM_QP_BATCH", []string{"NVSHMEM_IBGDA_NUM_REQUESTS_IN_BATCH"}, "32", "blocks that may be ready before somebody must ring",
		number(func(s *Settings) *int { return &s.Batch })},
	{"LSHMEM_MAX_FETCHES", []string{"LSHMEM_FETCH_SLOTS", "NVSHMEM_IBGDA_NUM_FETCH_SLOTS_PER_RC"}, "1024", "results of fetches in flight on a queue pair, a power of two",
		number(func(s *Settings) *int { return &s.MaxFetches })},
	{"LSHMEM_NIC_HANDLER", []string{"NVSHMEM_IBGDA_NIC_HANDLER"}, "auto", "who rings the doorbell: auto, gpu or host",
		choice(func(s *Settings) *Handler { return &s.Handler },
			map[string]Handler{"auto": HandlerAuto, "gpu": HandlerGPU, "host": HandlerHost, "cpu": HandlerHost})},
	{"LSHMEM_QUEUE_MEMORY", []string{"NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE"}, "auto", "where queues lie: auto, gpumem or hostmem",
		choice(func(s *Settings) *Where { return &s.Queues },
			map[string]Where{"auto": QueuesAuto, "gpumem": QueuesGPU, "hostmem": QueuesHost, "gpu": QueuesGPU, "host": QueuesHost})},
	{"LSHMEM_HCA_LIST", []string{"NVSHMEM_HCA_LIST"}, "", "NICs to use, as mlx5_0:1,mlx5_1 (patterns allowed), or with ^ in front those not to use", setNICs},
	{"LSHMEM_HCA_PREFIX", []string{"NVSHMEM_HCA_PREFIX"}, "mlx5", "what names of NICs to use begin with",
		func(s *Settings, v string) error { s.Prefix = v; return nil }},
	{"LSHMEM_MAX_NICS", nil, "0", "NICs to use at most; 0: those closest to the GPU", number(func(s *Settings) *int { return &s.MaxNICs })},
	{"LSHMEM_IB_GID_INDEX", []string{"NVSHMEM_IB_GID_INDEX"}, "-1", "index of the GID to use; -1: choose",
		number(func(s *Settings) *int { return &s.GIDIndex })},
	{"LSHMEM_ROCE_VERSION", []string{"NVSHMEM_IB_ROCE_VERSION_NUM", "NVSHMEM_ROCE_VERSION"}, "2", "RoCE version of a chosen GID",
		number(func(s *Settings) *int { return &s.RoCEVersion })},
	{"LSHMEM_IB_ADDR_FAMILY", []string{"NVSHMEM_IB_ADDR_FAMILY"}, "AF_INET", "address family of a chosen GID: AF_INET or AF_INET6",
		choice(func(s *Settings) *bool { return &s.AddressIPv6 }, map[string]bool{"AF_INET": false, "AF_INET6": true})},
	{"LSHMEM_IB_ADDR_RANGE", []string{"NVSHMEM_IB_ADDR_RANGE"}, "", "network of a chosen GID, as 10.0.0.0/8", setRange},
	{"LSHMEM_IB_TRAFFIC_CLASS", []string{"NVSHMEM_IB_TRAFFIC_CLASS"}, "0", "traffic class of packets",
		number(func(s *Settings) *int { return &s.TrafficClass })},
	{"LSHMEM_IB_SL", []string{"NVSHMEM_IB_SL"}, "0", "service level of packets", number(func(s *Settings) *int { return &s.ServiceLevel })},
	{"LSHMEM_IB_PKEY_INDEX", []string{"NVSHMEM_IB_PKEY_INDEX"}, "0", "index of the partition key",
		number(func(s *Settings) *int { return &s.PartitionKey })},
	{"LSHMEM_IB_RELAXED_ORDERING", []string{"NVSHMEM_IB_ENABLE_RELAXED_ORDERING"}, "0", "1: PCIe may reorder a NIC's writes",
		yes(func(s *Settings) *bool { return &s.Relaxed })},
	{"LSHMEM_IB_DISABLE_DMABUF", []string{"NVSHMEM_IB_DISABLE_DMABUF"}, "0", "1: register GPU memory through nvidia_peermem only",
		yes(func(s *Settings) *bool { return &s.NoDMABuf })},
	{"LSHMEM_IB_RETRIES", nil, "7", "retries before a peer counts as gone, up to 7", number(func(s *Settings) *int { return &s.Retries })},
	{"LSHMEM_IB_ACK_TIMEOUT", nil, "20", "time between retries: 4.096 us * 2^n, n up to 31", number(func(s *Settings) *int { return &s.AckTimeout })},
	{"LSHMEM_IB_MAX_READS", nil, "16", "reads and atomics in flight on a queue pair, a power of two up to 128",
		number(func(s *Settings) *int { return &s.ReadsAtOnce })},
	{"LSHMEM_HCA_LISTEN", nil, "", "host:port at which a software HCA listens, each process at its own; port 0: any", func(s *Settings, v string) error { s.Listen = v; return nil }},
	{"LSHMEM_HCA_ADVERTISE", nil, "", "host name or address by which others reach a software HCA",
		func(s *Settings, v string) error { s.Advertise = v; return nil }},
}

func number(field func(*Settings) *int) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		n, err := strconv.ParseInt(v, 0, 32)
		if err != nil {
			return errors.New("want a number")
		}
		*field(s) = int(n)
		return nil
	}
}

func yes(field func(*Settings) *bool) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		b, ok := map[string]bool{"1": true, "true": true, "yes": true, "on": true, "0": false, "false": false, "no": false, "off": false}[strings.ToLower(v)]
		if !ok {
			return errors.New("want 1 or 0")
		}
		*field(s) = b
		return nil
	}
}

func choice[T any](field func(*Settings) *T, values map[string]T) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		value, ok := values[v]
		if !ok {
			if value, ok = values[strings.ToLower(v)]; !ok {
				return errors.New("no such choice")
			}
		}
		*field(s) = value
		return nil
	}
}

// setTransport takes the names of NVSHMEM's remote transports. Those that let the GPU post mean auto; the one in which
// a thread of the host posts means that.
func setTransport(s *Settings, v string) error {
	switch strings.ToLower(v) {
	case "ibgda", "ibdevx", "auto":
	case "ibrc", "proxy":
		s.Handler = HandlerHost
	case "none":
		s.NIC = None
	default:
		return errors.New("want ibgda, ibdevx, ibrc, proxy, auto or none")
	}
	return nil
}

func setNICs(s *Settings, v string) error {
	s.NICs = nil
	not := strings.HasPrefix(v, "^") // one ^ before the list is for all of it
	for name := range strings.SplitSeq(strings.TrimPrefix(v, "^"), ",") {
		name = strings.TrimPrefix(strings.TrimSpace(name), "^")
		if name == "" {
			return errors.New("want names of NICs, separated by commas")
		}
		if not {
			name = "^" + name
		}
		if _, err := path.Match(strings.TrimPrefix(name, "^"), ""); err != nil {
			return err
		}
		s.NICs = append(s.NICs, name)
	}
	return nil
}

func setRange(s *Settings, v string) (err error) {
	s.AddressRange, err = netip.ParsePrefix(v)
	return err
}
