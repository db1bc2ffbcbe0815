// Package survey says what lshmem can use on a machine: GPUs and who maps whose memory, NICs, and hence which
// transports. It exists so that "lgpu shmem info" answers before a program is started, and without one.
//
// Nothing is allocated and no context is made.
package survey

//go:generate go run ./gen ../../docs/lshmem.md

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/shmem"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
	"github.com/lgpu/lgpu/shmem/verbs"
)

// Report is what there is. Its JSON is a promise of docs/cli.md.
type Report struct {
	Version      string      `json:"version"`       // of the release
	StateVersion uint32      `json:"state_version"` // of what device code and library agree on
	Paths        Paths       `json:"paths"`
	Driver       string      `json:"driver,omitempty"` // CUDA version that the driver has; empty without a driver
	Devices      []Device    `json:"devices"`
	NICs         []NIC       `json:"nics"`
	Transports   []Transport `json:"transports"`
	Settings     []Setting   `json:"settings"`
	Problems     []string    `json:"problems"` // of the settings: why no program would start, unknown names
}

// Paths is where this lgpu has installed lshmem.
type Paths struct {
	Library string `json:"library"` // empty if this lgpu carries none
	Headers string `json:"headers"`
	Python  string `json:"python"`
}

// Device is a GPU.
type Device struct {
	Ordinal int    `json:"ordinal"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Memory  uint64 `json:"memory"`  // bytes, in an lgpu those of the lgpu
	Dynamic bool   `json:"dynamic"` // heaps can grow and shrink
	RDMA    bool   `json:"rdma"`    // a NIC can reach its memory
	// Maps are the ordinals of devices whose memory it can map, itself first; Atomics those of them where atomics work,
	// too.
	Maps    []int `json:"maps"`
	Atomics []int `json:"atomics"`
}

// NIC is a port that work requests can be posted to.
type NIC struct {
	Name string `json:"name"`
	Port int    `json:"port"`
	PCI  string `json:"pci"`
	Up   bool   `json:"up"`
	Mbps int    `json:"mbps"`
}

// Transport says whether a way to other PEs exists here.
type Transport struct {
	Name string `json:"name"`
	Has  bool   `json:"has"`
	Why  string `json:"why"` // what it reaches, or what is missing
}

// Setting is a variable that lshmem reads.
type Setting struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Default string   `json:"default,omitempty"`
	Help    string   `json:"help"`
	Value   string   `json:"value,omitempty"` // what is set now; a secret is not shown
}

// Look looks at this machine. version and paths are the caller's to know; environ are NAME=value lines such as
// os.Environ's.
func Look(version string, paths Paths, environ []string) Report {
	values := map[string]string{}
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		values[name] = value
	}
	r := Report{Version: version, StateVersion: layout.Version, Paths: paths, Devices: []Device{}, NICs: []NIC{}, Settings: Settings(values),
		Problems: []string{}}
	c, err := shmem.ConfigFrom(environ)
	r.Problems = append(r.Problems, c.Warnings...)
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	gpus := r.devices()
	mlx5 := r.nics()
	r.transports(gpus, mlx5)
	return r
}

// Settings are all variables, with what is set among values, by name.
func Settings(values map[string]string) []Setting {
	var out []Setting
	for _, v := range shmem.AllVariables() {
		s := Setting{Name: v.Name, Aliases: v.Aliases, Default: v.Default, Help: v.Help}
		for _, name := range append([]string{v.Name}, v.Aliases...) {
			value := values[name]
			if value == "" {
				continue
			}
			if v.Name == "LSHMEM_BOOTSTRAP" {
				value, _, _ = strings.Cut(value, ":")
				value += ":(secret)"
			}
			s.Value = value
			break
		}
		out = append(out, s)
	}
	return out
}

// devices fills in the GPUs and says what stands in the way, if anything.
func (r *Report) devices() error {
	d, err := cuda.Load()
	if err != nil {
		return err
	}
	if v, err := d.Version(); err == nil {
		r.Driver = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	n, err := d.DeviceCount()
	if err != nil {
		return err
	}
	for ordinal := range n {
		dev, err := d.DeviceGet(ordinal)
		if err != nil {
			return err
		}
		at := Device{Ordinal: ordinal, Maps: []int{ordinal}, Atomics: []int{ordinal}}
		has := func(a cuda.Attribute) bool {
			v, err := d.DeviceAttribute(a, dev)
			return err == nil && v != 0
		}
		at.Dynamic = has(cuda.VirtualMemoryManagement) && has(cuda.HandleTypePosixFileDescriptor)
		at.RDMA = has(cuda.GPUDirectRDMASupported)
		if at.Name, err = d.DeviceName(dev); err != nil {
			return err
		}
		uuid, err := d.DeviceUUID(dev)
		if err != nil {
			return err
		}
		at.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
		if at.Memory, err = d.DeviceMemory(dev); err != nil {
			return err
		}
		for peer := range n {
			other, err := d.DeviceGet(peer)
			if err != nil {
				return err
			}
			if can, err := d.CanAccessPeer(dev, other); peer == ordinal || err != nil || !can {
				continue
			}
			at.Maps = append(at.Maps, peer)
			if native, err := d.P2P(cuda.NativeAtomicSupported, dev, other); err == nil && native != 0 {
				at.Atomics = append(at.Atomics, peer)
			}
		}
		r.Devices = append(r.Devices, at)
	}
	if n == 0 {
		return errors.New("the driver sees no device")
	}
	return nil
}

// nics fills in the mlx5 NICs.
func (r *Report) nics() error {
	p, err := verbs.Open(verbs.Options{GIDIndex: -1, RoCEVersion: 2})
	if err != nil {
		return err
	}
	defer p.Close()
	list, err := p.NICs()
	if err != nil {
		return err
	}
	for _, i := range list {
		r.NICs = append(r.NICs, NIC{Name: i.Name, Port: i.Port, PCI: i.PCI, Up: i.Up, Mbps: i.Mbps})
	}
	return nil
}

func (r *Report) transports(gpus, mlx5 error) {
	p2p := Transport{Name: "p2p", Has: true}
	switch pairs := r.pairs(); {
	case gpus != nil:
		p2p.Why = fmt.Sprintf("processes of this machine, in host memory (no GPU: %v)", gpus)
	case len(r.Devices) == 1:
		p2p.Why = "PEs on the one GPU"
	case pairs == len(r.Devices)*(len(r.Devices)-1):
		p2p.Why = fmt.Sprintf("PEs on all %d GPUs", len(r.Devices))
	default:
		p2p.Why = fmt.Sprintf("PEs on the same GPU, and %d of %d pairs of GPUs", pairs/2, len(r.Devices)*(len(r.Devices)-1)/2)
	}
	up := 0
	for _, n := range r.NICs {
		if n.Up {
			up++
		}
	}
	ibgda := Transport{Name: "ibgda", Has: up > 0 && gpus == nil, Why: fmt.Sprintf("other machines, by %d ports that kernels post to", up)}
	proxy := Transport{Name: "proxy", Has: up > 0, Why: fmt.Sprintf("other machines, by %d ports that a thread posts to", up)}
	switch {
	case errors.Is(mlx5, nic.ErrNoDevice):
		ibgda.Why, proxy.Why = "no mlx5 NIC", "no mlx5 NIC"
	case mlx5 != nil:
		ibgda.Why, proxy.Why = mlx5.Error(), mlx5.Error()
	case up == 0:
		ibgda.Why, proxy.Why = "no port is up", "no port is up"
	case gpus != nil:
		ibgda.Why = "no GPU"
	}
	r.Transports = []Transport{p2p, ibgda, proxy,
		{Name: "software HCA, host", Has: true, Why: "any PE that TCP reaches, for tests and machines without a NIC (LSHMEM_NIC=host)"},
		{Name: "software HCA, GPU", Has: gpus == nil, Why: "PEs whose memory this GPU maps, for tests of the queues (LSHMEM_NIC=gpu)"}}
	if gpus != nil {
		r.Transports[4].Why = "no GPU"
	}
}

// pairs counts pairs of different devices of which the first maps the second.
func (r *Report) pairs() (n int) {
	for _, d := range r.Devices {
		n += len(d.Maps) - 1
	}
	return n
}

// Print writes a report for people.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "lshmem %s, device state %#x\n", r.Version, r.StateVersion)
	if r.Paths.Library == "" {
		fmt.Fprintln(w, "  library   none in this lgpu; build it with: make build")
	} else {
		fmt.Fprintf(w, "  library   %s\n  headers   %s\n  python    %s\n", r.Paths.Library, r.Paths.Headers, r.Paths.Python)
	}
	for _, d := range r.Devices {
		heap := "static heap"
		if d.Dynamic {
			heap = "heap grows and shrinks"
		}
		fmt.Fprintf(w, "  device %-2d %s, %s, %s; maps %s\n", d.Ordinal, d.Name, units.FormatSize(d.Memory), heap, list(d.Maps))
	}
	for _, n := range r.NICs {
		state := "down"
		if n.Up {
			state = fmt.Sprintf("up, %d Gbit/s", n.Mbps/1000)
		}
		fmt.Fprintf(w, "  nic       %s port %d, %s\n", n.Name, n.Port, state)
	}
	fmt.Fprintln(w, "\nTransports here")
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, way := range r.Transports {
		has := "no"
		if way.Has {
			has = "yes"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", way.Name, has, way.Why)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nSettings (environment; of lshmem_config and lshmem.init, too)")
	t = tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, s := range r.Settings {
		value := s.Default
		if s.Value != "" {
			value = s.Value + " (set)"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", s.Name, value, s.Help)
	}
	if len(r.Problems) > 0 {
		fmt.Fprintf(t, "\nProblems\n  %s\n", strings.Join(r.Problems, "\n  "))
	}
	return t.Flush()
}

func list(n []int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(n), " ", ", "), "[]") }

// Markdown is the list of settings for docs/lshmem.md, an item each, in lines of at most 120 columns.
func Markdown() string {
	const width = 120
	var b strings.Builder
	for _, s := range Settings(nil) {
		text := "- `" + s.Name + "`"
		if s.Default != "" {
			text += " (default " + s.Default + ")"
		}
		text += ": " + s.Help + "."
		if len(s.Aliases) > 0 {
			text += " Also `" + strings.Join(s.Aliases, "`, `") + "`."
		}
		column := 0
		for i, word := range strings.Fields(text) {
			switch {
			case i == 0:
			case column+1+len(word) > width:
				b.WriteString("\n ")
				column = 1
				fallthrough
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += len(word)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
